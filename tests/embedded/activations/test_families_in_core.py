"""Generated families of workflows: run on the embedded engine and replayed by Core, with equal activations."""

from __future__ import annotations

import pytest

from hourglass._contract.handle import Shutdown
from hourglass._contract.workflows import GetHistory
from hourglass._embedded.runs.run import LoadedRun
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._history import events as h
from hourglass._temporal.handle import ReplayHandle
from hourglass.replay import History

from ..families import Batch, Family, Member
from ..memory_world import World

SEEDS = 40


async def replay(handle: ReplayHandle, member: Member) -> tuple[list[Batch], e.RunEvicted]:
    """Replay one run. Return the batches of events that Core delivered, and its eviction."""
    batches: list[Batch] = []
    while True:
        activation = await handle.next_activation()
        first = activation.events[0]
        if isinstance(first, e.RunEvicted):
            await handle.complete(c.Succeeded(activation.run_id))
            return batches, first
        batches.append((activation.events, activation.timestamp_ns, activation.history_length))
        await handle.complete(c.Succeeded(activation.run_id, tuple(member.answer(activation))))


@pytest.mark.parametrize("part", range(4))
async def test_core_replays_generated_parents_and_children(part: int) -> None:
    handle = ReplayHandle()
    kinds: set[type[e.Event]] = set()
    for seed in range(part * SEEDS // 4, (part + 1) * SEEDS // 4):
        world = await World.new(max_cached_workflows=(0, 1000)[seed % 2])
        family = Family(world, seed)
        await world.start()
        await family.live(20)
        for record in list(world.engine.runs.records()):
            if not any(isinstance(event.attributes, h.WorkflowTaskCompleted) for event in record.events):
                continue
            run = record.run
            history = GetHistory(workflow_id=run.started.workflow_id, run_id=run.run_id)
            recorded = History.from_events("w", (await world.call(history)).events)
            await handle.push(run.started.workflow_id, recorded.replayable)
            batches, verdict = await replay(handle, Member(seed))
            assert verdict.reason in ("WORKFLOW_EXECUTION_ENDING", "CACHE_FULL", "LANG_REQUESTED"), verdict
            batches = batches[: _settled(record, batches)]
            assert _without_start(batches) == _without_start(family.known[run.run_id][: len(batches)])
            kinds.update(type(event) for events, _, _ in batches for event in events)
        await world.close()
    assert {e.ChildStarted, e.ChildStartFailed, e.ExternalCancelResolved} <= kinds
    handle.initiate_shutdown()
    with pytest.raises(Shutdown):
        await handle.next_activation()
    await handle.finalize()


def _settled(record: LoadedRun, batches: list[Batch]) -> int:
    """Return how many batches count: at the end of an open run's history Core delivers events that no task has
    delivered yet.
    """
    if not record.run.is_open:
        return len(batches)
    started = [
        event.attributes.started_event_id
        for event in record.events
        if isinstance(event.attributes, h.WorkflowTaskCompleted)
    ]
    return sum(length < started[-1] for _, _, length in batches)


def _without_start(batches: list[Batch]) -> list[Batch]:
    """Remove the start event, whose task queue differs in replay."""
    return [
        (tuple(event for event in events if not isinstance(event, e.RunStarted)), at, length)
        for events, at, length in batches
    ]
