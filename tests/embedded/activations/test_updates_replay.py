"""Replay equals first execution for generated runs with updates, except that rejected updates are not replayed."""

from __future__ import annotations

import asyncio
from random import Random
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import cases

from hourglass._contract.workflows import StillOpen, UpdateStage, UpdateState, UpdateWorkflow
from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._history import events as u
from hourglass.errors import ServiceError

from ..memory_world import World, app_failure, run_async, text
from .test_replay_equals_live import Batch, Life, Program


def is_rejected(update_id: str) -> bool:
    """Return the decision of the validator, which depends only on the update id."""
    return crc32(update_id.encode()) % 3 == 0


class Updated(Program):
    """Accepts or rejects updates by their ids, and completes accepted ones at random."""

    def answer(self, activation: e.Activation) -> list[c.Command]:
        """Return only rejections if all events are rejected updates: these cause no other commands."""
        updates = [event for event in activation.events if isinstance(event, e.UpdateReceived)]
        rejections: list[c.Command] = [
            c.RejectUpdate(update.id, app_failure("no")) for update in updates if is_rejected(update.id)
        ]
        if len(rejections) == len(activation.events):
            return rejections
        accepted = [call.id for call in updates if not is_rejected(call.id)]
        answers: list[c.Command] = [c.AcceptUpdate(update_id) for update_id in accepted]
        self.open_updates = [*getattr(self, "open_updates", []), *accepted]
        rng = Random(self.seed * 77 + self.activations)
        commands = super().answer(activation)
        for update_id in tuple(self.open_updates):
            if rng.random() < 0.5:
                self.open_updates.remove(update_id)
                end: c.Command = c.CompleteUpdate(update_id, text("r"))
                answers.append(end if rng.random() < 0.7 else c.RejectUpdate(update_id, app_failure("late")))
        return [*rejections, *answers, *commands]


class UpdatedLife(Life):
    """A run that receives updates."""

    program_type = Updated

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.update_calls: list[asyncio.Task[UpdateState]] = []

    def batch_of(self, activation: e.Activation) -> Batch:
        return without_rejected(activation)

    async def apply_random_event(self) -> None:
        """Send an update in half of the cases."""
        if self.rng.random() < 0.5:
            await super().apply_random_event()
        elif isinstance(await self.world.outcome(), StillOpen):
            request = UpdateWorkflow(
                workflow_id="w",
                update_id=f"u{self.rng.randint(0, 60)}",
                update_name="do",
                wait_stage=UpdateStage.COMPLETED,
            )
            self.update_calls.append(asyncio.ensure_future(self.world.call(request)))
            await asyncio.sleep(0)


def without_rejected(activation: e.Activation) -> Batch:
    """Return the events that a replay must repeat."""
    events: list[e.Event] = []
    for event in activation.events:
        if isinstance(event, e.UpdateReceived):
            if not is_rejected(event.id):
                events.append(e.UpdateReceived(id=event.id, protocol_instance_id=event.id, name="do"))
        elif not isinstance(event, e.PatchNoticed):
            events.append(event)
    return tuple(events), activation.timestamp_ns, activation.history_length


@settings(max_examples=cases(30, 600), deadline=None)
@given(seed=st.integers(0, 10**6), cache=st.sampled_from([0, 1, 1000]))
def test_replayed_activations_with_updates_equal_the_live_ones(seed: int, cache: int) -> None:
    """Each accepted update is in the history once, rejected ones never."""

    async def body() -> None:
        world = await World.new(max_cached_workflows=cache)
        life = UpdatedLife(world, seed)
        await life.live(60)
        assert "NONDETERMINISM" not in life.evictions
        record = world.record()
        accepted = [
            event.attributes.update_id
            for event in record.events
            if isinstance(event.attributes, u.WorkflowExecutionUpdateAccepted)
        ]
        assert len(accepted) == len(set(accepted))
        assert not any(map(is_rejected, accepted))
        for call in life.update_calls:
            call.cancel()
        outcomes = await asyncio.gather(*life.update_calls, return_exceptions=True)
        unexpected = [
            call
            for call in outcomes
            if isinstance(call, BaseException)
            and not isinstance(call, (ServiceError, asyncio.CancelledError))
        ]
        assert not unexpected

    run_async(body)
