"""Runs that cannot go on: which of them are held back for a while (`Quarantine`), what their engine is told, and what
is logged, once per run and reason (`ParkedRuns`), so that it shows why such a run does not go on.

Each hang costs a lane, perhaps a thread for good. The first may have been an accident (a machine that stood still),
so the run is tried once more; after the second it waits until its code changes or a long time has passed, then gets
one try at a time. While too many threads are stuck, every run of a workflow that hung lately waits: else a thousand
runs of one bad deploy would take two thousand threads. So it does when two of its runs have stopped a whole process
each.

A run may also kill its process: a crash in C, too much memory. All that were in work when a process died are
suspects, and executed one at a time (see `lanes`); the second death at the same run, in the same code, is its own,
and it waits likewise, longer each time. One that went on is innocent.

A process that is replaced passes on what it knows, and the next one begins with it (`Quarantine.restore`). Whether
the code that a run hung in has changed is then judged by the guardian, which passes it on; a death carries a digest
of its code's file instead.

Must not know: threads, engines. For several threads: the control loop writes, lanes ask. Reasons and hangs are kept
for a bounded number of runs.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from hourglass._evaluator.commands import TaskFailed
from hourglass._evaluator.definition import WorkflowDefinition
from hourglass._worker.code_origin import is_ours, where_raised, without_our_frames
from hourglass._worker.health.deaths import DEATHS, LOCAL_DEATHS
from hourglass._worker.health.hung import HungStack, RunHung
from hourglass._worker.health.lane_notes import digest_of
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import ArgumentError, UnknownTypeError, WorkflowParked

# --- quarantine ---------------------------------------------------------------------------------------------


HANGS = 2
BACK_OFF = 600.0
_LONGEST_BACK_OFF = 6 * 3600.0
_MOST_UNNAMED = 100
_REMEMBERED = 1000
_EPIDEMIC = 2  # runs of one workflow, each of which stopped a process


@dataclass(frozen=True)
class Hang:
    """What is known of a run that hung: how often, when last, where, and in which code. `owed`: no task has failed for it yet.
    `died`: it did not hang, but its process died, which says only which file its code was; `activity` is the local activity that
    was executing then, if it was not the workflow's code.
    """

    times: int
    at: float
    stack: HungStack
    definition: WorkflowDefinition | None
    code: object
    owed: bool = False
    died: bool = False
    activity: str = ""

    @property
    def limit(self) -> int:
        """How often it may happen before the run must wait."""
        if not self.died:
            return HANGS
        return LOCAL_DEATHS if self.activity else DEATHS

    def is_of(self, definition: WorkflowDefinition) -> bool:
        """Whether a definition is the very code that hung. What is reloaded is another object, whatever has changed in it."""
        if self.died:
            return self.code in ("", digest_of(definition))
        return self.definition is definition and self.code == code_of(definition)


def code_of(definition: WorkflowDefinition | None) -> object:
    """The compiled body: some tools replace it in place."""
    return None if definition is None else getattr(inspect.unwrap(definition.run), "__code__", None)


class Quarantine:
    """Which runs must not be executed now, and why."""

    def __init__(self, *, back_off: float = BACK_OFF, clock: Callable[[], float] = monotonic) -> None:
        self.distress = False
        self.on_hung: Callable[[str, str, HungStack], object] | None = None
        self.on_went_on: Callable[[str], object] | None = None
        self._back_off = back_off
        self._clock = clock
        self._lock = threading.Lock()
        self.hangs: OrderedDict[str, Hang] = OrderedDict()
        self._epidemics: dict[str, Hang] = {}

    def __len__(self) -> int:
        """How many runs are remembered."""
        return len(self.hangs)

    def add(self, run_id: str, definition: WorkflowDefinition | None, stack: HungStack) -> int:
        """A run hung; returns how often it has, in this code."""
        with self._lock:
            known = self.hangs.pop(run_id, None)
            again = known is not None and known.definition is definition and known.code == code_of(definition)
            times = known.times + 1 if known is not None and again else 1
            self.hangs[run_id] = Hang(times, self._clock(), stack, definition, code_of(definition))
            while len(self.hangs) > _REMEMBERED:
                self.hangs.popitem(last=False)
        if self.on_hung is not None:
            self.on_hung(run_id, definition.name if definition is not None else "", stack)
        return times

    def restore(self, hangs: Iterable[RunHung]) -> None:
        """Begin with what processes before this one knew."""
        costly: dict[str, set[str]] = {}
        with self._lock:
            for each in hangs:
                known = self.hangs.get(each.run_id)
                if known is not None and known.times > each.times:
                    continue
                hang = Hang(
                    each.times,
                    self._clock() - each.age,
                    HungStack(each.stack, each.place),
                    None,
                    each.code if each.died else None,
                    owed=each.owed,
                    died=each.died,
                    activity=each.activity,
                )
                self.hangs[each.run_id] = hang
                if each.costly and each.workflow_type and each.age < self._hold(hang):
                    runs = costly.setdefault(each.workflow_type, set())
                    runs.add(each.run_id)
                    if len(runs) >= _EPIDEMIC:
                        self._epidemics[each.workflow_type] = hang

    def is_suspect(self, run_id: str) -> bool:
        """Whether a process died while a run was in work, and it is not known yet which run it died of."""
        if not self.hangs:
            return False
        hang = self.hangs.get(run_id)
        return hang is not None and hang.died and not hang.activity

    def forget(self, run_id: str) -> None:
        """A run's code went on; that says nothing of a local activity at which processes died."""
        self._forget(run_id, "")

    def attempt_ended(self, run_id: str, activity: str) -> None:
        """A local activity of a run has ended, and this process has not."""
        self._forget(run_id, activity)

    def _forget(self, run_id: str, activity: str) -> None:
        if self.hangs:
            with self._lock:
                known = self.hangs.get(run_id)
                if known is not None and known.activity == activity:
                    del self.hangs[run_id]
                else:
                    known = None
            if known is not None and self.on_went_on is not None:
                self.on_went_on(run_id)

    def held(self, run_id: str, definition: WorkflowDefinition | None) -> Hang | None:
        """Why a run must not be executed now, None if it may. `definition` is None before it is known."""
        if not self.hangs:
            return None
        with self._lock:
            hang = self.hangs.get(run_id)
            if hang is not None and definition is not None and not self._same(hang, definition):
                del self.hangs[run_id]
                hang = None
            if hang is not None and hang.owed:
                self.hangs[run_id] = replace(hang, owed=False)
                return hang
            if (
                hang is not None
                and hang.times >= hang.limit
                and (definition is not None or (hang.definition is None and not hang.died))
            ):
                return self._held_back(run_id, hang)
            return self._held_in_epidemic(definition) or self._held_in_distress(definition)

    def _held_back(self, run_id: str, hang: Hang) -> Hang | None:
        now = self._clock()
        if now - hang.at < self._hold(hang):
            return hang
        # One try: the run is held again if it is asked for before that try has ended.
        self.hangs[run_id] = replace(hang, at=now)
        return None

    def _hold(self, hang: Hang) -> float:
        """For how long a run is held back. After a death it is not for long at first: where processes are killed from outside
        again and again, a run may have been executing twice and be innocent. Then longer each time, for a try costs a process.
        """
        if not hang.died:
            return self._back_off
        longer = min(max(hang.times - hang.limit, 0), 12)
        return min(self._back_off / 10 * (1 << longer), max(self._back_off, _LONGEST_BACK_OFF))

    def _held_in_epidemic(self, definition: WorkflowDefinition | None) -> Hang | None:
        hang = self._epidemics.get(definition.name) if definition is not None else None
        if hang is None or definition is None or (hang.died and not hang.is_of(definition)):
            return None
        return hang if self._clock() - hang.at < self._hold(hang) else None

    def _held_in_distress(self, definition: WorkflowDefinition | None) -> Hang | None:
        if not self.distress or definition is None:
            return None
        now = self._clock()
        return next(
            (
                each
                for each in self.hangs.values()
                if each.is_of(definition) and now - each.at < self._back_off
            ),
            None,
        )

    @staticmethod
    def _same(hang: Hang, definition: WorkflowDefinition) -> bool:
        # A run that hung before its definition was found hung in an import: only time tells.
        return (hang.definition is None and not hang.died) or hang.is_of(definition)


# --- parked runs --------------------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.worker")


class WorkflowLabel(NamedTuple):
    """Names of a run for log records."""

    workflow_type: str
    workflow_id: str
    run_id: str
    task_queue: str


class ParkedRuns:
    """The runs that are parked, of all lanes that work together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reasons: OrderedDict[str, str] = OrderedDict()
        self.unnamed: dict[str, str] = {}
        """By run id, the difference of runs that do not fit their history and are not in the cache: what they are called only
        the engine knows (see `parked_watch`). To be changed on copies alone."""

    def note_unnamed(self, run_id: str, difference: str) -> None:
        """A run that is not in the cache does not fit its history; nothing to do if it was logged already."""
        with self._lock:
            if run_id not in self.reasons and len(self.unnamed) < _MOST_UNNAMED:
                self.unnamed = {**self.unnamed, run_id: difference}

    def drop_unnamed(self, run_id: str) -> None:
        """The run has been logged, or the engine does not know it."""
        with self._lock:
            self.unnamed = {name: each for name, each in self.unnamed.items() if name != run_id}

    def remember(self, run_id: str, reason: str) -> bool:
        """Note why a run cannot go on; False if that is known."""
        with self._lock:
            known = self.reasons.get(run_id) == reason
            self.reasons[run_id] = reason
            self.reasons.move_to_end(run_id)
            while len(self.reasons) > _REMEMBERED:
                self.reasons.popitem(last=False)
            return not known

    def say_parked(
        self, workflow: str, workflow_id: str, run_id: str, error: BaseException | None, task_queue: str = ""
    ) -> None:
        """A run's code has a bug, or does not take what the run was started with."""
        raised = error.__cause__ or error if isinstance(error, WorkflowParked) else error
        kind, where = ("failed task", "") if raised is None else (type(raised).__name__, _place(raised))
        if not self.remember(run_id, f"{kind}{where}: {error}"):
            return
        extra = {
            "workflow_id": workflow_id,
            "run_id": run_id,
            "workflow_type": workflow,
            "task_queue": task_queue,
            "error_type": kind,
        }
        if isinstance(error, ArgumentError) and not where:
            logger.error(
                "workflow %s (%s, run %s) cannot begin: %s. Its task is retried until the code takes what the run was "
                "started with; or terminate it, and start it with what the code takes",
                workflow,
                workflow_id,
                run_id,
                error,
                extra=extra,
            )
            return
        logger.error(
            "workflow %s (%s, run %s) is parked: %s%s. Its task is retried until the code is mended",
            workflow,
            workflow_id,
            run_id,
            kind,
            where,
            exc_info=None if error is None else without_our_frames(error),
            extra=extra,
        )

    def say_misfit(self, run: WorkflowLabel, difference: str, place: str, code: str) -> None:
        """Log that a run's code does not fit its history, once per run, difference and version of the code.

        `difference` is the engine's message, `place` is empty or ` at file:line`, `code` a digest of the code.
        """
        if not self.remember(run.run_id, f"NondeterminismError{place}: {difference} {code}"):
            return
        logger.error(
            "workflow %s (%s, run %s) is parked: its code does not fit its history%s: %s. Its task is retried until the "
            "code fits: guard the change with workflow.patched(), or deploy the old code; `hourglass why %s` shows both sides",
            run.workflow_type,
            run.workflow_id,
            run.run_id,
            place,
            difference,
            run.workflow_id,
            extra={**run._asdict(), "error_type": "NondeterminismError"},
        )

    def say_died(self, run_id: str, error: BaseException) -> None:
        """A run could not be evaluated: its type is unknown, or we have a bug."""
        if not isinstance(error, UnknownTypeError):
            logger.error("the evaluation of run %s died", run_id, exc_info=error, extra={"run_id": run_id})
        elif self.remember(run_id, str(error)):
            logger.error("run %s cannot go on: %s", run_id, error, extra={"run_id": run_id})

    def forget(self, run_id: str) -> bool:
        """A run goes on; True if it was parked."""
        if not self.reasons:
            return False
        with self._lock:
            return self.reasons.pop(run_id, None) is not None

    def kinds(self) -> dict[str, str]:
        """What kind of error and where, by run: never the message, which may quote data."""
        with self._lock:
            return {run_id: reason.partition(": ")[0] for run_id, reason in self.reasons.items()}


def miss(run_id: str) -> TaskFailed:
    """The run is not here, and its start is not among the events."""
    return task_failed(
        run_id, "RunNotCached", "this worker does not hold the run: its whole history is needed"
    )


def refusal(run_id: str, hang: Hang) -> TaskFailed:
    """The run hung, or killed its process, too often to be executed now."""
    if hang.died:
        text = (
            f"this run is not executed, because the worker's process died while "
            f"{f'its local activity {hang.activity}' if hang.activity else 'its code'} was executing ({hang.times}×): a crash "
            f"in an extension module, too much memory, a kill. It is tried again when the workflow's file has changed, or "
            f"after a while"
        )
        return task_failed(run_id, "ProcessDied", text)
    text = (
        f"this run is not executed, because its code hung ({hang.times}×), last at {hang.stack.place}. "
        f"It is tried again when the code has changed, or after a while"
    )
    return task_failed(run_id, "WorkflowQuarantined", text, hang.stack.text)


def task_failed(run_id: str, type_: str, message: str, stack_trace: str = "") -> TaskFailed:
    """A failed task, of a kind that has a name."""
    info = ApplicationFailure(type=type_)
    return TaskFailed(run_id, Failure(message=message, info=info, stack_trace=stack_trace))


def _place(error: BaseException) -> str:
    """Where the author's code raised; a line of ours where the fault is ours."""
    found = where_raised(error)
    if found is None or (is_ours(found[0]) and isinstance(error, ArgumentError)):
        return ""
    return f" at {found[0]}:{found[1]}"


# --- what a guardian remembers -------------------------------------------------------------------------------

_REMEMBERED_HANGS = 200
_LONGEST_STACK = 16_000
_FILE = re.compile(r'^  File "(.+)", line \d+', re.MULTILINE)


class HungRuns:
    """The runs that hung, as a guardian remembers them while processes come and go, and tells each new process.

    A run is remembered until it goes on, its code changes, or many others have hung since. Its code has changed when one of the
    author's files on its stack has: the process that hung cannot tell which code it ran, and what comes after it has its own.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._runs: dict[
            str, tuple[RunHung, float, dict[str, str]]
        ] = {}  # when, and the code on its stack then

    def add(self, hang: RunHung) -> RunHung:
        """A run hung; returns it with how often it has, in this code."""
        self._forget_changed()
        known = self._runs.pop(hang.run_id, None)
        times = 1 if known is None else known[0].times + 1
        hang = replace(hang, times=times, stack=hang.stack[:_LONGEST_STACK])
        self._runs[hang.run_id] = (hang, self._clock(), _code(hang.stack))
        while len(self._runs) > _REMEMBERED_HANGS:
            del self._runs[next(iter(self._runs))]
        return hang

    def forget(self, run_id: str) -> None:
        """A run went on."""
        self._runs.pop(run_id, None)

    def told(self) -> list[RunHung]:
        """All that a new process should know. Each failure is owed once: the first process that hears of it pays."""
        self._forget_changed()
        now, known = self._clock(), list(self._runs.values())
        self._runs = {hang.run_id: (replace(hang, owed=False), at, code) for hang, at, code in known}
        return [replace(hang, age=now - at) for hang, at, _ in known]

    def _forget_changed(self) -> None:
        self._runs = {run_id: each for run_id, each in self._runs.items() if each[2] == _code(each[0].stack)}


def _code(stack: str) -> dict[str, str]:
    """The files on a stack, and what is in them now."""
    return {file: _digest(file) for file in _FILE.findall(stack)}


def _digest(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError:
        return ""
