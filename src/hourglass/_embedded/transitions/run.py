"""A run as the engine stores it: frozen data derived from its history, its work in progress, its relations to other
runs, and its priority.

Must not know: clocks, handles, how decisions are made, how a request to another run is carried out (see
`runs.transactions`). Invariants: `length` is the number of events written. While a worker has the task, only the task's
completion is written, and other events are held back in `held`. A closed run has no task, timer, activity or child. A
transition may request effects on other runs (`Change.effects`). The engine carries these out after the transition, in
the same change of the store. So both runs agree after every crash, and no effect is ever repeated.

None of these objects can be part of a reference cycle, so the garbage collector need not track them (`gc=False`).
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import msgspec

from hourglass._contract.workflows import WorkflowStatus
from hourglass._embedded.clock import later, to_ns
from hourglass._evaluator.commands import Command
from hourglass._evaluator.specs import (
    ActivitySpec,
    Payloads,
    StartSpec,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass._history import events as h
from hourglass.converter import Failure, Payload

LEVELS = (1, 2, 3, 4, 5)
"""The priority keys of a Temporal server: 1 is the most urgent. Keys above 5 count as 5."""

_USUAL = 3
"""The priority level of work without a priority key."""


S = TypeVar("S", ActivitySpec, StartSpec)


class OpenChild(msgspec.Struct, frozen=True, kw_only=True):
    """A child of a run, from the request to start it until it has closed. `run_id` is the child's first run, once it has
    started.
    """

    initiated_event_id: int
    initiated: h.StartChildWorkflowExecutionInitiated
    run_id: str = ""
    started_event_id: int = 0


class RequestCancelChild(Command, frozen=True, kw_only=True):
    """Core's own command: request the cancellation of a child. The run is not notified whether the request was delivered."""

    workflow_id: str
    namespace: str
    run_id: str = ""
    reason: str = ""


class StartChild(msgspec.Struct, frozen=True):
    """Start a child of the run."""

    child: OpenChild


class SendSignal(msgspec.Struct, frozen=True):
    """Send a signal that the run requested with the event `initiated_event_id`."""

    initiated_event_id: int
    spec: h.SignalExternalWorkflowExecutionInitiated


class SendCancel(msgspec.Struct, frozen=True):
    """Request a cancellation that the run requested with the event `initiated_event_id`."""

    initiated_event_id: int
    spec: h.RequestCancelExternalWorkflowExecutionInitiated


class ApplyClosePolicy(msgspec.Struct, frozen=True):
    """Apply a child's parent close policy, because the run has closed."""

    child: OpenChild


class NotifyParent(msgspec.Struct, frozen=True):
    """Notify the parent that the run has closed and no other run follows it."""


class NotifySchedule(msgspec.Struct, frozen=True):
    """Notify the schedules that await this workflow that the run has closed."""


class ReleaseClaims(msgspec.Struct, frozen=True):
    """Release the slots of limits that the run holds or waits for, because the run has closed."""


Effect: TypeAlias = (
    StartChild | SendSignal | SendCancel | ApplyClosePolicy | NotifyParent | NotifySchedule | ReleaseClaims
)


RUNNING = WorkflowStatus.RUNNING

JUST_BEFORE = -1
"""A placeholder in a held event, which has no id yet. It refers to the event written immediately before the held event."""


class OpenActivity(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A pending activity with its current attempt."""

    scheduled_event_id: int
    scheduled: h.ActivityTaskScheduled
    spec: ActivitySpec
    scheduled_ns: int
    available_ns: int
    attempt: int = 1
    earlier: int = 0
    """The number of attempts before the activity's last reset. They do not count for the retry policy."""
    started_ns: int = 0
    last_started_ns: int = 0
    heartbeat_ns: int = 0
    heartbeat_details: Payloads = ()
    last_failure: Failure | None = None
    identity: str = ""
    cancel_requested_event_id: int = 0
    after_ns: int = 0
    """The timestamp of the event that scheduled the activity, if the clock has been set back since. Later events of the
    activity must not have earlier timestamps.
    """
    paused: bool = False
    """Whether a client has paused the activity. While it is paused, no new attempt begins."""
    changed: ActivitySpec | None = None
    """The options that a client has set after scheduling, or None if the options of `scheduled` still apply. `spec`
    contains the current options in both cases.
    """
    deferred: bool = False
    """Whether a client will complete this attempt by its token (asynchronous completion). The attempt then continues
    even if its worker process ends.
    """

    @property
    def tries(self) -> int:
        """The number of this attempt for the retry policy. It is 0 after a reset, until the first attempt begins."""
        return self.attempt - self.earlier


class PendingTimer(msgspec.Struct, frozen=True, gc=False):
    """A pending timer."""

    timer_id: str
    started_event_id: int
    due_ns: int
    began_ns: int = 0
    """The clock's time when the timer was started. If the clock was set back, the timer's event may have a later
    timestamp.
    """


class PendingTask(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A workflow task that is scheduled or, if `started_event_id` is set, started: a worker has received it.

    From its second attempt on, a task is transient: its first two events are written only when it succeeds, so that a
    run that fails for a month does not fill its history. A speculative task is scheduled for updates alone and is also
    transient. If all its updates are rejected, it leaves no events. If it is silent, its failure leaves no events
    either. `number` identifies a task within its run and differs for each attempt.
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
    """The version that the run would move to if it were not pinned to another version. None means that it would stay."""
    after_refusal: bool = False
    """Whether the previous task tried to close the run and was rejected because an event had arrived in the meantime."""


class Trouble(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The failures of workflow tasks since the last completed task: their number, and Temporal's number for the last
    cause in the history. The cause None means that the worker did not answer in time.
    """

    failures: int
    cause: int | None = None


class Pause(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The pause of a run: its reason, and the work that is withheld from workers. This is the run's task, or an event
    that would have led to a task (`missed`).
    """

    reason: str = ""
    identity: str = ""
    since_ns: int = 0
    task: PendingTask | None = None
    missed: bool = False


class RunPriority(msgspec.Struct, frozen=True, omit_defaults=True):
    """The priority and fairness of a run."""

    priority_key: int = 0
    fairness_key: str = ""
    fairness_weight: float = 0.0

    def of(self, started: h.WorkflowExecutionStarted) -> h.WorkflowExecutionStarted:
        """Return the start event with this priority."""
        return msgspec.structs.replace(
            started, spec=msgspec.structs.replace(started.spec, **msgspec.structs.asdict(self))
        )


STANDALONE = "activity"
"""The `root_run_id` of a run that consists of a standalone activity. No run of a workflow has this value."""


class Run(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A run without its history.

    Pending activities, timers and children are stored by the id of the event that started them.
    """

    run_id: str
    started: h.WorkflowExecutionStarted
    start_ns: int
    status: WorkflowStatus = RUNNING
    close_ns: int = 0
    final: h.Attributes | None = None
    length: int = 0
    latest_ns: int = 0
    """The latest timestamp of the run's events. New events never have an earlier one."""
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
    """The id of the run that replaced this run, if this run was reset."""
    version: WorkerDeploymentVersion | None = None
    """The version of the worker that completed the last task, or the version that the run was started for."""
    behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED
    override: VersioningOverride | None = None
    """The versioning override that a client has set since the start. It applies only if `override_changed` is true."""
    override_changed: bool = False
    priority: RunPriority | None = None
    """The priority that a client has set since the run's start. In memory, `started` contains the same priority."""
    paused: Pause | None = None
    """The pause of the run, or None. A paused run is open, but has no task that a worker could receive."""
    trouble: Trouble | None = None
    """The failures of workflow tasks, if the last task failed (see `problems`)."""

    def pending(self, event_id: int) -> OpenActivity | PendingTimer | OpenChild | None:
        """Return the pending activity, timer or child that the event with this id started. Return None if there is none."""
        return self.activities.get(event_id) or self.timers.get(event_id) or self.children.get(event_id)

    @property
    def is_standalone_activity(self) -> bool:
        """Whether the run is a standalone activity. Such a run has no code and never gets a workflow task."""
        return self.started.root_run_id == STANDALONE

    @property
    def needs_first_task(self) -> bool:
        """Whether the run belongs to a workflow and has never had a workflow task."""
        return self.task is None and self.task_count == 0 and not self.is_standalone_activity

    @property
    def is_open(self) -> bool:
        """Whether the run is open."""
        return self.status is RUNNING

    @property
    def task_is_started(self) -> bool:
        """Whether a worker has this run's task."""
        return self.task is not None and self.task.started_event_id != 0

    @property
    def deadline_ns(self) -> int:
        """The time at which the run times out. 0 means never."""
        started = self.started
        expiration = started.expiration_ns
        if not started.spec.run_timeout:
            return expiration
        own = later(self.start_ns, to_ns(started.spec.run_timeout) + to_ns(started.first_task_backoff))
        return min(expiration, own) if expiration else own


def first_task_ns(run: Run) -> int:
    """Return the earliest time of the run's first task."""
    return later(run.start_ns, to_ns(run.started.first_task_backoff))


def is_backing_off(run: Run, now_ns: int) -> bool:
    """Whether the first task of the run is delayed, because the run has a start delay, is a retry, or is a cron run."""
    return run.task_count == 0 and now_ns < first_task_ns(run)


class Change(msgspec.Struct, frozen=True, gc=False):
    """The result of a transition.

    `run` is the run afterwards. `events` are the new events, and `encoded` is their encoded form. `touched` contains the
    ids of the events that started the activities, timers and children that were added, changed or removed. `follower` is
    the first event of the next run, if any, and `signals` are the signals that the next run starts with. `effects` are
    the effects on other runs.
    """

    run: Run
    events: tuple[h.HistoryEvent, ...] = ()
    encoded: bytes = b""
    touched: frozenset[int] = frozenset()
    follower: h.WorkflowExecutionStarted | None = None
    effects: tuple[Effect, ...] = ()
    signals: tuple[h.WorkflowExecutionSignaled, ...] = ()

    def followed_by(self, change: Change) -> Change:
        """Return this change and the next one as one, with the relations to other runs of the next one."""
        return msgspec.structs.replace(
            change,
            events=self.events + change.events,
            encoded=self.encoded + change.encoded,
            touched=self.touched | change.touched,
        )


def with_priority_of(own: StartSpec, spec: S) -> S:
    """Return a spec that inherits unset priority and fairness options from its workflow."""
    return msgspec.structs.replace(
        spec,
        priority_key=spec.priority_key or own.priority_key,
        fairness_key=spec.fairness_key or own.fairness_key,
        fairness_weight=spec.fairness_weight or own.fairness_weight,
    )


def key_of(run: Run, activity: OpenActivity) -> int:
    """Return the priority key of an activity, or that of its workflow. Return 0 if neither has one."""
    return activity.spec.priority_key or run.started.spec.priority_key


def level_of(run: Run, activity: OpenActivity | None = None) -> int:
    """Return the priority level of a run's task, or of an attempt of an activity."""
    key = run.started.spec.priority_key if activity is None else key_of(run, activity)
    return min(key, LEVELS[-1]) if key > 0 else _USUAL
