"""Generated runs with updates: a worker that lost its cache sees what one that kept it saw, but for refusals."""

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


def is_refused(update_id: str) -> bool:
    """What a validator would say: it depends on the update alone."""
    return crc32(update_id.encode()) % 3 == 0


class Updated(Program):
    """Accepts or refuses by the id, and completes sooner or later."""

    def answer(self, activation: e.Activation) -> list[c.Command]:
        """A refusal is no reason for anything else."""
        asked = [event for event in activation.events if isinstance(event, e.UpdateReceived)]
        refusals: list[c.Command] = [
            c.RejectUpdate(each.id, app_failure("no")) for each in asked if is_refused(each.id)
        ]
        if len(refusals) == len(activation.events):
            return refusals
        accepted = [each.id for each in asked if not is_refused(each.id)]
        answers: list[c.Command] = [c.AcceptUpdate(update_id) for update_id in accepted]
        self.open_updates = [*getattr(self, "open_updates", []), *accepted]
        rng = Random(self.seed * 77 + self.activations)
        commands = super().answer(activation)
        for update_id in tuple(self.open_updates):
            if rng.random() < 0.5:
                self.open_updates.remove(update_id)
                end: c.Command = c.CompleteUpdate(update_id, text("r"))
                answers.append(end if rng.random() < 0.7 else c.RejectUpdate(update_id, app_failure("late")))
        return [*refusals, *answers, *commands]


class UpdatedLife(Life):
    """A run that is asked for updates."""

    def __init__(self, world: World, seed: int) -> None:
        super().__init__(world, seed)
        self.program = Updated(seed)
        self.asked: list[asyncio.Task[UpdateState]] = []

    async def work(self) -> None:
        """Answer what is there, now and then by failing."""
        while (activation := self.handle.stepper.next_activation()) is not None:
            if isinstance(activation.events[0], e.RunEvicted):
                self.evictions.append(activation.events[0].reason)
                await self.world.complete(activation.run_id)
                continue
            if isinstance(activation.events[0], e.RunStarted):
                self.program = Updated(self.seed)
            place = self.program.activations
            commands = self.program.answer(activation)
            if self.program.activations > place:
                self._compare_at(place, activation)
            if self.rng.random() < 0.15:
                await self.happen()
            if not activation.is_replaying and self.rng.random() < 0.1:
                await self.world.fail(activation.run_id)
            else:
                await self.world.complete(activation.run_id, *commands)

    def _compare_at(self, place: int, activation: e.Activation) -> None:
        batch = without_refused(activation)
        if activation.is_replaying:
            assert self.known[place] == batch
        else:
            self.known[place:] = [batch]

    async def happen(self) -> None:
        """Something happens to the run: often an update."""
        if self.rng.random() < 0.5:
            await super().happen()
        elif isinstance(await self.world.outcome(), StillOpen):
            request = UpdateWorkflow(
                workflow_id="w",
                update_id=f"u{self.rng.randint(0, 60)}",
                update_name="do",
                wait_stage=UpdateStage.COMPLETED,
            )
            self.asked.append(asyncio.ensure_future(self.world.call(request)))
            await asyncio.sleep(0)


def without_refused(activation: e.Activation) -> Batch:
    """What a replay must say again."""
    told: list[e.Event] = []
    for event in activation.events:
        if isinstance(event, e.UpdateReceived):
            if not is_refused(event.id):
                told.append(e.UpdateReceived(id=event.id, protocol_instance_id=event.id, name="do"))
        elif not isinstance(event, e.PatchNoticed):
            told.append(event)
    return tuple(told), activation.timestamp_ns, activation.history_length


@settings(max_examples=cases(30, 600), deadline=None)
@given(seed=st.integers(0, 10**6), cache=st.sampled_from([0, 1, 1000]))
def test_replay_equals_live_with_updates(seed: int, cache: int) -> None:
    """Events, order, times and lengths are the same; each accepted update is there once, no refused one ever is."""

    async def body() -> None:
        world = await World.new(max_cached_workflows=cache)
        life = UpdatedLife(world, seed)
        await life.live(60)
        assert "NONDETERMINISM" not in life.evictions
        record = world.connection.engine.current("w")
        assert record is not None
        accepted = [
            event.attributes.update_id
            for event in record.events
            if isinstance(event.attributes, u.WorkflowExecutionUpdateAccepted)
        ]
        assert len(accepted) == len(set(accepted))
        assert not any(map(is_refused, accepted))
        for each in life.asked:
            each.cancel()
        outcomes = await asyncio.gather(*life.asked, return_exceptions=True)
        unexpected = [
            each
            for each in outcomes
            if isinstance(each, BaseException)
            and not isinstance(each, (ServiceError, asyncio.CancelledError))
        ]
        assert not unexpected
        await world.close()

    run_async(body)
