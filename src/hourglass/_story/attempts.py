"""What an activity did when: queued, attempts, waits between them.

A history tells when an activity was scheduled, when its *last* attempt began, which attempt that was, and the retry policy. When
the attempts before began is not in it: it is worked out from the policy's intervals, and marked as guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

from hourglass._story.durations import S
from hourglass._story.reading import Json, inner, number, span_of
from hourglass._story.spans import Phase, Segment

MOST = 24
"""Attempts that are drawn one by one."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long is waited between attempts."""

    initial: int = S
    coefficient: float = 2.0
    maximum: int = 100 * S

    def after(self, attempt: int) -> int:
        """The wait after an attempt, from 1."""
        try:
            wait = self.initial * self.coefficient ** (attempt - 1)
        except OverflowError:
            return self.maximum
        return int(min(wait, self.maximum))


def backoff_from(attributes: Json) -> Backoff:
    """The policy in an activity's schedule, with Temporal's defaults."""
    policy = inner(attributes, "retryPolicy")
    initial = span_of(inner(policy, "initialInterval")) or S
    coefficient = inner(policy, "backoffCoefficient")
    return Backoff(
        initial,
        float(coefficient) if isinstance(coefficient, (int, float)) and coefficient >= 1 else 2.0,
        span_of(inner(policy, "maximumInterval")) or 100 * initial,
    )


def most_attempts(attributes: Json) -> int:
    """How many attempts the policy allows; 0 for any number."""
    return number(inner(attributes, "retryPolicy", "maximumAttempts"))


def before_last(
    start: int, last: int, attempt: int, backoff: Backoff, usual: int | None = None
) -> tuple[Segment, ...]:
    """From the schedule to the start of the last attempt: queued, or the failed attempts with the waits after them.

    `usual` is how long an attempt takes at most, where that can be told: what is left over was spent waiting.
    """
    last = max(last, start)
    if attempt <= 1:
        return _kept(Segment(start, last, Phase.QUEUED))
    if attempt - 1 > MOST:
        return _kept(Segment(start, last, Phase.BACKOFF, guessed=True))
    waits = [backoff.after(each) for each in range(1, attempt)]
    ran = (last - start - sum(waits)) // len(waits)
    if ran < 0:  # somebody shortened the waits
        waits = [each * 4 * (last - start) // (5 * sum(waits)) for each in waits]
        ran = (last - start - sum(waits)) // len(waits)
    elif usual is not None and usual < ran:
        waits = [each + ran - usual for each in waits]
        ran = usual
    segments: list[Segment] = []
    at = start
    for wait in waits:
        failed, again = at + ran, at + ran + wait
        segments += Segment(at, failed, Phase.FAILED, True), Segment(failed, again, Phase.BACKOFF, True)
        at = again
    if at < last:
        segments.append(Segment(at, last, Phase.BACKOFF, True))
    return _kept(*segments)


def _kept(*segments: Segment) -> tuple[Segment, ...]:
    # A failed attempt of no length is still an attempt.
    return tuple(each for each in segments if each.end > each.start or each.phase is Phase.FAILED)
