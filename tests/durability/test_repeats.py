"""Answers that are lost, and waits that nobody would end: what clients of a file are told."""

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


def tell(request_id: str) -> wf.SignalWorkflow:
    return wf.SignalWorkflow(workflow_id="w", signal_name="tell", request_id=request_id)


async def continue_as_new(world: World) -> None:
    """The worker continues the run as another, and forgets the one that was."""
    commands: list[Command] = [ContinueAsNew()]
    while commands:
        activation = await world.step(lambda _, new: [] if isinstance(new[0], RunEvicted) else commands)
        if not isinstance(activation.events[0], RunEvicted):
            commands = []


@pytest.mark.parametrize(("runs", "another_owner"), [(1, False), (3, False), (1, True)])
async def test_repeated_signal_counts_once(runs: int, another_owner: bool) -> None:
    """A signal that arrived before its workflow continued as new is not given to the new run again; another one is."""

    store = memory_store()
    world = await World.new(store=store)
    await world.start()
    await world.call(tell("lost"))
    for _ in range(runs):
        await continue_as_new(world)
    if another_owner:
        world = await World.new(store=store, opened=True)
    await world.call(tell("lost"))
    assert "WorkflowExecutionSignaled" not in world.kinds()
    await world.call(tell("another"))
    await world.call(tell("another"))
    assert world.kinds().count("WorkflowExecutionSignaled") == 1
    await world.close()


tokens: queue.SimpleQueue[bytes] = queue.SimpleQueue()


@activity.defn(heartbeat_timeout=None)
def elsewhere() -> str:
    tokens.put(activity.info().task_token)
    activity.complete_async()


@workflow.defn
def waits_for_elsewhere() -> str:
    return elsewhere()


class _Cut:
    """Loses the answer to one request, which was carried out, as if the engine had closed."""

    def __init__(self, kind: type[s.Request[Any]]) -> None:
        self._kind = kind
        self.times = 0

    async def __call__(self, engine: Engine, request: s.Request[Any]) -> Any:
        answer = await requests.answer(engine, request)
        if isinstance(request, self._kind) and not self.times:
            self.times += 1
            raise EngineClosed("the answer is lost")
        return answer


def test_repeated_activity_completion_is_accepted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A completion whose answer was lost is sent again, finds the attempt ended, and is content; a second one is not."""
    cut = _Cut(ac.CompleteActivity)
    monkeypatch.setattr(calls, "answer", cut)
    with (
        Client.connect(f"local:{tmp_path / 'orders.db'}") as client,
        Worker(client, workflows=[waits_for_elsewhere], activities=[elsewhere]),
    ):
        handle = client.start_workflow(waits_for_elsewhere, id="w")
        token = tokens.get(timeout=30)
        client.get_activity_handle(token=token).complete("done")
        assert cut.times == 1
        assert handle.result(timeout=30) == "done"
        with pytest.raises(ServiceError) as caught:
            client.get_activity_handle(token=token).complete("again")
        assert caught.value.status == "NOT_FOUND"


def test_waiting_on_an_unserved_queue_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever waits for a workflow in a queue that no worker serves is told, once, and which queues are served."""
    monkeypatch.setattr(_wait_notices, "SILENCE", 0.01)
    with (
        Client.connect(f"local:{tmp_path / 'orders.db'}") as client,
        Worker(client, "served", workflows=[waits_for_elsewhere], activities=[elsewhere]),
        caplog.at_level(logging.WARNING, "hourglass"),
    ):
        handle = client.start_workflow(waits_for_elsewhere, id="w", task_queue="nobody's")
        for _ in range(2):
            with pytest.raises(TimeoutError):
                handle.result(timeout=0.3)
    said = [each.getMessage() for each in caplog.records if "no worker serves" in each.getMessage()]
    assert len(said) == 1
    assert 'workflow w waits in task queue "nobody\'s"' in said[0]
    assert "serves 'served'" in said[0]
