"""The outbox: workflows are started and signals are sent if and only if your transaction commits.

    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.start_workflow(session, checkout, order.id, id=f"order-{order.id}")

A row is a request with its request id, stored until an engine has accepted the request. An `Outbox` delivers rows at least
once. Engines recognize request ids, so a workflow is started only once and a signal is received only once. The rows of a
workflow id are sent in the order of their insertion, so a signal never overtakes the start before it.

Several outboxes may run concurrently, in any processes. Each outbox leases rows for half a minute in a short transaction,
sends them, and deletes them. Therefore no transaction is open during a request to an engine. If an `Outbox` is killed,
another one leases its rows after the lease has expired.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple, Unpack, overload

import msgspec
from sqlalchemy import Connection, Engine, delete, exists, insert, select, update
from sqlalchemy.orm import Session

from hourglass._contract.ids import new_id
from hourglass._contract.service import Request
from hourglass._contract.workflows import SignalWorkflow, StartWorkflow
from hourglass._evaluator.options import Duration, check_text, seconds
from hourglass.client import AsyncClient, Client
from hourglass.client._options import StartOptions, start_request
from hourglass.client._session import asking, nothing
from hourglass.contrib.sqlalchemy._tables import check_database, now
from hourglass.contrib.sqlalchemy._tables import outbox as rows
from hourglass.converter import Converter, default_converter
from hourglass.errors import (
    HourglassError,
    NamespaceNotFoundError,
    ServiceError,
    UsageError,
    WorkflowAlreadyStartedError,
    WorkflowNotFoundError,
)
from hourglass.workflow import Channel
from hourglass.workflow._references import resolve_message, resolve_workflow

__all__ = ["Outbox", "signal", "start_workflow"]

logger = logging.getLogger("hourglass.outbox")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_KINDS: dict[str, type[Request[Any]]] = {"start": StartWorkflow, "signal": SignalWorkflow}
_LEASE = timedelta(seconds=30)
_LONGEST_PAUSE = 60.0
_BATCH_SIZE = 20
_REJECTIONS = frozenset({"INVALID_ARGUMENT", "PERMISSION_DENIED", "UNIMPLEMENTED", "FAILED_PRECONDITION"})
"""Error status codes that a retry of the request would return again."""


@overload
def start_workflow(
    session: Session | Connection,
    workflow: str,
    /,
    *args: Any,
    converter: Converter = default_converter,
    **options: Unpack[StartOptions],
) -> str: ...
@overload
def start_workflow(
    session: Session | Connection,
    workflow: Callable[[*Ts], Any],
    /,
    *args: *Ts,
    converter: Converter = default_converter,
    **options: Unpack[StartOptions],
) -> str: ...
def start_workflow(  # type: ignore[misc]
    session: Session | Connection,
    workflow: Any,
    /,
    *args: Any,
    converter: Converter = default_converter,
    **options: Any,
) -> str:
    """Start a workflow when the transaction of this session or connection commits. Return the workflow's id.

    The arguments are the same as for `client.start_workflow`, and are checked and encoded immediately. `converter` must be
    the client's converter. If a workflow with this id is already running when the row is sent, the row counts as delivered.
    """
    request = start_request(resolve_workflow(workflow), args, options, converter, identity="")
    _write(session, "start", request.workflow_id, request)
    return request.workflow_id


@overload
def signal(
    session: Session | Connection,
    workflow_id: str,
    signal: str,
    /,
    *args: Any,
    run_id: str | None = None,
    converter: Converter = default_converter,
) -> None: ...
@overload
def signal(
    session: Session | Connection,
    workflow_id: str,
    signal: Channel[T],
    value: T,
    /,
    *,
    run_id: str | None = None,
    converter: Converter = default_converter,
) -> None: ...
@overload
def signal(
    session: Session | Connection,
    workflow_id: str,
    signal: Callable[[*Ts], None],
    /,
    *args: *Ts,
    run_id: str | None = None,
    converter: Converter = default_converter,
) -> None: ...
def signal(  # type: ignore[misc]
    session: Session | Connection,
    workflow_id: str,
    signal: Any,
    /,
    *args: Any,
    run_id: str | None = None,
    converter: Converter = default_converter,
) -> None:
    """Send a signal when the transaction commits. Pass the signal's name, its channel or its decorated method."""
    if not isinstance(workflow_id, str) or not workflow_id:
        raise UsageError("the id of a workflow must be a non-empty str")
    definition = resolve_message("signal", signal)
    request = SignalWorkflow(
        workflow_id=check_text(workflow_id, "the id of a workflow"),
        run_id=check_text(run_id or "", "run_id"),
        signal_name=definition.name,
        arguments=definition.encode(converter, args),
        request_id=new_id(),
    )
    _write(session, "signal", workflow_id, request)


def _write(session: Session | Connection, kind: str, workflow_id: str, request: Request[Any]) -> None:
    if not isinstance(session, (Session, Connection)):
        raise UsageError(
            f"the outbox needs a Session or a Connection, not {type(session).__name__}; for an async session: await "
            "session.run_sync(outbox.start_workflow, …)"
        )
    session.execute(
        insert(rows).values(
            kind=kind,
            workflow_id=workflow_id,
            request=msgspec.json.encode(request),
            written_at=now(),
            due_at=now(),
        )
    )


class _LeasedRow(msgspec.Struct, frozen=True):
    """A row that this outbox has leased until `until`."""

    id: int
    kind: str
    request: bytes
    attempts: int
    until: datetime


class Outbox:
    """Sends the rows of a database's outbox to a client's engine.

    `with Outbox(engine, client): …` sends rows in the background. `run()` sends rows in this thread until `stop()`, and
    `deliver()` sends the rows that are due now. Any number of outboxes may work concurrently.

    If an engine rejects a row permanently (a signal to a workflow that does not exist, an invalid request), the row is
    logged and stored with its error (`refused_at`, `last_error`). It does not block later rows. After other errors, the row
    is retried, with pauses of up to a minute.
    """

    def __init__(
        self, engine: Engine, client: Client | AsyncClient, *, poll_interval: Duration = 0.5
    ) -> None:
        if not isinstance(engine, Engine):
            raise UsageError(f"an Outbox needs an Engine, not {type(engine).__name__}")
        if not isinstance(client, (Client, AsyncClient)):
            raise UsageError(f"an Outbox needs a Client or an AsyncClient, not {type(client).__name__}")
        check_database(engine.dialect.name)
        self._engine = engine
        self._session = client._session
        self._pause = seconds(poll_interval, "poll_interval")
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def run(self) -> None:
        """Send rows until `stop` is called. Retry if the database does not respond."""
        failing = False
        while not self._stopped.is_set():
            try:
                busy = self.deliver() > 0
                failing = False
            except Exception as error:
                busy = False
                if not failing:  # logged once, not on each attempt
                    logger.warning("the outbox cannot be read: %s: %s", type(error).__name__, error)
                failing = True
            if not busy:
                self._stopped.wait(self._pause)

    def stop(self) -> None:
        """Make `run` return once the leased rows have been sent."""
        self._stopped.set()

    def __enter__(self) -> Outbox:
        if self._thread is not None:
            raise UsageError("this Outbox is already running")
        self._stopped.clear()
        self._thread = threading.Thread(target=self.run, name="hourglass-outbox", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def deliver(self) -> int:
        """Send the rows that are due now. Return the number of delivered rows."""
        delivered = 0
        while leased := self._lease_rows():
            delivered += sum([self._send(row) for row in leased])
            if self._stopped.is_set() and self._thread is not None:
                break
        return delivered

    def retry_refused(self) -> int:
        """Retry all rejected rows, for example after fixing the cause. Return the number of rows."""
        statement = update(rows).where(rows.c.refused_at.is_not(None)).values(refused_at=None, due_at=now())
        with self._engine.begin() as connection:
            return connection.execute(statement).rowcount

    def _lease_rows(self) -> Sequence[_LeasedRow]:
        """Lease the rows that are due, at most one per workflow id, for `_LEASE`."""
        earlier = rows.alias()
        is_first = ~exists().where(
            earlier.c.workflow_id == rows.c.workflow_id,
            earlier.c.id < rows.c.id,
            earlier.c.refused_at.is_(None),
        )
        due = (
            select(rows.c.id)
            .where(rows.c.due_at <= now(), rows.c.refused_at.is_(None), is_first)
            .order_by(rows.c.id)
            .limit(_BATCH_SIZE)
            .with_for_update(skip_locked=True)  # for PostgreSQL; SQLite has a single writer and ignores this
        )
        until = now() + _LEASE
        lease_statement = (
            update(rows)
            .where(rows.c.id.in_(due.scalar_subquery()))
            .values(due_at=until)
            .returning(rows.c.id, rows.c.kind, rows.c.request, rows.c.attempts)
        )
        with self._engine.begin() as connection:
            leased_rows = connection.execute(lease_statement).all()
        return [
            _LeasedRow(row.id, row.kind, row.request, row.attempts, until)
            for row in sorted(leased_rows, key=lambda row: row.id)
        ]

    def _send(self, row: _LeasedRow) -> bool:
        try:
            request = msgspec.json.decode(row.request, type=_KINDS[row.kind])
            self._session.run(asking(request, nothing))
        except WorkflowAlreadyStartedError:
            logger.info("outbox row %d: a workflow with this id is already running", row.id)
        except (HourglassError, msgspec.MsgspecError, KeyError) as error:
            self._failed(row, error)
            return False
        # Only if this outbox still has the lease: after it expires, another outbox may have leased the row.
        self._change(row, delete(rows))
        return True

    def _failed(self, row: _LeasedRow, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"[:1000]
        values: dict[str, Any] = {"attempts": row.attempts + 1, "last_error": message}
        if _is_rejection(error):
            values["refused_at"] = now()
            logger.error("outbox row %d was rejected and is not retried: %s", row.id, message)
        else:
            pause = min(0.5 * 2.0 ** min(row.attempts, 10), _LONGEST_PAUSE)
            values["due_at"] = now() + timedelta(seconds=pause)
            logger.warning(
                "outbox row %d could not be sent, next attempt in %g s: %s", row.id, pause, message
            )
        self._change(row, update(rows).values(**values))

    def _change(self, row: _LeasedRow, statement: Any) -> None:
        with self._engine.begin() as connection:
            connection.execute(statement.where(rows.c.id == row.id, rows.c.due_at == row.until))


def _is_rejection(error: Exception) -> bool:
    """Return whether a retry would fail in the same way, because the engine has rejected the request or the row cannot be
    decoded.
    """
    if isinstance(error, ServiceError):
        is_missing = isinstance(error, (WorkflowNotFoundError, NamespaceNotFoundError))
        return is_missing or error.status in _REJECTIONS
    return isinstance(error, (msgspec.MsgspecError, KeyError))
