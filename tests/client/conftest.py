"""A fake service that answers from dictionaries, and fixtures that run each test with the blocking and the
asynchronous client.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from hourglass._contract import activities as ac
from hourglass._contract import deployments as dp
from hourglass._contract import service as sv
from hourglass._contract import workflows as wf
from hourglass._worker.portal import Portal
from hourglass.client import AsyncClient, Client
from hourglass.client._link import Link
from hourglass.client._session import ClientSession
from hourglass.converter import Codec, Converter, Payload, default_converter
from hourglass.errors import WorkflowAlreadyStartedError, WorkflowNotFoundError


class FakeConnection:
    """A connection that answers requests from dictionaries and records them."""

    target = "fake:1"
    namespace = "default"
    identity = "tester"

    def __init__(self) -> None:
        self.requests: list[sv.Request[Any]] = []
        self.runs: dict[str, wf.WorkflowSummary] = {}
        self.outcomes: dict[str, list[wf.Outcome | Exception]] = {}
        self.answers: dict[str, tuple[Payload, ...]] = {}
        self.history: tuple[bytes, ...] = ()
        self.task_attempt = 1
        self.closed = 0
        self._numbers = itertools.count(1)

    def add(self, workflow_id: str, **fields: Any) -> str:
        run_id = f"run-{next(self._numbers)}"
        fields = {"status": wf.WorkflowStatus.RUNNING, "workflow_type": "wf", **fields}
        self.runs[workflow_id] = wf.WorkflowSummary(workflow_id=workflow_id, run_id=run_id, **fields)
        return run_id

    def find(self, workflow_id: str) -> wf.WorkflowSummary:
        if workflow_id not in self.runs:
            raise WorkflowNotFoundError(f"no workflow {workflow_id!r}", status="NOT_FOUND")
        return self.runs[workflow_id]

    def last(self, kind: type[Any]) -> Any:
        return next(request for request in reversed(self.requests) if isinstance(request, kind))

    async def call(self, request: Any) -> Any:
        self.requests.append(request)
        match request:
            case wf.StartWorkflow():
                return self._start(request)
            case wf.ExecuteWorkflow(start=start):
                run_id = self._start(start).run_id
                return wf.Executed(run_id, wf.StillOpen(run_id))
            case wf.WaitForClose():
                return await self._wait(request)
            case wf.ListWorkflows():
                return self._list(request)
            case wf.CountWorkflows():
                return wf.Count(len(self.runs))
            case ac.CompleteActivity():
                return sv.Nothing()
            case dp.GetPollers():
                return dp.Pollers((dp.Poller(identity="a worker"),))
            case ac.HeartbeatActivity():
                return ac.HeartbeatAnswer(cancel_requested=request.activity_id == "stop")
        summary = self.find(request.workflow_id)
        match request:
            case wf.QueryWorkflow():
                return wf.QueryAnswer(self.answers.get(request.query_name, ()))
            case wf.DescribeWorkflow():
                return wf.Description(summary=summary, task_attempt=self.task_attempt)
            case wf.GetHistory():
                position = int(request.next_page_token or b"0")
                more = str(position + 1).encode() if position + 1 < len(self.history) else b""
                return wf.HistoryPage(self.history[position : position + 1], more)
        return sv.Nothing()

    def _start(self, request: wf.StartWorkflow) -> wf.Started:
        if request.workflow_id in self.runs:
            existing = self.runs[request.workflow_id].run_id
            if request.id_conflict_policy == wf.IdConflictPolicy.USE_EXISTING:
                return wf.Started(existing, started=False)
            raise WorkflowAlreadyStartedError(
                "already started", workflow_id=request.workflow_id, run_id=existing
            )
        return wf.Started(self.add(request.workflow_id, workflow_type=request.workflow_type))

    async def _wait(self, request: wf.WaitForClose) -> wf.Outcome:
        run_id = request.run_id or self.find(request.workflow_id).run_id
        scripted = self.outcomes.get(run_id, [])
        if not scripted:
            await asyncio.Event().wait()
        outcome = scripted.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _list(self, request: wf.ListWorkflows) -> wf.Page:
        start = int(request.next_page_token or b"0")
        stop = start + request.page_size
        more = str(stop).encode() if stop < len(self.runs) else b""
        return wf.Page(tuple(self.runs.values())[start:stop], more)

    async def open_handle(self, config: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        self.closed += 1


class Face:
    """The blocking or the asynchronous client: creates it, and waits for the results of its methods."""

    def __init__(self, kind: type[Client] | type[AsyncClient]) -> None:
        self.kind = kind

    def client(
        self,
        connection: FakeConnection,
        converter: Converter = default_converter,
        codec: Codec | None = None,
    ) -> Any:
        return self.kind(ClientSession(Link(Portal.current(), connection), converter, codec))

    def do(self, value: Any) -> Any:
        if inspect.isawaitable(value):
            return asyncio.run(_awaited(value))
        return value

    def collect(self, values: Iterator[Any] | AsyncIterator[Any]) -> list[Any]:
        if isinstance(values, AsyncIterator):
            return asyncio.run(_collected(values))
        return list(values)


async def _awaited(value: Any) -> Any:
    return await value


async def _collected(values: AsyncIterator[Any]) -> list[Any]:
    return [value async for value in values]


@pytest.fixture
def connection() -> FakeConnection:
    return FakeConnection()


@pytest.fixture(params=[Client, AsyncClient], ids=["blocking", "async"])
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


@pytest.fixture
def client(face: Face, connection: FakeConnection) -> Iterator[Any]:
    made = face.client(connection)
    yield made
    face.do(made.close())


@pytest.fixture
def do(face: Face) -> Callable[[Any], Any]:
    """Return a function that waits for a client method's result, on an event loop if the client is asynchronous."""
    return face.do
