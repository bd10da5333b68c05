"""`hourglass.throttle`: the workflow that gives out the turns of one key. There is one for each key in use.

A turn is a moment, given out at once: whoever gets one waits for it by itself. So the keeper has no timers but the one
that ends it when its turns are all in the past and nobody asks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hourglass import workflow
from hourglass._engine.versions import VersioningBehavior
from hourglass.errors import Cancelled
from hourglass.limits._places import Place
from hourglass.limits._reaching import is_long, unreachable
from hourglass.limits._turns import Rate, Turns, is_forgettable, next_turn

_LINGER = 60.0
MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class TurnAsk:
    """Somebody wants a turn, not after `latest` (in microseconds)."""

    place: Place
    rate: Rate
    latest: int | None


@dataclass(frozen=True)
class Throttle:
    """What a run of the keeper begins with: the turns given, and the questions that are open."""

    turns: Turns = field(default_factory=Turns)
    open: tuple[TurnAsk, ...] = ()
    period: int = 0


@workflow.defn(name="hourglass.throttle", versioning_behavior=VersioningBehavior.AUTO_UPGRADE)
class TurnKeeper:
    """Gives out the turns of one key."""

    @workflow.init
    def __init__(self, throttle: Throttle) -> None:
        self.turns = throttle.turns
        self.open = list(throttle.open)
        self.period = throttle.period
        self.messages = 0

    @workflow.signal
    def ask(self, ask: TurnAsk) -> None:
        """Somebody wants a turn."""
        self.open.append(ask)
        self.messages += 1

    @workflow.query
    def given(self) -> Turns:
        """The turns that still matter."""
        return self.turns

    @workflow.run
    def run(self, throttle: Throttle) -> None:
        """Give out turns until nobody wants one."""
        while True:
            try:
                if not self._serve():
                    return
            except Cancelled:
                # Those who ask would never hear of it. To be rid of a keeper, terminate it.
                workflow.logger.warning("a keeper of turns does not cancel: others wait for it")

    def _serve(self) -> bool:
        questions, self.open = self.open, []
        if questions:
            unreachable([(each.place, self._turn_for(each)) for each in questions])
        if is_long(self.messages):
            workflow.continue_as_new(Throttle(self.turns, tuple(self.open), self.period))
        try:
            workflow.wait_condition(lambda: self.open, timeout=max(_LINGER, self.period / MICROSECONDS))
        except TimeoutError:
            return not is_forgettable(self.turns, self.period, microseconds())
        return True

    def _turn_for(self, ask: TurnAsk) -> int | None:
        self.period = max(self.period, ask.rate.period)
        self.turns, at = next_turn(self.turns, ask.place.ticket, ask.rate, microseconds(), ask.latest)
        return at


def microseconds() -> int:
    """The time, as keepers reckon it."""
    return workflow.time_ns() // 1000
