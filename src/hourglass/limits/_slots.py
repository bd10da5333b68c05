"""`hourglass.slots`: the workflow that keeps the slots of one key. There is one for each key in use.

It hands slots out in the order of asking, by a signal. A holder that ends in the ordinary way gives its slot back; one
that was terminated, or timed out, cannot. So while somebody waits the keeper looks after the holders, ever more seldom: it
tells each once more that it has its slot, which reaches no run that has closed. It ends when nobody has used the key
for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hourglass import workflow
from hourglass._engine.versions import VersioningBehavior
from hourglass.errors import Cancelled
from hourglass.limits._places import Place, Places, asked, given_back, granted
from hourglass.limits._reaching import is_long, unreachable

_LINGER = 60.0
_LONGEST_PAUSE = 120.0
_HOUSEKEEPING = 86_400.0


@dataclass(frozen=True)
class Ask:
    """Somebody wants a slot; `notice` is how soon a holder that is gone shall be noticed, in seconds."""

    place: Place
    limit: int
    notice: float


@dataclass(frozen=True)
class Slots:
    """What a run of the keeper begins with."""

    places: Places = field(default_factory=Places)
    notice: float = 10.0


def first_slots(ask: Ask) -> Slots:
    """What a keeper begins with that is started by whoever asks first."""
    return Slots(asked(Places(), ask.place, ask.limit), ask.notice)


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
        """Somebody wants a slot."""
        self.places = asked(self.places, ask.place, ask.limit)
        self.notice = ask.notice
        self._heard()

    @workflow.signal
    def give_back(self, ticket: str) -> None:
        """Somebody does not want a slot any more."""
        self.places = given_back(self.places, {ticket})
        self._heard()

    @workflow.query
    def slots(self) -> Places:
        """Who holds a slot, and who waits."""
        return self.places

    @workflow.run
    def run(self, slots: Slots) -> None:
        """Keep the slots until nobody uses them."""
        while True:
            try:
                if not self._serve():
                    return
            except Cancelled:
                # Those who wait would never hear of it. To be rid of a keeper, terminate it.
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
        # A moment, not a pause: those who ask meanwhile must not put it off.
        self.pause = pause
        self.look_at = min(self.look_at, workflow.time() + pause)

    def _look_after(self) -> None:
        """Find holders that are gone; where all are there, look again later than the last time."""
        self.pause = min(2 * self.pause, max(_LONGEST_PAUSE, self.notice))
        self.look_at = workflow.time() + self.pause
        self._drop(unreachable([(place, None) for place in self.places.held]))

    def _drop(self, gone: list[Place]) -> None:
        if gone:
            self.places = given_back(self.places, {place.ticket for place in gone})
            self.changed = True
