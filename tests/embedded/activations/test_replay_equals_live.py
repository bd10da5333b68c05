"""Replay equals first execution: generated runs, evicted and failed at random."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import cases
from tests.specs import made

from hourglass._contract.handle import ActivityCancel, ActivityOk, ActivityTask, AttemptFailed
from hourglass._contract.workflows import CancelWorkflow, SignalWorkflow, StillOpen, WaitForClose
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.specs import RetryRule
from hourglass._history import events as h
from hourglass.workflow import ActivityCancellationType

from ..memory_world import World, app_failure, run_async, text

Batch = tuple[tuple[e.Event, ...], int, int]


@dataclass
class Program:
    """A deterministic workflow: its commands depend only on its seed and on the events so far."""

    seed: int
    activations: int = 0
    timers: int = 0
    activities: int = 0
    open_timers: list[int] = field(default_factory=list)
    open_activities: list[int] = field(default_factory=list)
    patches: set[str] = field(default_factory=set)
    batches: list[Batch] = field(default_factory=list)

    def answer(self, activation: e.Activation) -> list[c.Command]:
        for event in activation.events:
            self._apply(event)
        rng = Random(self.seed * 1000 + self.activations)
        self.activations += 1
        commands = [
            command for _ in range(rng.randint(0, 3)) for command in self._draw_commands(rng, activation)
        ]
        if rng.random() < 0.08:
            commands.insert(rng.randint(0, len(commands)), c.CompleteRun(text("end")))
        return commands

    def _apply(self, event: e.Event) -> None:
        match event:
            case e.TimerFired(seq):
                self.open_timers.remove(seq)
            case e.ActivityCompleted(seq) | e.ActivityFailed(seq) | e.ActivityCancelled(seq):
                self.open_activities.remove(seq)
            case e.PatchNoticed(patch_id):
                self.patches.add(patch_id)
            case _:
                pass

    def _draw_commands(self, rng: Random, activation: e.Activation) -> list[c.Command]:
        match rng.randint(0, 5):
            case 0 | 1:
                self.activities += 1
                self.open_activities.append(self.activities)
                return [_activity(self.activities, rng)]
            case 2:
                self.timers += 1
                self.open_timers.append(self.timers)
                return [c.StartTimer(self.timers, rng.randint(1, 20) * 10**9)]
            case 3 if self.open_timers:
                return [c.CancelTimer(self.open_timers.pop(rng.randrange(len(self.open_timers))))]
            case 4 if self.open_activities:
                return [c.RequestCancelActivity(rng.choice(self.open_activities))]
            case 5 if not activation.is_replaying or f"p{self.activations}" in self.patches:
                return [c.SetPatchMarker(f"p{self.activations}")]
            case _:
                return []


def _activity(seq: int, rng: Random) -> c.ScheduleActivity:
    return made(
        c.ScheduleActivity,
        seq=seq,
        activity_id=str(seq),
        activity_type=f"t{seq % 3}",
        start_to_close_timeout=5.0,
        retry_policy=RetryRule(maximum_attempts=rng.randint(1, 3)),
        cancellation_type=rng.choice(list(ActivityCancellationType)),
    )


def _batch(activation: e.Activation) -> Batch:
    # Replay announces patches ahead, which the first execution cannot: the one difference that Core has, too.
    events = tuple(event for event in activation.events if not isinstance(event, e.PatchNoticed))
    return events, activation.timestamp_ns, activation.history_length


class Life:
    """One run, its worker, and random events from outside."""

    program_type = Program
    disturbance = 0.15
    """The probability of an event from outside during a task."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.handle: EngineHandle = world.handle
        self.rng = Random(seed)
        self.seed = seed
        self.program = self.program_type(seed)
        self.known: list[Batch] = []
        self.attempts: list[ActivityTask] = []
        self.evictions: list[str] = []

    async def complete_tasks(self) -> None:
        """Complete the available workflow tasks; fail some of them at random."""
        while (activation := self.handle.stepper.next_activation()) is not None:
            if isinstance(activation.events[0], e.RunEvicted):
                self.evictions.append(activation.events[0].reason)
                await self.world.complete(activation.run_id)
                continue
            if isinstance(activation.events[0], e.RunStarted):
                self.program = self.program_type(self.seed)
            place = self.program.activations
            commands = self.program.answer(activation)
            if self.program.activations > place:
                self._compare(place, self.batch_of(activation), activation.is_replaying)
            if self.rng.random() < self.disturbance:
                await self.apply_random_event()
            if not activation.is_replaying and self.rng.random() < 0.1:
                await self.world.fail(activation.run_id)
            else:
                await self.world.complete(activation.run_id, *commands)

    def batch_of(self, activation: e.Activation) -> Batch:
        """Return the part of an activation that a replay must repeat."""
        return _batch(activation)

    def _compare(self, place: int, batch: Batch, is_replaying: bool) -> None:
        if is_replaying:
            assert self.known[place] == batch
        else:
            self.known[place:] = [batch]

    async def apply_random_event(self) -> None:
        match self.rng.randint(0, 6):
            case 0:
                self.world.clock.advance(self.rng.randint(0, 8))
            case 1:
                signal = SignalWorkflow(workflow_id="w", signal_name="s", request_id="")
                if isinstance(await self.world.outcome(), StillOpen):
                    await self.world.call(signal)
            case 2:
                self.handle.request_eviction(self.run_id)
            case 3:
                await self.world.call(CancelWorkflow(workflow_id="w", request_id=""))
            case _:
                await self._complete_random_attempt()

    async def _complete_random_attempt(self) -> None:
        while (item := self.handle.stepper.next_activity()) is not None:
            if isinstance(item, ActivityCancel):
                continue
            self.attempts.append(item)
        if self.attempts:
            task = self.attempts.pop(self.rng.randrange(len(self.attempts)))
            failed = self.rng.random() < 0.3
            end = (
                AttemptFailed(task.token, app_failure("no")) if failed else ActivityOk(task.token, text("r"))
            )
            await self.handle.complete_activity(end)

    async def live(self, steps: int) -> None:
        self.run_id = (await self.world.start()).run_id
        for _ in range(steps):
            await self.complete_tasks()
            await self.apply_random_event()
            await asyncio.sleep(0)
        await self.complete_tasks()


@settings(max_examples=cases(50, 1000), deadline=None)
@given(seed=st.integers(0, 10**6), cache=st.sampled_from([0, 1, 1000]))
def test_replayed_activations_equal_the_live_ones(seed: int, cache: int) -> None:
    """Events, their order, times and history lengths are compared."""

    async def body() -> None:
        world = await World.new(max_cached_workflows=cache)
        life = Life(world, seed)
        await life.live(60)
        assert set(life.evictions) <= {
            "LANG_FAIL",
            "LANG_REQUESTED",
            "CACHE_FULL",
            "UNHANDLED_COMMAND",
            "TASK_NOT_FOUND",
            "WORKFLOW_EXECUTION_ENDING",
        }
        record = world.record()
        assert [event.id for event in record.events] == list(range(1, len(record.events) + 1))
        # The start event of an attempt is written when it ends, with the time of its start.
        times = [
            event.time_ns
            for event in record.events
            if not isinstance(event.attributes, h.ActivityTaskStarted)
        ]
        assert times == sorted(times)
        if not record.run.is_open:
            assert not isinstance(await world.call(WaitForClose(workflow_id="w")), StillOpen)
            assert (record.run.activities, record.run.timers, record.run.task) == ({}, {}, None)

    run_async(body)
