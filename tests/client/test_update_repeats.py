"""Update requests are repeated until a worker has accepted the update: an engine that restarted does not know it any
more.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

from tests.specs import made

from hourglass._contract.workflows import (
    PollUpdate,
    Started,
    StartWorkflow,
    UpdateStage,
    UpdateStarted,
    UpdateState,
    UpdateWithStart,
    UpdateWorkflow,
)
from hourglass.client import _updates
from hourglass.client._link import WaitList
from hourglass.client._operations import Reference
from hourglass.client._session import ClientSession
from hourglass.converter import Converter

STAGES = (UpdateStage.UNSPECIFIED, UpdateStage.ADMITTED, UpdateStage.ACCEPTED, UpdateStage.COMPLETED)


class SlowEngine:
    """A session whose engine reaches the next update stage with every call."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def session(self) -> ClientSession:
        session = SimpleNamespace(
            call=self.call,
            converter=Converter(),
            identity="me",
            interceptors=(),
            contextual=False,
            link=SimpleNamespace(requested_updates={}, waits=WaitList()),
            within=lambda _: nullcontext(),
        )
        session.of_workflow = lambda _: session
        return cast(ClientSession, session)

    async def call(self, request: Any) -> Any:
        self.requests.append(request)
        state = UpdateState(
            update_id="u", workflow_id="w", run_id="r", stage=STAGES[min(len(self.requests), 4) - 1]
        )
        return UpdateStarted(Started("r"), state) if isinstance(request, UpdateWithStart) else state


def test_update_request_is_repeated_until_accepted() -> None:
    engine = SlowEngine()
    session = engine.session()
    operation = _updates.start(session, Reference("w"), "do", (), {"id": "u"}, UpdateStage.COMPLETED)
    state = asyncio.run(cast(Any, operation.ask(session)))
    assert state.stage is UpdateStage.COMPLETED
    assert [type(each) for each in engine.requests] == [UpdateWorkflow] * 3 + [PollUpdate]
    assert engine.requests[0] == engine.requests[1] == engine.requests[2]


def test_update_with_start_is_repeated_with_one_request_id() -> None:
    engine = SlowEngine()
    session = engine.session()
    start = made(StartWorkflow, workflow_id="w", workflow_type="W", task_queue="q", request_id="once")
    update = UpdateWorkflow(workflow_id="w", update_id="u", update_name="do")
    operation = _updates.start_with_start(start, update, Any, UpdateStage.ACCEPTED)
    answer = asyncio.run(cast(Any, operation.ask(session)))
    assert answer.update.stage is UpdateStage.ACCEPTED
    assert [type(each) for each in engine.requests] == [UpdateWithStart] * 3
    assert {each.start.request_id for each in engine.requests} == {"once"}
