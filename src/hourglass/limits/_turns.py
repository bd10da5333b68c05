"""When whoever asks may go on under a rate limit, as data, and how the next turn is found. Pure.

Must not know: workflows, signals, clocks. Times are whole microseconds since the epoch. Invariants: turns are given
in the order of asking and never go back; no span of the period holds more turns than the limit; a ticket that asks again
gets the turn that it has.

A turn is a moment in the future that is given out at once: whoever has one waits by itself, so that nobody needs to keep
a timer for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Rate:
    """At most `limit` in any span of `period` microseconds; `smooth` spreads them evenly."""

    limit: int
    period: int
    smooth: bool = False


@dataclass(frozen=True)
class Turn:
    """A moment, and whose it is."""

    ticket: str
    at: int


@dataclass(frozen=True)
class Turns:
    """The turns that still matter, in order."""

    given: tuple[Turn, ...] = ()


def next_turn(
    turns: Turns, ticket: str, rate: Rate, now: int, latest: int | None
) -> tuple[Turns, int | None]:
    """The moment of the next turn; None, and nothing is given out, where it would be after `latest`."""
    for turn in turns.given:
        if turn.ticket == ticket:
            return turns, turn.at
    at = max(now, _earliest(turns.given, rate))
    if latest is not None and at > latest:
        return turns, None
    kept = 1 if rate.smooth else rate.limit
    return replace(turns, given=(*turns.given, Turn(ticket, at))[-kept:]), at


def _earliest(given: tuple[Turn, ...], rate: Rate) -> int:
    if not given:
        return 0
    if rate.smooth:
        return given[-1].at - (-rate.period // rate.limit)  # rounded up: never too soon
    in_order = given[-1].at
    return max(in_order, given[-rate.limit].at + rate.period) if len(given) >= rate.limit else in_order


def is_forgettable(turns: Turns, period: int, now: int) -> bool:
    """Whether no turn that was given has a bearing on the next one."""
    return not turns.given or turns.given[-1].at + period <= now
