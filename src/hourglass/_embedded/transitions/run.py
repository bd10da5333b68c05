"""A run as the engine knows it: frozen data that follows from its history, what is in flight for it, and what ties it to
other runs.

Must not know: clocks, handles, how decisions are made, how a request to another run is carried out (see
`engine.transactions`). Invariants: `length` is the number of events written; while a task is started nothing but its end is
written and what happens is `held`; a closed run has no task, timer, activity or child. A transition may request effects on
other runs (`Change.effects`); the engine carries them out after it, in the same change of the store. So both runs agree
after every crash, and no effect is ever repeated.

Nothing of this can be part of a cycle, so the collector need not look at it (`gc=False`).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from hourglass._contract.workflows import WorkflowStatus
from hourglass._embedded.clock import later, to_ns
from hourglass._evaluator.commands import Command
from hourglass._evaluator.specs import (
    ActivitySpec,
    Payloads,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass._history import events as h
from hourglass.converter import Failure, Payload

# --- what ties a run to others ------------------------------------------------------------------------------


class OpenChild(msgspec.Struct, frozen=True, kw_only=True):
    """A child of a run, from the request for it to its end; `run_id` is its first run, once it has started."""

    initiated_event_id: int
    initiated: h.StartChildWorkflowExecutionInitiated
    run_id: str = ""
    started_event_id: int = 0


class RequestCancelChild(Command, frozen=True, kw_only=True):
    """Core's own command: ask a child of this run to cancel. The run is not told whether the request arrived."""

    workflow_id: str
    namespace: str
    run_id: str = ""
    reason: str = ""


class StartChild(msgspec.Struct, frozen=True):
    """Start this child."""

    child: OpenChild


class SendSignal(msgspec.Struct, frozen=True):
    """Send this signal, which the run asked for by the event `initiated_event_id`."""

    initiated_event_id: int
    spec: h.SignalExternalWorkflowExecutionInitiated


class SendCancel(msgspec.Struct, frozen=True):
    """Effect this workflow to cancel, which the run asked for by the event `initiated_event_id`."""

    initiated_event_id: int
    spec: h.RequestCancelExternalWorkflowExecutionInitiated


class ApplyClosePolicy(msgspec.Struct, frozen=True):
    """The run has closed: do with this child as its policy says."""

    child: OpenChild


class NotifyParent(msgspec.Struct, frozen=True):
    """The run has closed, and nothing follows it: its parent must hear of it."""


class NotifySchedule(msgspec.Struct, frozen=True):
    """The run has closed, and a schedule waits for the end of its workflow."""


class ReleaseClaims(msgspec.Struct, frozen=True):
    """The run has closed, and has something of limits that the engine keeps."""


Effect: TypeAlias = (
    StartChild | SendSignal | SendCancel | ApplyClosePolicy | NotifyParent | NotifySchedule | ReleaseClaims
)


# --- the run ------------------------------------------------------------------------------------------------


RUNNING = WorkflowStatus.RUNNING

JUST_BEFORE = -1
"""As a link in a held event, which has no id yet: the event written right before it."""


class OpenActivity(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An activity that a run waits for, at its present attempt."""

    scheduled_event_id: int
    scheduled: h.ActivityTaskScheduled
    spec: ActivitySpec
    scheduled_ns: int
    available_ns: int
    attempt: int = 1
    earlier: int = 0
    """How many of its attempts were before its last reset: they count for its retry policy no more."""
    started_ns: int = 0
    last_started_ns: int = 0
    heartbeat_ns: int = 0
    heartbeat_details: Payloads = ()
    last_failure: Failure | None = None
    identity: str = ""
    cancel_requested_event_id: int = 0
    after_ns: int = 0
    """The time of the event that asked for it, where the clock was set back since: its events are no earlier."""
    paused: bool = False
    """Whether no new attempt may begin: a client has paused it."""
    changed: ActivitySpec | None = None
    """What holds in place of what was said at first, where a client has changed it; `spec` is that then."""
    deferred: bool = False
    """Whether a client will complete this attempt by its token (asynchronous completion): it outlives the worker
    process that began it.
    """

    @property
    def tries(self) -> int:
        """Which attempt this is for its retry policy; 0: it was reset, and its first is the next."""
        return self.attempt - self.earlier


class PendingTimer(msgspec.Struct, frozen=True, gc=False):
    """A timer that runs."""

    timer_id: str
    started_event_id: int
    due_ns: int
    began_ns: int = 0
    """When it was started, by the clock: its event may have a later time, where the clock was set back."""


class PendingTask(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A workflow task that is scheduled or, once `started_event_id` is set, started: a worker has it.

    From the second attempt on a task is transient: its first two events are written only when it succeeds, so
    that a run that fails for a month does not fill its history. So is a speculative one, which is wanted for
    updates alone: if all are refused it leaves no trace, and if it is silent no failure does either. `number`
    tells the tasks of a run apart, attempts included.
    """

    number: int
    scheduled_event_id: int
    available_ns: int
    attempt: int = 1
    transient: bool = False
    speculative: bool = False
    silent: bool = False
    started_event_id: int = 0
    started_ns: int = 0
    identity: str = ""
    suggest_continue_as_new: bool = False
    target_version: WorkerDeploymentVersion | None = None
    """Where the run would go if it were not pinned to another version; None: nowhere else."""
    after_refusal: bool = False
    """Whether the run wanted to close by the task before, and was refused because something had come meanwhile."""


class Trouble(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """That tasks of a run have failed or timed out since one was last completed: how many, and how the last did of which the
    history tells, by Temporal's number; None: the worker did not answer in time.
    """

    failures: int
    cause: int | None = None


class Pause(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """That a run is paused, why, and what is withheld from workers meanwhile: its task, or (`missed`) that something has
    happened for which it would have got one.
    """

    reason: str = ""
    identity: str = ""
    since_ns: int = 0
    task: PendingTask | None = None
    missed: bool = False


class RunPriority(msgspec.Struct, frozen=True, omit_defaults=True):
    """How urgent a run is, and whose share it is counted to."""

    priority_key: int = 0
    fairness_key: str = ""
    fairness_weight: float = 0.0

    def of(self, started: h.WorkflowExecutionStarted) -> h.WorkflowExecutionStarted:
        """A start as if this had been said of it."""
        return msgspec.structs.replace(
            started, spec=msgspec.structs.replace(started.spec, **msgspec.structs.asdict(self))
        )


STANDALONE = "activity"
"""The `root_run_id` of a run that holds one activity without a workflow; no run of a workflow has it."""


class Run(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Everything about one run but its history.

    What is pending (`activities`, `timers`, `children`) is kept by the id of the event that began it.
    """

    run_id: str
    started: h.WorkflowExecutionStarted
    start_ns: int
    status: WorkflowStatus = RUNNING
    close_ns: int = 0
    final: h.Attributes | None = None
    length: int = 0
    latest_ns: int = 0
    """The latest time of an event: none that follows has an earlier one."""
    history_size: int = 0
    task: PendingTask | None = None
    task_count: int = 0
    held: tuple[h.Attributes, ...] = ()
    activities: dict[int, OpenActivity] = {}
    timers: dict[int, PendingTimer] = {}
    children: dict[int, OpenChild] = {}
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}
    cancel_requested: bool = False
    reset_run_id: str = ""
    """The run that took its place, if it was reset."""
    version: WorkerDeploymentVersion | None = None
    """The version of the worker that answered its last task, or that it was begun for."""
    behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    override: VersioningOverride | None = None
    """What a client has said since its start of the version that it belongs to; counts where `override_changed`."""
    override_changed: bool = False
    priority: RunPriority | None = None
    """What a client has said since its start of how urgent it is: `started` says so too, in memory."""
    paused: Pause | None = None
    """While it is paused: such a run is open, and has no task that a worker could take."""
    trouble: Trouble | None = None
    """Since its tasks fail: see `problems`."""

    def pending(self, event_id: int) -> OpenActivity | PendingTimer | OpenChild | None:
        """What is pending since this event, if anything is."""
        return self.activities.get(event_id) or self.timers.get(event_id) or self.children.get(event_id)

    @property
    def is_standalone_activity(self) -> bool:
        """Whether the run is an activity without a workflow: it has no code, so it never gets a workflow task."""
        return self.started.root_run_id == STANDALONE

    @property
    def needs_first_task(self) -> bool:
        """Whether no workflow task was ever scheduled, and the run is one of a workflow."""
        return self.task is None and self.task_count == 0 and not self.is_standalone_activity

    @property
    def is_open(self) -> bool:
        """Whether the run has not closed."""
        return self.status is RUNNING

    @property
    def task_is_started(self) -> bool:
        """Whether a worker has this run's task."""
        return self.task is not None and self.task.started_event_id != 0

    @property
    def deadline_ns(self) -> int:
        """When the run times out; 0 for never."""
        started = self.started
        whole = started.expiration_ns
        if not started.spec.run_timeout:
            return whole
        own = later(self.start_ns, to_ns(started.spec.run_timeout) + to_ns(started.first_task_backoff))
        return min(whole, own) if whole else own


def first_task_ns(run: Run) -> int:
    """Return when the run may have its first task."""
    return later(run.start_ns, to_ns(run.started.first_task_backoff))


def is_backing_off(run: Run, now_ns: int) -> bool:
    """Whether the run is still waiting for its first task, because its start is delayed or it is a later attempt or cron run."""
    return run.task_count == 0 and now_ns < first_task_ns(run)


class Change(msgspec.Struct, frozen=True, gc=False):
    """The result of a transition.

    `run` is the run afterwards, `events` are those to append, `encoded` the same as bytes, one after the other. `touched` names
    the pending activities, timers and children that were put or dropped, by the id of the event that began each.
    `follower` is the first event of the run that follows, if any, which begins with `signals`. `effects` are those on
    other runs.
    """

    run: Run
    events: tuple[h.HistoryEvent, ...] = ()
    encoded: bytes = b""
    touched: frozenset[int] = frozenset()
    follower: h.WorkflowExecutionStarted | None = None
    effects: tuple[Effect, ...] = ()
    signals: tuple[h.WorkflowExecutionSignaled, ...] = ()
