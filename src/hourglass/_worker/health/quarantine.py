"""Runs that must not be executed now, because their code hung or killed processes (`Quarantine`).

Each hang costs a lane, and perhaps a thread permanently. The first hang may have been an accident (the machine stood
still), so the run is executed once more. After the second hang the run is held until its code changes or a long time
has passed. From then on it gets one try at a time. While too many threads are stuck, every run of a workflow that hung
recently is held: otherwise a thousand runs of one bad deployment would occupy two thousand threads. All runs of a
workflow are also held after two of its runs have each ended a process.

A run may also kill its process, by a crash in C code or by using too much memory. All runs that were executing when a
process died are suspects, and are executed one at a time (see `lanes`). After the second death during the same run, in
the same code, the run counts as the culprit and is held, longer each time. A run that makes progress is released.

Incidents of earlier processes come from the record of the target, and incidents of this process are added to that
record (`incidents`).

Must not know: threads, engines. Thread-safe: the control loop writes, lanes read. At most `_MOST_RUNS` runs are
remembered.
"""

from __future__ import annotations

import hashlib
import inspect
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from time import time as wall_time

from hourglass._evaluator.commands import TaskFailed
from hourglass._evaluator.definition import WorkflowDefinition
from hourglass._worker.health.incidents import DEATHS, LOCAL_DEATHS, Incident, Incidents, hang
from hourglass._worker.health.parked import task_failed
from hourglass._worker.health.stacks import HungStack

HANGS = 2
BACK_OFF = 600.0
_LONGEST_BACK_OFF = 6 * 3600.0
_MOST_RUNS = 1000
_EPIDEMIC = 2  # distinct runs of one workflow that each stopped a process
_MOST_DIGESTS = 1000


@dataclass(frozen=True)
class HeldRun:
    """A run that hung or killed processes. `times` is the number of incidents, `at` is the monotonic time of the last
    one, `stack` is the stack of the hung code.

    `code` identifies the code. After a hang it is the definition and its compiled body, after a death the digest of the
    workflow's file ("" if unknown). It is None if only time releases the run. `owed` is set if no task has failed for
    the hang yet, because the process was killed.
    """

    times: int
    at: float
    stack: HungStack
    code: object
    owed: bool = False
    died: bool = False
    activity_id: str = ""

    @property
    def limit(self) -> int:
        """The number of incidents after which the run is held."""
        if not self.died:
            return HANGS
        return LOCAL_DEATHS if self.activity_id else DEATHS

    def matches(self, definition: WorkflowDefinition) -> bool:
        """Whether a definition may be the code that hung or died. Code that was reloaded counts as other code, even if
        it has not changed.
        """
        if isinstance(self.code, str):
            return self.code in ("", digest_of(definition))
        return self.code is None or self.code == _code_of(definition)


class Quarantine:
    """The runs that must not be executed now, and the rules for holding and releasing them. `record` outlives the
    process.
    """

    def __init__(
        self,
        record: Incidents | None = None,
        *,
        back_off: float = BACK_OFF,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.distress = False
        """Whether too many threads are stuck."""
        self.runs: OrderedDict[str, HeldRun] = OrderedDict()
        self._record = record
        self._back_off = back_off
        self._clock = clock
        self._lock = threading.Lock()
        self._epidemics: dict[str, HeldRun] = {}
        if record is not None:
            self.restore(record.current(), {incident.run_id for incident in record.fresh})

    def __len__(self) -> int:
        """Return the number of remembered runs."""
        return len(self.runs)

    def add(self, run_id: str, definition: WorkflowDefinition | None, stack: HungStack) -> int:
        """Record that a run hung. Return the number of times that the run has hung in this code."""
        code = _code_of(definition)
        with self._lock:
            earlier = self.runs.pop(run_id, None)
            times = earlier.times + 1 if earlier is not None and earlier.code == code else 1
            self.runs[run_id] = HeldRun(times, self._clock(), stack, code)
            while len(self.runs) > _MOST_RUNS:
                self.runs.popitem(last=False)
        if self._record is not None:
            self._record.add(hang(run_id, definition.name if definition is not None else "", stack))
        return times

    def restore(self, incidents: Iterable[Incident], fresh: Iterable[str] = ()) -> None:
        """Add incidents of earlier processes. `fresh` contains the ids of runs with new incidents. If a new incident
        was a hang that stopped its process, the run's next task fails.
        """
        stopped: dict[str, set[str]] = {}
        owed = set(fresh)
        with self._lock:
            for incident in incidents:
                age = wall_time() - incident.at
                held = HeldRun(
                    incident.times,
                    self._clock() - age,
                    HungStack(incident.stack, incident.place),
                    incident.code if incident.died else None,
                    owed=incident.stopped_process and incident.run_id in owed,
                    died=incident.died,
                    activity_id=incident.activity_id,
                )
                self.runs[incident.run_id] = held
                is_culprit = incident.stopped_process or (
                    held.died and not held.activity_id and held.times >= held.limit
                )
                if is_culprit and incident.workflow_type and age < self._hold(held):
                    runs = stopped.setdefault(incident.workflow_type, set())
                    runs.add(incident.run_id)
                    if len(runs) >= _EPIDEMIC:
                        self._epidemics[incident.workflow_type] = replace(held, code=incident.code)

    def is_suspect(self, run_id: str) -> bool:
        """Whether a process died while the run was executing, so that it must execute alone."""
        held = self.runs.get(run_id)
        return held is not None and held.died and not held.activity_id

    def release(self, run_id: str, activity_id: str = "") -> None:
        """Release a run whose code made progress, or with `activity_id` a run that is held because of this local
        activity, which has ended without killing the process.
        """
        if not self.runs:
            return
        with self._lock:
            held = self.runs.get(run_id)
            if held is None or held.activity_id != activity_id:
                return
            del self.runs[run_id]
        if self._record is not None:
            self._record.forget(run_id)

    def held(self, run_id: str, definition: WorkflowDefinition | None) -> HeldRun | None:
        """Return the reason for not executing a run now, as a `HeldRun`; None if the run may be executed. `definition`
        is None until it has been resolved.
        """
        with self._lock:
            held = self.runs.get(run_id)
            if held is not None and definition is not None and not held.matches(definition):
                del self.runs[run_id]
                held = None
            if held is not None and held.owed:
                self.runs[run_id] = replace(held, owed=False)
                return held
            if (
                held is not None
                and held.times >= held.limit
                and (definition is not None or held.code is None)
            ):
                return self._held_back(run_id, held)
            if definition is None:
                return None
            return self._held_in_epidemic(definition) or self._held_in_distress(definition)

    def _held_back(self, run_id: str, held: HeldRun) -> HeldRun | None:
        now = self._clock()
        if now - held.at < self._hold(held):
            return held
        # The run gets one try: further tasks are held again unless the try makes progress.
        self.runs[run_id] = replace(held, at=now)
        return None

    def _hold(self, held: HeldRun) -> float:
        """Return the time in seconds for which a run is held.

        After a death the time is short at first: if processes are often killed from outside, an innocent run may have
        been executing at two deaths. Then the time grows, because each try may cost a process.
        """
        if not held.died:
            return self._back_off
        doublings = min(max(held.times - held.limit, 0), 12)
        return min(self._back_off / 10 * (1 << doublings), max(self._back_off, _LONGEST_BACK_OFF))

    def _held_in_epidemic(self, definition: WorkflowDefinition) -> HeldRun | None:
        held = self._epidemics.get(definition.name)
        if held is None or not held.matches(definition):
            return None
        return held if self._clock() - held.at < self._hold(held) else None

    def _held_in_distress(self, definition: WorkflowDefinition) -> HeldRun | None:
        if not self.distress:
            return None
        since = self._clock() - self._back_off
        candidates = (held for held in self.runs.values() if held.at > since and held.code is not None)
        return next((held for held in candidates if held.matches(definition)), None)


def rejection(run_id: str, held: HeldRun) -> TaskFailed:
    if held.died:
        culprit = f"its local activity {held.activity_id}" if held.activity_id else "its code"
        text = (
            f"this run is quarantined, because the worker's process died while {culprit} was executing ({held.times}×). "
            "Possible causes: a crash in an extension module, a lack of memory, or a signal. The run is executed again when "
            "the workflow's file has changed, or after a while"
        )
        return task_failed(run_id, "ProcessDied", text)
    text = (
        f"this run is quarantined, because its code hung ({held.times}×), last at {held.stack.place}. The run is executed "
        "again when the code has changed, or after a while"
    )
    return task_failed(run_id, "WorkflowQuarantined", text, held.stack.text)


def digest_of(definition: WorkflowDefinition) -> str:
    """Return a digest of the file that defines a workflow. All processes compute the same digest until the file
    changes.
    """
    cached = _digests.get(id(definition))
    if cached is not None and cached[0] is definition:
        return cached[1]
    code = getattr(inspect.unwrap(definition.run), "__code__", None)
    try:
        content = Path(code.co_filename).read_bytes() if code is not None else b""
    except (OSError, ValueError):
        content = code.co_code if code is not None else b""
    digest = hashlib.sha256(content).hexdigest()[:16]
    if len(_digests) >= _MOST_DIGESTS:
        _digests.clear()
    _digests[id(definition)] = (definition, digest)
    return digest


def _code_of(definition: WorkflowDefinition | None) -> object:
    """Return the definition and its compiled body, which some tools replace in place."""
    if definition is None:
        return None
    return definition, getattr(inspect.unwrap(definition.run), "__code__", None)


_digests: dict[int, tuple[WorkflowDefinition, str]] = {}
