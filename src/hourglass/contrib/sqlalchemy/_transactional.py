"""`@transactional`: an activity that commits its effect in your database and its record together.

An attempt begins by inserting its record, which is also its lock. In PostgreSQL, another attempt of the same activity waits
for the row; SQLite has only a single writer. An attempt that finds the row returns the recorded result without executing the
function. An attempt that inserts the row executes the function, stores the result and commits. If the process dies before
the commit, there is neither effect nor record; if it dies after the commit, both exist.

Invariants:

- A record without a result is never committed: a commit in the user's code is rejected before it reaches the database.
- The first statement of the transaction is a write. This acquires SQLite's lock at the beginning, in all modes of its drivers.
  After a read, a write would fail if another connection has written in the meantime.
- All attempts of an activity have the same key, and each attempt has a single transaction.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

import msgspec
from sqlalchemy import Connection, Engine, event, false, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from hourglass import activity
from hourglass.activity._context import ActivityContext, DeferredCompletion, Equipment, check_size, current
from hourglass.contrib.sqlalchemy._tables import check_database, now, steps
from hourglass.converter import Payload, Signature
from hourglass.errors import ApplicationError, DefinitionError, UsageError

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
X = TypeVar("X", Session, Connection, AsyncSession, AsyncConnection)

EngineSource: TypeAlias = Engine | AsyncEngine | Callable[[], Engine | AsyncEngine]

_KINDS: tuple[type, ...] = (Session, Connection, AsyncSession, AsyncConnection)
_IN_TRANSACTION = 2
"""libpq's status PQTRANS_INTRANS: inside a transaction that has not failed."""
_SAVEPOINT = "hourglass_step"
_INSERTS: dict[str, Any] = {"postgresql": postgresql.insert, "sqlite": sqlite.insert}


class _TransactionalDecorator(Protocol):
    @overload
    def __call__(self, fn: Callable[Concatenate[X, P], R], /) -> Callable[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[S, X, P], R], /) -> Callable[Concatenate[S, P], R]: ...


def transactional(engine: EngineSource | None = None, /) -> _TransactionalDecorator:
    """Run a function in a single transaction of your database, exactly once per activity:

        @activity.defn
        @transactional(engine)
        def charge(session: Session, order: str, cents: int) -> str: ...

    The decorator supplies the first parameter (for a method, the second), and the caller supplies the others. The annotation
    of that parameter selects the type: `Session` or `Connection`, or in an `async def` with an `AsyncEngine`, `AsyncSession`
    or `AsyncConnection`.

    The transaction is committed when the function returns, and rolled back when it raises. The function itself must do
    neither. A row with the result is committed in the same transaction: an attempt that finds the row returns this result
    without calling the function.

    `engine` may be a function that returns the engine. By default, the worker's resource of that type is used (`Worker(…,
    resources=[engine])`). Outside an activity, as in a unit test, the function runs in a transaction and its result is not
    recorded.
    """
    if engine is not None and not isinstance(engine, (Engine, AsyncEngine)) and not callable(engine):
        raise DefinitionError(
            f"@transactional needs an Engine or a function that returns one, not {type(engine).__name__}"
        )
    return cast(_TransactionalDecorator, functools.partial(_decorate, engine))


def _decorate(engine: EngineSource | None, fn: Callable[..., Any], /) -> Callable[..., Any]:
    if isinstance(fn, activity.Activity):
        raise DefinitionError(f"put @transactional below @activity.defn on {fn.name}, next to the function")
    function = _Function.of(fn)

    if function.is_async:

        @functools.wraps(fn)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            return await _run_async(_engine(engine, AsyncEngine, fn), function, args, kwargs)

        vars(run_async)["__signature__"] = function.outer
        return run_async

    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        return _run(_engine(engine, Engine, fn), function, args, kwargs)

    vars(run)["__signature__"] = function.outer
    return run


E = TypeVar("E", Engine, AsyncEngine)


def _engine(source: EngineSource | None, kind: type[E], fn: Callable[..., Any]) -> E:
    if source is None:
        source = activity.resource(kind)
    engine = source if isinstance(source, (Engine, AsyncEngine)) else source()
    if not isinstance(engine, kind):
        label = "an async def" if kind is AsyncEngine else "a def"
        raise UsageError(
            f"{fn.__qualname__} is {label}: @transactional needs an {kind.__name__} for it, not {type(engine).__name__}"
        )
    check_database(engine.dialect.name)
    return engine


class _Function(NamedTuple):
    """A function that has a parameter for the session or connection."""

    fn: Callable[..., Any]
    at: int
    """The position of the session or connection parameter."""
    kind: type[Any]
    outer: inspect.Signature
    """The signature without the session or connection parameter."""
    is_async: bool
    signature: Signature

    @classmethod
    def of(cls, fn: Callable[..., Any]) -> _Function:
        inner = inspect.signature(fn)
        parameters = list(inner.parameters.values())
        kinds = [_kind(fn, parameter) for parameter in parameters[:2]]
        at, kind = next(((at, kind) for at, kind in enumerate(kinds) if kind is not None), (0, None))
        if kind is None:
            raise DefinitionError(
                f"{fn.__qualname__}: the first parameter of a function under @transactional must be annotated as "
                "SQLAlchemy's Session or Connection"
            )
        is_async = inspect.iscoroutinefunction(fn)
        if is_async != issubclass(kind, (AsyncSession, AsyncConnection)):
            raise DefinitionError(
                f"{fn.__qualname__}: an `async def` function needs an AsyncSession or AsyncConnection, a `def` function a "
                "Session or Connection"
            )
        outer = inner.replace(parameters=[*parameters[:at], *parameters[at + 1 :]])
        return cls(fn, at, kind, outer, is_async, Signature.of(fn, what=fn.__qualname__))

    def call(self, session: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.fn(*args[: self.at], session, *args[self.at :], **kwargs)


def _kind(fn: Callable[..., Any], parameter: inspect.Parameter) -> type[Any] | None:
    annotation = parameter.annotation
    if isinstance(annotation, str):
        resolved = getattr(fn, "__globals__", {}).get(annotation)
        if resolved is None:  # imported only for type checkers, or an attribute of a module
            last = annotation.rpartition(".")[2]
            resolved = next((kind for kind in _KINDS if kind.__name__ == last), None)
        annotation = resolved
    return annotation if isinstance(annotation, type) and issubclass(annotation, _KINDS) else None


def _run(engine: Engine, function: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    record = _Record.of_this_attempt(function)
    with engine.connect() as connection, connection.begin() as transaction:
        if record is not None and not record.insert(connection):
            return record.result(connection)
        with _rejecting_commits(connection, function):
            if issubclass(function.kind, Connection):
                value = function.call(connection, args, kwargs)
            else:
                with function.kind(bind=connection) as session:
                    _reject_session_commit(session, function)
                    value = function.call(session, args, kwargs)
                    session.flush()
        _check_open(transaction.is_active, function)
        if record is not None:
            _check_transaction(connection, function)
            record.store(connection, value)
    return value


async def _run_async(
    engine: AsyncEngine, function: _Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    record = _Record.of_this_attempt(function)
    async with engine.connect() as connection, connection.begin() as transaction:
        if record is not None and not await connection.run_sync(record.insert):
            return await connection.run_sync(record.result)
        assert connection.sync_connection is not None
        with _rejecting_commits(connection.sync_connection, function):
            if issubclass(function.kind, AsyncConnection):
                value = await _awaited(function.call(connection, args, kwargs))
            else:
                async with function.kind(bind=connection) as session:
                    _reject_session_commit(session.sync_session, function)
                    value = await _awaited(function.call(session, args, kwargs))
                    await session.flush()
        _check_open(transaction.is_active, function)
        if record is not None:
            await connection.run_sync(_check_transaction, function)
            await connection.run_sync(record.store, value)
    return value


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


@contextmanager
def _rejecting_commits(connection: Connection, function: _Function) -> Iterator[None]:
    """Reject commits while the function runs, because the record has no result yet."""

    def reject(connection: Connection) -> None:
        # When a commit raises, SQLAlchemy considers the transaction ended. It would return the connection to the pool with
        # the transaction still open in the database, and the connection's next user would commit that transaction.
        connection.connection.rollback()
        raise _commits_itself(function)

    event.listen(connection, "commit", reject)
    try:
        yield
    except DeferredCompletion:
        raise _usage_error(
            f"{function.fn.__qualname__} calls activity.complete_async(): an activity that is completed from outside has no "
            "result to record in its transaction"
        ) from None
    finally:
        event.remove(connection, "commit", reject)


def _check_open(is_active: bool, function: _Function) -> None:
    if not is_active:
        raise _usage_error(
            f"{function.fn.__qualname__} rolls back its transaction, and with it the record of its result: raise an error "
            "instead, or use begin_nested()"
        )


def _driver_is_in_transaction(connection: Connection) -> bool:
    """Return whether a transaction is open, according to the driver or, if the driver does not report it, the database.

    SQLAlchemy's own state is not reliable, because a driver may be switched to autocommit without SQLAlchemy's knowledge: by
    `connect_args`, by a URL argument, or by a listener for `connect`.
    """
    driver: Any = connection.connection.driver_connection
    if hasattr(driver, "in_transaction"):  # sqlite3, aiosqlite
        return bool(driver.in_transaction)
    if hasattr(driver, "is_in_transaction"):  # asyncpg
        return bool(driver.is_in_transaction())
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    if status is not None:  # psycopg and psycopg2 return libpq's constants
        return int(status) == _IN_TRANSACTION
    try:
        connection.begin_nested().rollback()  # PostgreSQL rejects a savepoint outside a transaction
    except DBAPIError:
        return False
    return True


def _check_transaction(connection: Connection, function: _Function) -> None:
    """Raise if the function has ended its transaction without SQLAlchemy, e.g. by a COMMIT statement.

    An open transaction alone is no proof, because the function's next statement would have begun another one. But only the
    first transaction has the savepoint of `_Record.insert`.
    """
    try:
        connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
    except DBAPIError:
        raise _usage_error(
            f"{function.fn.__qualname__} ended its transaction, by a statement or through the driver, or continued after a "
            "statement that failed: its effect may be committed, and its result is not recorded. Leave commits and "
            "rollbacks to @transactional, and run statements that may fail in begin_nested()"
        ) from None


def _reject_session_commit(session: Session, function: _Function) -> None:
    """Reject `session.commit()`. It would have no effect, because the session joins our transaction."""

    def reject(session: Session) -> None:
        if not session.in_nested_transaction():
            raise _commits_itself(function)

    event.listen(session, "before_commit", reject)


def _commits_itself(function: _Function) -> ApplicationError:
    return _usage_error(
        f"{function.fn.__qualname__} commits its transaction: remove the commit. @transactional commits the transaction, "
        "together with the record, when the function returns"
    )


def _usage_error(message: str) -> ApplicationError:
    """Return a non-retryable error for a bug in the program, because the next attempt would fail in the same way."""
    return ApplicationError(message, type="UsageError", non_retryable=True)


_started_attempts: weakref.WeakSet[ActivityContext] = weakref.WeakSet()
"""The attempts that have begun their transaction."""


class _Record(NamedTuple):
    """The record of an activity. All attempts of the activity have the same key."""

    key: dict[str, str]
    activity_type: str
    return_type: Any
    equipment: Equipment

    @classmethod
    def of_this_attempt(cls, function: _Function) -> _Record | None:
        """Return the record for the current attempt, or None outside activities."""
        context = current.get()
        if context is None:
            return None
        info = context.info
        if info.is_local and info.activity_id.isdecimal():
            # As in Temporal's SDKs, the number of a local activity changes after a long pause between two attempts.
            raise _usage_error(
                f"activity {info.activity_type} is @transactional and was called as a local activity, whose id is not the "
                "same in all attempts: call it without .local, with .options(activity_id=…), or by workflow.step"
            )
        if context in _started_attempts:
            raise _usage_error(
                f"activity {info.activity_type} calls a second @transactional function, but an activity can record the "
                "result of only one. Do both in one function, or make each an activity"
            )
        _started_attempts.add(context)
        key = {
            "namespace": info.namespace,
            "workflow_id": info.workflow_id,
            "run_id": info.workflow_run_id,
            "activity_id": info.activity_id,
        }
        return cls(key, info.activity_type, function.signature.return_type, context.equipment)

    def insert(self, connection: Connection) -> bool:
        """Insert the record. Wait if another attempt has inserted it, and return False if that attempt has committed.

        A statement without effect begins the transaction before the insertion, because a driver in autocommit mode must not
        commit a record without a result. After the insertion, a savepoint marks the transaction for `_check_transaction`.
        """
        connection.execute(update(steps).where(false()).values(activity_type=self.activity_type))
        if not _driver_is_in_transaction(connection):
            raise _usage_error(
                "@transactional needs transactions, and the connections of this engine commit every statement by "
                "themselves (AUTOCOMMIT). Remove isolation_level='AUTOCOMMIT' from the engine, and isolation_level=None or "
                "autocommit=True from its connect_args, its URL and listeners to its connections"
            )
        insertion = _INSERTS[connection.dialect.name](steps).values(
            **self.key, activity_type=self.activity_type, recorded_at=now()
        )
        # Some drivers do not report the `rowcount` of an INSERT statement.
        inserted = insertion.on_conflict_do_nothing().returning(steps.c.activity_id)
        if connection.execute(inserted).first() is None:
            return False
        connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        return True

    def store(self, connection: Connection, value: Any) -> None:
        """Store the result in the record."""
        payload = self.equipment.converter.encode(value)
        # Check the worker's size limit here. If the check failed after the commit, the activity could never complete.
        check_size((payload,), self.equipment.payload_limit, f"the result of activity {self.activity_type}")
        connection.execute(
            update(steps).where(*self._conditions()).values(result=msgspec.json.encode(payload))
        )

    def result(self, connection: Connection) -> Any:
        """Return the result that an earlier attempt recorded."""
        row = connection.execute(select(steps.c.result).where(*self._conditions())).one_or_none()
        if row is None:
            raise ApplicationError(
                f"the record of activity {self.activity_type} was removed in the meantime",
                type="RecordRemoved",
            )
        if row.result is None:
            raise _usage_error(
                f"the record of activity {self.activity_type} was committed without a result, by a COMMIT inside the "
                "function: it is unknown whether its effect is complete. Check the effect, and delete the row of "
                "hourglass_steps to run the activity again"
            )
        return self.equipment.converter.decode(
            msgspec.json.decode(row.result, type=Payload), self.return_type
        )

    def _conditions(self) -> list[Any]:
        return [steps.c[name] == value for name, value in self.key.items()]
