"""Lost answers, and waits without a worker: what clients of a file receive."""

from __future__ import annotations

import logging
import queue
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.stores import memory_store

from embedded.memory_world import World
from hourglass import Client, Worker, activity, workflow
from hourglass._contract import activities as ac
from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._embedded.api import requests
from hourglass._embedded.api.answering import EngineClosed
from hourglass._embedded.engine import Engine
from hourglass._embedded.multiprocess import calls
from hourglass._evaluator.commands import Command, ContinueAsNew
from hourglass._evaluator.events import RunEvicted
from hourglass.client import _wait_notices
from hourglass.errors import ServiceError


def signal_request(request_id: str) -> wf.SignalWorkflow:
    return wf.SignalWorkflow(workflow_id="w", signal_name="tell", request_id=request_id)


async def continue_as_new(world: World) -> None:
    """Let the worker continue the run as new and evict the old run."""
    commands: list[Command] = [ContinueAsNew()]
    while commands:
        activation = await world.step(lambda _, new: [] if isinstance(new[0], RunEvicted) else commands)
        if not isinstance(activation.events[0], RunEvicted):
            commands = []


@pytest.mark.parametrize(("runs", "another_owner"), [(1, False), (3, False), (1, True)])
async def test_repeated_signal_request_is_delivered_once(runs: int, another_owner: bool) -> None:
    store = memory_store()
    world = await World.new(store=store)
    await world.start()
    await world.call(signal_request("lost"))
    for _ in range(runs):
        await continue_as_new(world)
    if another_owner:
        world = await World.new(store=store, opened=True)
    await world.call(signal_request("lost"))
    assert "WorkflowExecutionSignaled" not in world.kinds()
    await world.call(signal_request("another"))
    await world.call(signal_request("another"))
    assert world.kinds().count("WorkflowExecutionSignaled") == 1
    await world.close()


tokens: queue.SimpleQueue[bytes] = queue.SimpleQueue()


@activity.defn(heartbeat_timeout=None)
def completed_by_client() -> str:
    tokens.put(activity.info().task_token)
    activity.complete_async()


@workflow.defn
def awaits_client() -> str:
    return completed_by_client()


class _LosesFirstAnswer:
    def __init__(self, kind: type[s.Request[Any]]) -> None:
        self._kind = kind
        self.times = 0

    async def __call__(self, engine: Engine, request: s.Request[Any]) -> Any:
        answer = await requests.answer(engine, request)
        if isinstance(request, self._kind) and not self.times:
            self.times += 1
            raise EngineClosed("the answer is lost")
        return answer


def test_repeated_activity_completion_after_lost_answer_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = _LosesFirstAnswer(ac.CompleteActivity)
    monkeypatch.setattr(calls, "answer", cut)
    with (
        Client.connect(f"local:{tmp_path / 'orders.db'}") as client,
        Worker(client, workflows=[awaits_client], activities=[completed_by_client]),
    ):
        handle = client.start_workflow(awaits_client, id="w")
        token = tokens.get(timeout=30)
        client.get_activity_handle(token=token).complete("done")
        assert cut.times == 1
        assert handle.result(timeout=30) == "done"
        with pytest.raises(ServiceError) as caught:
            client.get_activity_handle(token=token).complete("again")
        assert caught.value.status == "NOT_FOUND"


def test_waiting_for_result_on_unserved_task_queue_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_wait_notices, "SILENCE", 0.01)
    with (
        Client.connect(f"local:{tmp_path / 'orders.db'}") as client,
        Worker(client, "served", workflows=[awaits_client], activities=[completed_by_client]),
        caplog.at_level(logging.WARNING, "hourglass"),
    ):
        handle = client.start_workflow(awaits_client, id="w", task_queue="nobody's")
        for _ in range(2):
            with pytest.raises(TimeoutError):
                handle.result(timeout=0.3)
    messages = [record.getMessage() for record in caplog.records if "no worker serves" in record.getMessage()]
    assert len(messages) == 1
    assert 'workflow w waits in task queue "nobody\'s"' in messages[0]
    assert "serves 'served'" in messages[0]
