"""What all handlers of requests share: the run that is meant, the answer, the wait for something to happen.

Must not know: any request, but that a query waits for a worker. Long polls end after `LONG_POLL` seconds of real
time, whatever the engine's clock says: they are about patience, not about workflows. Invariants: an answer names the
change that it rests on; whoever waits holds on to the record.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from hourglass._bridge.service import QueryWorkflow, Request
from hourglass._embedded.running.engine import Engine
from hourglass._embedded.running.record import Record
from hourglass._embedded.timing.bell import Bell
from hourglass.errors import ServiceTimeoutError, WorkflowNotFoundError

LONG_POLL = 20.0
QUERY_TIMEOUT = 30.0
"""How long a query waits for a worker where its asker set no limit, in seconds: as long as on a server."""

A = TypeVar("A")


class Answer(NamedTuple, Generic[A]):
    """An answer, and the number of the change that it rests on."""

    value: A
    rests_on: int


def limit_of(request: Request[Any]) -> float | None:
    """How long the asker waits for an answer, in seconds; None: as long as it takes."""
    if request.rpc_timeout is None and isinstance(request, QueryWorkflow):
        return QUERY_TIMEOUT
    return request.rpc_timeout


def too_late(request: Request[Any], limit: float) -> ServiceTimeoutError:
    """The error for a request that was not answered in time."""
    hint = ""
    if isinstance(request, QueryWorkflow):
        hint = ". A query is answered by a worker: does one run on the workflow's task queue?"
    return ServiceTimeoutError(
        f"{type(request).__name__} was not answered within {limit:g} s{hint}", status="DEADLINE_EXCEEDED"
    )


def find(engine: Engine, workflow_id: str, run_id: str = "", first_run_id: str = "") -> Record:
    """The run that a request names; raises `WorkflowNotFoundError`."""
    record = engine.record(run_id) if run_id else engine.current(workflow_id)
    if record is None or record.run.started.workflow_id != workflow_id:
        raise WorkflowNotFoundError(f"workflow not found for ID: {workflow_id}", status="NOT_FOUND")
    if first_run_id and record.run.started.first_run_id != first_run_id:
        raise WorkflowNotFoundError(
            f"workflow not found for ID: {workflow_id} with first run {first_run_id}", status="NOT_FOUND"
        )
    return record


def check_open(record: Record) -> None:
    """Raise `WorkflowNotFoundError` for a run that has closed."""
    if not record.run.is_open:
        raise WorkflowNotFoundError("workflow execution already completed", status="NOT_FOUND")


@contextlib.contextmanager
def holding(engine: Engine, record: Record) -> Iterator[None]:
    """Hold on to a record."""
    engine.runs.hold(record)
    try:
        yield
    finally:
        engine.runs.let_go(record)


async def wait(
    engine: Engine, record: Record, bell: Bell, done: Callable[[], bool], limit: float | None
) -> None:
    """Wait until it is done, or until patience ends. An engine that has failed is said by whoever answers."""
    if done() or engine.is_over:
        return
    loop, patience = asyncio.get_running_loop(), _Patience(bell)
    timer = loop.call_later(LONG_POLL if limit is None else min(limit, LONG_POLL), patience.end)
    engine.runs.hold(record)
    try:
        while not done() and not engine.is_over and not patience.is_over:
            await bell.wait()
    finally:
        engine.runs.let_go(record)
        timer.cancel()


class _Patience:
    """Ends by a ring of the bell that is waited for, which costs less than a time limit around the wait: others who wait
    for the bell look, and wait on.
    """

    def __init__(self, bell: Bell) -> None:
        self.is_over = False
        self._bell = bell

    def end(self) -> None:
        """Wait no more."""
        self.is_over = True
        self._bell.ring()
