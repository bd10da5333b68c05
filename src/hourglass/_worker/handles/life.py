"""The life cycle of a handle, and its limits: the transitions between its states, the time for each part, and the next
step of a draining handle. Pure: uses no clock, event loop or handle.

`draining` executes the steps. Invariants: a state changes only as `LIFE` allows. Closed and abandoned are final. A
handle is finalized only when its polls have ended, no item is open and no call is in progress.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from hourglass.errors import InternalError, NamespaceNotFoundError, ServiceError, StorageError, UsageError


class HandleState(Enum):
    """The state of a handle."""

    CONNECTING = "connecting"
    ACTIVE = "active"
    DRAINING = "draining"
    FINALIZING = "finalizing"
    CLOSED = "closed"
    ABANDONED = "abandoned"

    @property
    def over(self) -> bool:
        return self in (HandleState.CLOSED, HandleState.ABANDONED)


class HandleSignal(Enum):
    """An event that changes a handle's state."""

    OPENED = "opened"
    UNWANTED = "its registration has ended"
    UNREGISTERED = "its worker was unregistered"
    RECYCLED = "a new handle replaces it"
    DRAINED = "its polls have ended and no task is open"
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
        raise InternalError(
            f"unexpected event of a handle in the state {state.value!r}: {signal.value}"
        ) from None


@dataclass(frozen=True, kw_only=True)
class HandleLimits:
    """The time limits of a handle's life, in seconds, and how many handles may be abandoned."""

    connect: float = 10.0
    open: float = 10.0
    first_pause: float = 0.2
    longest_pause: float = 10.0
    completion: float = 30.0
    """The maximum time that a caller waits for its completion to be accepted. The call itself is not cancelled."""
    resend: float = 5.0
    """The time, less than `completion`, after which a result that the handle has not accepted is sent again through the
    connection.
    """
    resending: float = 3600.0
    """The maximum time for retrying to send a result. Without retries the engine might never learn that the attempt has
    ended.
    """
    adoption: float = 5.0
    """The time that a healthy handle waits for its worker to return; 0 to disable waiting. The default is half of the
    default workflow task timeout, so that the handle's open tasks can still be failed and given to another worker
    before the engine times them out.
    """
    workflow_grace: float = 2.0
    """The time that evaluators have to complete the activations of a draining handle."""
    cancel_grace: float = 1.0
    """The time between the cancellation of activities and reporting them as failed."""
    recycled_activities: float = 3600.0
    """The time for which activities may continue on a recycled handle, because their worker keeps running."""
    drain: float = 30.0
    """The time for polls to end and calls to return, once nothing else is open."""
    finalize: float = 35.0
    leave: float = 5.0
    """The maximum time for draining and finalizing together when the worker stops, counted from the last deadline of
    its activities. The caller of `stop` waits that long.
    """
    max_abandoned: int = 5

    def pause(self, setbacks: int) -> float:
        """Return the delay before the next attempt to open a handle: none at first, then 0.2 s, doubled per failure up
        to 10 s.
        """
        if setbacks <= 0:
            return 0.0
        # Beyond 32 doublings the float would only overflow.
        return min(self.first_pause * 2.0 ** min(setbacks - 1, 32), self.longest_pause)


_HOPELESS = frozenset({"PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED", "INVALID_ARGUMENT"})
_UNUSABLE = frozenset(
    {"FAILED_PRECONDITION", "DATA_LOSS"}
)  # errors of a file whose owner must repair it first


def is_hopeless(error: BaseException) -> bool:
    """Whether a retry would be rejected again, so that the error should be raised to the worker that registers."""
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
    """The deadlines of a draining handle, in the loop's time."""

    runs: float
    stop_activities: float
    activities: float
    end: float
    """The deadline for polls and calls to end. After this deadline the handle is abandoned, even if it is not idle."""

    @staticmethod
    def after(now: float, limits: HandleLimits, graceful: float | None) -> Deadlines:
        """Return the deadlines of a drain that begins now. `graceful` is the worker's graceful period for activities;
        None if the worker keeps running.
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
        """Return the earlier of each pair of deadlines, for a worker that stops while its recycled handles still drain."""
        return Deadlines(
            runs=min(self.runs, other.runs),
            stop_activities=min(self.stop_activities, other.stop_activities),
            activities=min(self.activities, other.activities),
            end=min(self.end, other.end),
        )

    def for_one_more(self, now: float, limits: HandleLimits) -> Deadlines:
        """Return the deadlines extended for a run that continues during the drain: by the workflow grace period, at
        most until the deadline of activities.
        """
        return replace(self, runs=max(self.runs, min(now + limits.workflow_grace, self.activities)))

    def finalizing(self, now: float, limits: HandleLimits) -> float:
        """Return the time limit for finalizing the handle, in seconds."""
        return min(limits.finalize, max(self.end - now, limits.leave))


@dataclass(frozen=True, kw_only=True)
class DrainView:
    """The state of a draining handle, as `next_step` needs it."""

    open_runs: int
    open_activities: int
    calls: int
    polls_ended: bool
    stop_requested: bool
    quiet_since: float
    """The time at which an item, answer or call was last seen on the handle."""


class DrainStep(Enum):
    """A step of a drain."""

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
    if view.open_activities and not view.stop_requested and now >= deadlines.stop_activities:
        return DrainStep.STOP_ACTIVITIES, now
    if view.open_activities and now >= deadlines.activities:
        return DrainStep.FAIL_ACTIVITIES, now
    if view.open_runs or view.open_activities:
        activities = deadlines.activities if view.stop_requested else deadlines.stop_activities
        patience = [deadlines.runs] * bool(view.open_runs) + [activities] * bool(view.open_activities)
        return DrainStep.WAIT, min(patience)
    if view.polls_ended and not view.calls:
        return DrainStep.FINALIZE, now
    last = min(view.quiet_since + limits.drain, deadlines.end)
    return (DrainStep.ABANDON, now) if now >= last else (DrainStep.WAIT, last)
