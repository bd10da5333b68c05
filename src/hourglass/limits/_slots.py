"""`limits.slot`, at most so many of one key at a time, and `hourglass.slots`, the workflow that keeps the slots.

There is one keeper for each key in use. It hands slots out in the order of asking, by a signal. A holder that ends in
the ordinary way gives its slot back; one that was terminated, or timed out, cannot. So while a run waits for a slot
the keeper looks after the holders, ever more seldom: it tells each once more that it has its slot, which reaches no
run that has closed. The keeper ends when no run has used the key for a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hourglass import workflow
from hourglass._engine.fibers import require_fiber
from hourglass._engine.options import Duration, seconds
from hourglass._engine.versions import VersioningBehavior
from hourglass.errors import Cancelled, UsageError
from hourglass.limits._keepers import (
    SlotClaim,
    SlotTable,
    ask,
    asked,
    given_back,
    granted,
    is_long,
    keeper_id,
    replies_of_run,
    tell,
    unreachable,
    wait_for_answer,
)

# --- the keeper -----------------------------------------------------------------------------------


_LINGER = 60.0
_LONGEST_PAUSE = 120.0
_HOUSEKEEPING = 86_400.0


@dataclass(frozen=True)
class Ask:
    """A run wants a slot; `notice` is how soon a holder that is gone shall be noticed, in seconds."""

    place: SlotClaim
    limit: int
    notice: float


@dataclass(frozen=True)
class Slots:
    """What a run of the keeper begins with."""

    places: SlotTable = field(default_factory=SlotTable)
    notice: float = 10.0


def first_slots(ask: Ask) -> Slots:
    """What a keeper begins with that is started by the first run that asks."""
    return Slots(asked(SlotTable(), ask.place, ask.limit), ask.notice)


@workflow.defn(name="hourglass.slots", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class SlotKeeper:
    """Keeps the slots of one key."""

    @workflow.init
    def __init__(self, slots: Slots) -> None:
        self.places = slots.places
        self.notice = slots.notice
        self.pause = slots.notice
        self.look_at = workflow.time() + slots.notice
        self.messages = 0
        self.changed = False

    @workflow.signal
    def ask(self, ask: Ask) -> None:
        """A run wants a slot."""
        self.places = asked(self.places, ask.place, ask.limit)
        self.notice = ask.notice
        self._heard()

    @workflow.signal
    def give_back(self, ticket: str) -> None:
        """A run gives its slot, or its place in the queue, back."""
        self.places = given_back(self.places, {ticket})
        self._heard()

    @workflow.query
    def slots(self) -> SlotTable:
        """Which runs hold a slot, and which wait."""
        return self.places

    @workflow.run
    def run(self, slots: Slots) -> None:
        """Keep the slots until no run uses them."""
        while True:
            try:
                if not self._serve():
                    return
            except Cancelled:
                # The runs that wait would never hear of it. To be rid of a keeper, terminate it.
                workflow.logger.warning("a keeper of slots does not cancel: others wait for it")

    def _heard(self) -> None:
        self.messages += 1
        self.changed = True

    def _serve(self) -> bool:
        """One round: hand out what is free, then wait for news. False if there is nothing to keep."""
        self.changed = False
        self.places, lucky = granted(self.places)
        if lucky:
            self._look_within(self.notice)
            self._drop(unreachable([(place, None) for place in lucky]))
        if is_long(self.messages):
            workflow.continue_as_new(Slots(self.places, self.notice))
        if self.changed:
            return True
        try:
            workflow.wait_condition(lambda: self.changed, timeout=self._patience())
        except TimeoutError:
            if self.places.is_idle:
                return False
            self._look_after()
        return True

    def _patience(self) -> float:
        if self.places.waiting:
            return max(0.0, self.look_at - workflow.time())
        return _LINGER if self.places.is_idle else _HOUSEKEEPING

    def _look_within(self, pause: float) -> None:
        # A moment, not a pause: runs that ask meanwhile must not put it off.
        self.pause = pause
        self.look_at = min(self.look_at, workflow.time() + pause)

    def _look_after(self) -> None:
        """Find holders that are gone; where all are there, look again later than the last time."""
        self.pause = min(2 * self.pause, max(_LONGEST_PAUSE, self.notice))
        self.look_at = workflow.time() + self.pause
        self._drop(unreachable([(place, None) for place in self.places.held]))

    def _drop(self, gone: list[SlotClaim]) -> None:
        if gone:
            self.places = given_back(self.places, {place.ticket for place in gone})
            self.changed = True


# --- slot -----------------------------------------------------------------------------------------


@contextmanager
def slot(
    key: str,
    limit: int = 1,
    *,
    timeout: Duration | None = None,
    notice: Duration = 10.0,
    task_queue: str = "",
) -> Iterator[None]:
    """Hold one of a key's slots for a block: `with limits.slot("customer-42", limit=2): charge(…)`. In workflows only.

    At most `limit` blocks of the same key are entered at a time, in all workflows of the target together; the others
    wait, first come first served. A block that waits longer than `timeout` gets `TimeoutError`; one that is cancelled
    gives its place back. A run that ends any other way than through its own code (terminated, timed out) loses its
    slot: within `notice` once another run waits for it, later where holders have been looked after for a while.

    The slots are kept by a small workflow of their own, on the task queue of the first run that asks or on
    `task_queue`; any worker there serves it.
    """
    keeper = keeper_id("slots", key)
    if not isinstance(limit, int) or limit < 1:
        raise UsageError(f"the limit of a slot must be a number of at least 1, not {limit!r:.40}")
    replies, fiber = replies_of_run("limits.slot"), require_fiber("limits.slot")
    mine = (fiber.path, key)
    if mine in replies.inside:
        raise UsageError(
            f"a slot of {key!r} is asked for inside a block that holds one: with limit={limit} it may wait for itself for ever"
        )
    deadline = None if timeout is None else workflow.time() + _positive(timeout, "timeout")
    info, ticket = workflow.info(), replies.draw()
    question = Ask(SlotClaim(ticket, info.workflow_id, info.run_id), limit, _positive(notice, "notice"))
    replies.inside.add(mine)

    def ask_for_it() -> None:
        ask(keeper, SlotKeeper.run, SlotKeeper.ask, question, first_slots(question), task_queue)

    try:
        ask_for_it()
        if not wait_for_answer(replies, ticket, deadline, ask_for_it, f"a slot of {key!r}"):
            raise TimeoutError(f"there was no free slot of {key!r} in time; {limit} at a time are allowed")
        yield
    finally:
        replies.inside.discard(mine)
        tell(keeper, SlotKeeper.give_back, ticket)
        replies.forget(ticket)


def _positive(duration: Duration, name: str) -> float:
    value = seconds(duration, f"the {name} of a slot")
    if value <= 0:
        raise UsageError(f"the {name} of a slot must be longer than nothing")
    return value
