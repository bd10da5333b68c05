"""Errors inside the engine affect only one run or one poll."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.polled import PolledEngine

from hourglass._contract.handle import HandleConfig
from hourglass._embedded.activations.cursor import Cursor
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.commands import Succeeded

from ..memory_world import World, settle, start_waiting, text

DONE = c.CompleteRun(text("done"))


class Bug(Exception):
    pass


def break_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, run_id: str = "") -> None:
    """Replace a method by one that raises on its first call, or on the first call for this run."""
    real = getattr(owner, name)
    broken: list[bool] = []

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not broken and (not run_id or self.run_id == run_id):
            broken.append(True)
            raise Bug
        return real(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, method)


async def test_error_after_a_completion_does_not_reject_the_completion(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run closes; then the search for more tasks raises."""

    caplog.set_level(logging.CRITICAL, "hourglass")
    await world.start()
    activation = await world.activation()
    poll = await start_waiting(world.handle.poll_activation())
    world.engine.queues.of("q").tasks.put("unknown run", 3)  # so that the poller searches for a task
    break_once(monkeypatch, type(world.engine.tasks), "take")
    assert world.handle.forgets(Succeeded(activation.run_id, (DONE,)))
    assert not world.has_out
    await settle()
    await world.start("another")
    assert isinstance((await poll).events[0], e.RunStarted)


async def test_error_of_one_poller_does_not_block_other_pollers(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "hourglass")
    second = PolledEngine(await world.connection.open_handle(HandleConfig(task_queue="q2", identity="other")))
    polls = [
        asyncio.ensure_future(world.handle.poll_activation()),
        asyncio.ensure_future(second.poll_activation()),
    ]
    await settle()
    break_once(monkeypatch, type(world.engine.tasks), "take")
    with world.engine.runs.transaction():
        first = await world.start("w1", task_queue="q2")
        other = await world.start("w2", task_queue="q")
    found = {(await poll).run_id for poll in polls}
    assert found == {first.run_id, other.run_id}


@pytest.mark.parametrize("method", ["next_activation", "step_over"])
async def test_run_with_unreadable_history_does_not_affect_other_runs(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    """The run is evicted and delivered again from its beginning."""

    caplog.set_level(logging.CRITICAL, "hourglass")
    started = await world.start("broken")
    await world.start("sound")
    break_once(monkeypatch, Cursor, method, started.run_id)
    evicted = closed = False
    while not (evicted and closed):
        activation = await world.activation()
        if isinstance(activation.events[0], e.RunEvicted):
            assert activation.run_id == started.run_id
            evicted = True
            await world.complete(activation.run_id)
        elif activation.run_id == started.run_id and not evicted:
            await world.complete(activation.run_id, c.StartTimer(1, 5_000_000_000))
        else:
            world.handle.forgets(Succeeded(activation.run_id, (DONE,)))
            closed = True
    if method == "step_over":
        world.clock.advance(6.0)
    again = await world.activation()
    assert again.run_id == started.run_id
    assert isinstance(again.events[0], e.RunStarted)
