"""The life of a handle, and its limits: which state follows which, how long each part may take, and what a handle that drains
needs next. Pure: without a clock, a loop or a handle.

`draining` does what is decided here. Invariants: a state is left only as `LIFE` says; nothing comes after closed and abandoned;
a handle is finalized only when its polls have ended, nothing is open and no call is in flight.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from hourglass.errors import InternalError, NamespaceNotFoundError, ServiceError, StorageError, UsageError


class HandleState(Enum):
    """Where a handle is in its life."""

    CONNECTING = "connecting"
    ACTIVE = "active"
    DRAINING = "draining"
    FINALIZING = "finalizing"
    CLOSED = "closed"
    ABANDONED = "abandoned"

    @property
    def over(self) -> bool:
        """Whether nothing comes after it."""
        return self in (HandleState.CLOSED, HandleState.ABANDONED)


class HandleSignal(Enum):
    """What happens to a handle."""

    OPENED = "opened"
    UNWANTED = "its registration has ended"
    UNREGISTERED = "its worker was unregistered"
    RECYCLED = "a new handle takes its place"
    DRAINED = "its polls have ended and nothing is open"
    FREED = "it is finalized"
    OVERDUE = "it did not end in time"


LIFE: dict[tuple[HandleState, HandleSignal], HandleState] = {
    (HandleState.CONNECTING, HandleSignal.OPENED): HandleState.ACTIVE,
    (HandleState.CONNECTING, HandleSignal.UNWANTED): HandleState.DRAINING,
    (HandleState.ACTIVE, HandleSignal.UNREGISTERED): HandleState.DRAINING,
    (HandleState.ACTIVE, HandleSignal.RECYCLED): HandleState.DRAINING,
    (HandleState.DRAINING, HandleSignal.DRAINED): HandleState.FINALIZING,
    (HandleState.DRAINING, HandleSignal.OVERDUE): HandleState.ABANDONED,
    (HandleState.FINALIZING, HandleSignal.FREED): HandleState.CLOSED,
    (HandleState.FINALIZING, HandleSignal.OVERDUE): HandleState.ABANDONED,
}


def advance(state: HandleState, signal: HandleSignal) -> HandleState:
    """Return the next state. Raise `InternalError` for a pair that is not in the table."""
    try:
        return LIFE[state, signal]
    except KeyError:
        raise InternalError(f"a handle that is {state.value} cannot hear that {signal.value}") from None


@dataclass(frozen=True, kw_only=True)
class HandleLimits:
    """Seconds that each part of a handle's life may take, and how many handles may be left behind."""

    connect: float = 10.0
    open: float = 10.0
    first_pause: float = 0.2
    longest_pause: float = 10.0
    completion: float = 30.0
    """How long the caller waits for a completion to be taken; the call itself is left alone."""
    resend: float = 5.0
    """When an activity's end that the handle has not taken is sent again through the connection."""
    resending: float = 3600.0
    """How long it is tried: an engine may know of no other sign that the attempt has ended."""
    adoption: float = 5.0
    """How long a healthy handle waits for its worker to come back. Half the usual time limit of a workflow task: what
    it holds by then is still failed, and given to another worker, before the engine gives up on it. 0: not at all.
    """
    workflow_grace: float = 2.0
    """How long evaluators may still answer what they hold of a handle that drains."""
    cancel_grace: float = 1.0
    """Between telling activities to stop and reporting them as failed."""
    recycled_activities: float = 3600.0
    """How long activities may go on over a handle that was recycled: their worker lives on."""
    drain: float = 30.0
    """How long polls may take to end, and calls to return, once nothing is open any more."""
    finalize: float = 35.0
    leave: float = 5.0
    """What both may take at most when the worker ends, after the last deadline of its activities: the caller of
    `stop` waits for that.
    """
    max_abandoned: int = 5

    def pause(self, setbacks: int) -> float:
        """How long to wait before a new handle after so many that came to nothing: at once, then 0.2 s,
        doubled up to 10 s.
        """
        if setbacks <= 0:
            return 0.0
        # Beyond 32 doublings the float would only overflow.
        return min(self.first_pause * 2.0 ** min(setbacks - 1, 32), self.longest_pause)


_HOPELESS = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED", "INVALID_ARGUMENT"})
_UNUSABLE = frozenset({"FAILED_PRECONDITION", "DATA_LOSS"})  # said of a file: its owner must repair it first


def is_hopeless(error: BaseException) -> bool:
    """Whether trying again would meet the same refusal, so that the worker that registers should hear of it."""
    match error:
        case UsageError() | NamespaceNotFoundError() | ValueError() | TypeError():
            return True
        case StorageError() if error.status in _UNUSABLE:
            return True
        case ServiceError():
            return error.status in _HOPELESS
        case _:
            return False


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """When a draining handle's patience ends, in the loop's time."""

    runs: float
    stop_activities: float
    activities: float
    end: float
    """When a handle whose polls or calls have not ended by then is left behind, whatever still happens on it."""

    @staticmethod
    def after(now: float, limits: HandleLimits, graceful: float | None) -> Deadlines:
        """For a drain that begins now; `graceful` is the worker's own patience with its activities, None if
        it lives on.
        """
        stop = now + (limits.recycled_activities if graceful is None else graceful)
        activities = stop + limits.cancel_grace
        return Deadlines(
            runs=now + limits.workflow_grace,
            stop_activities=stop,
            activities=activities,
            end=activities + (limits.drain if graceful is None else min(limits.leave, limits.drain)),
        )

    def sooner(self, other: Deadlines) -> Deadlines:
        """Return the earlier of each pair of deadlines, for a worker that ends while its recycled handles still drain."""
        return Deadlines(
            runs=min(self.runs, other.runs),
            stop_activities=min(self.stop_activities, other.stop_activities),
            activities=min(self.activities, other.activities),
            end=min(self.end, other.end),
        )

    def for_one_more(self, now: float, limits: HandleLimits) -> Deadlines:
        """Return the deadlines for a run that continues during the drain: the usual time, at most until its activities end."""
        return replace(self, runs=max(self.runs, min(now + limits.workflow_grace, self.activities)))

    def finalizing(self, now: float, limits: HandleLimits) -> float:
        """Return the deadline for finalizing the handle."""
        return min(limits.finalize, max(self.end - now, limits.leave))


@dataclass(frozen=True, kw_only=True)
class DrainView:
    """What is known of a draining handle."""

    open_runs: int
    open_activities: int
    calls: int
    polls_ended: bool
    told_to_stop: bool
    quiet_since: float
    """When something last happened on the handle."""


class DrainStep(Enum):
    """What a draining handle needs now."""

    FAIL_RUNS = "fail runs"
    STOP_ACTIVITIES = "stop activities"
    FAIL_ACTIVITIES = "fail activities"
    FINALIZE = "finalize"
    ABANDON = "abandon"
    WAIT = "wait"


def next_step(
    view: DrainView, deadlines: Deadlines, limits: HandleLimits, now: float
) -> tuple[DrainStep, float]:
    """Return the next step, and for `WAIT` its deadline."""
    if view.open_runs and now >= deadlines.runs:
        return DrainStep.FAIL_RUNS, now
    if view.open_activities and not view.told_to_stop and now >= deadlines.stop_activities:
        return DrainStep.STOP_ACTIVITIES, now
    if view.open_activities and now >= deadlines.activities:
        return DrainStep.FAIL_ACTIVITIES, now
    if view.open_runs or view.open_activities:
        activities = deadlines.activities if view.told_to_stop else deadlines.stop_activities
        patience = [deadlines.runs] * bool(view.open_runs) + [activities] * bool(view.open_activities)
        return DrainStep.WAIT, min(patience)
    if view.polls_ended and not view.calls:
        return DrainStep.FINALIZE, now
    last = min(view.quiet_since + limits.drain, deadlines.end)
    return (DrainStep.ABANDON, now) if now >= last else (DrainStep.WAIT, last)
