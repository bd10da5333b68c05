"""The frozen data of `hourglass why`: facts as the input, findings as the result. Times are in nanoseconds.

Sentences contain no times, so that the web UI can show times in the reader's language and time zone.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from hourglass._tools.timeline.faults import Position
from hourglass._tools.timeline.spans import Fault, Story

if TYPE_CHECKING:
    from hourglass._history.events import HistoryEvent
    from hourglass.client import TaskQueueDescription


class Cause(StrEnum):
    """The cause of a run's state, in order of importance to the reader."""

    UNREACHABLE = "target unreachable"
    NOT_FOUND = "workflow not found"
    NONDETERMINISM = "code does not match the history"
    UNDECODABLE = "payload cannot be decoded"
    UNKNOWN_WORKFLOW = "workflow type unknown to the worker"
    HUNG = "workflow code hangs"
    KILLS = "code kills the worker's process"
    BUG = "bug in the workflow's code"
    TASK_FAILS = "workflow task fails"
    WRONG_QUEUE = "no worker on the task queue, but on other task queues"
    NO_VERSION = "no worker of the required version"
    NO_WORKER = "no worker on the task queue"
    UNKNOWN_ACTIVITY = "activity type unknown to the worker"
    ACTIVITY_TIMES_OUT = "activity times out and is retried"
    ACTIVITY_FAILS = "activity fails and is retried"
    NO_ACTIVITY_WORKER = "no worker for the activity"
    PAUSED = "activity is paused"
    WORKER_BUSY = "workers are slow to receive the task"
    CANCELLING = "cancellation requested, but not ended"
    CODE_RUNS = "workflow code is running"
    ACTIVITY_RUNS = "activity is running"
    ACTIVITY_QUEUED = "activity waits for a worker"
    CHILD = "waits for a child workflow"
    UPDATE = "an update has not returned"
    LOCK = "waits for a lock"
    UNHEARD = "received a signal without a handler"
    SIGNAL = "waits for a signal"
    CONDITION = "waits for a condition"
    MESSAGE = "waits for a message"
    OTHER = "waits for something else"
    TIMER = "waits for a timer"
    DELAYED = "start is delayed"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    TERMINATED = "terminated"
    CANCELLED = "cancelled"
    CONTINUED = "continued as new"
    DONE = "completed"


CLOSED = frozenset(
    (Cause.FAILED, Cause.TIMED_OUT, Cause.TERMINATED, Cause.CANCELLED, Cause.CONTINUED, Cause.DONE)
)
"""Causes that apply to closed runs."""


@dataclass(frozen=True, slots=True)
class Action:
    """A suggested action: its purpose, and the command if there is one."""

    text: str
    command: str = ""


def command(words: str, options: str) -> str:
    """Return a command of ours, with the options that find the same target."""
    return f"hourglass {words} {options}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A finding about a run. `what` is a sentence without its subject, the workflow.

    `since` is the start of the state, and `until` its end, if it ends automatically. `next_attempt` is the time of the next
    retry. A `count` above 1 is the number of equal findings.
    """

    cause: Cause
    what: str
    since: int | None = None
    until: int | None = None
    place: str = ""
    code: str = ""
    faults: tuple[Fault, ...] = ()
    attempts: int = 0
    max_attempts: int = 0
    next_attempt: int | None = None
    details: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()
    inner: Diagnosis | None = None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The result: findings about a run, the most important first. `wrong` means that an operator should act."""

    workflow_id: str
    workflow_type: str = ""
    run_id: str = ""
    task_queue: str = ""
    state: str = ""
    start: int | None = None
    end: int | None = None
    now: int = 0
    findings: tuple[Finding, ...]
    wrong: bool

    @property
    def cause(self) -> Cause:
        """The most important cause."""
        return self.findings[0].cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The known facts of a run: its story, its events, and the results of queries.

    `positions` (the positions of fibers) and the names of messages are answers of the run's worker; `unanswered` is the reason
    if there are none. `takes_any` means that a handler accepts signals of every name. `children` contains diagnoses by
    workflow id. `options` are the options with which commands find the same target. `replayed` is the difference between the
    local code and the history, if they were compared; `fits` means that they match. `pinned` is the version that the run is
    pinned to, if any. `died` reports processes that died while they executed the run. `activity_stacks` contains the stacks
    of the run's running activities by id, as far as its worker executes them.
    """

    story: Story
    now: int
    events: tuple[HistoryEvent, ...]
    queues: Mapping[str, TaskQueueDescription] = field(default_factory=dict)
    positions: tuple[Position, ...] = ()
    awaited: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    takes_any: bool = False
    unanswered: str = ""
    next_task: int | None = None
    children: Mapping[str, Diagnosis] = field(default_factory=dict)
    options: str = ""
    replayed: Fault | None = None
    fits: bool = False
    pinned: str = ""
    died: str = ""
    activity_stacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The workflow id, quoted for a command."""
        return shlex.quote(self.story.workflow_id)

    def command(self, words: str) -> str:
        """Return a command of ours, with the options that find the same target."""
        return command(words, self.options)
