"""Runs that hung, and for how long they are not executed again.

Each hang costs a lane, perhaps a thread for good. The first may have been an accident (a machine that stood still), so the run
is tried once more; after the second it waits until its code changes or a long time has passed, then gets one try at a time.
While too many threads are stuck, every run of a workflow that hung lately waits: else a thousand runs of one
bad deploy would take two thousand threads. So it does when two of its runs have stopped a whole process each.

A process that is replaced passes on what it knows, and the next one begins with it (`restore`). What code they hung in is then
judged by whoever passed it on.

Thread-safe: the control loop writes, lanes ask. Knows no threads and no engine.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from hourglass._engine.definition import WorkflowDefinition
from hourglass._runtime.guardian_wire import RunHung
from hourglass._runtime.hung_stack import HungStack

HANGS = 2
BACK_OFF = 600.0
_REMEMBERED = 1000
_EPIDEMIC = 2  # runs of one workflow, each of which stopped a process


@dataclass(frozen=True)
class Hang:
    """What is known of a run that hung: how often, when last, where, and in which code. `owed`: no task has failed for it yet."""

    times: int
    at: float
    stack: HungStack
    definition: WorkflowDefinition | None
    code: object
    owed: bool = False

    def is_of(self, definition: WorkflowDefinition) -> bool:
        """Whether a definition is the very code that hung. What is reloaded is another object, whatever has changed in it."""
        return self.definition is definition and self.code == code_of(definition)


def code_of(definition: WorkflowDefinition | None) -> object:
    """The compiled body: some tools replace it in place."""
    return None if definition is None else getattr(inspect.unwrap(definition.run), "__code__", None)


class Quarantine:
    """Which runs must not be executed now, and why."""

    def __init__(self, *, back_off: float = BACK_OFF, clock: Callable[[], float] = time.monotonic) -> None:
        self.distress = False
        self.on_hung: Callable[[str, str, HungStack], object] | None = None
        self.on_went_on: Callable[[str], object] | None = None
        self._back_off = back_off
        self._clock = clock
        self._lock = threading.Lock()
        self._hangs: OrderedDict[str, Hang] = OrderedDict()
        self._epidemics: dict[str, Hang] = {}

    def __len__(self) -> int:
        """How many runs are remembered."""
        return len(self._hangs)

    def add(self, run_id: str, definition: WorkflowDefinition | None, stack: HungStack) -> int:
        """A run hung; returns how often it has, in this code."""
        with self._lock:
            known = self._hangs.pop(run_id, None)
            again = known is not None and known.definition is definition and known.code == code_of(definition)
            times = known.times + 1 if known is not None and again else 1
            self._hangs[run_id] = Hang(times, self._clock(), stack, definition, code_of(definition))
            while len(self._hangs) > _REMEMBERED:
                self._hangs.popitem(last=False)
        if self.on_hung is not None:
            self.on_hung(run_id, definition.name if definition is not None else "", stack)
        return times

    def restore(self, hangs: Iterable[RunHung]) -> None:
        """Begin with what processes before this one knew."""
        costly: dict[str, set[str]] = {}
        with self._lock:
            for each in hangs:
                hang = Hang(
                    each.times,
                    self._clock() - each.age,
                    HungStack(each.stack, each.place),
                    None,
                    None,
                    owed=each.owed,
                )
                self._hangs[each.run_id] = hang
                if each.costly and each.workflow_type and each.age < self._back_off:
                    runs = costly.setdefault(each.workflow_type, set())
                    runs.add(each.run_id)
                    if len(runs) >= _EPIDEMIC:
                        self._epidemics[each.workflow_type] = hang

    def forget(self, run_id: str) -> None:
        """A run went on."""
        if self._hangs:
            with self._lock:
                known = self._hangs.pop(run_id, None)
            if known is not None and self.on_went_on is not None:
                self.on_went_on(run_id)

    def held(self, run_id: str, definition: WorkflowDefinition | None) -> Hang | None:
        """Why a run must not be executed now, None if it may. `definition` is None before it is known."""
        if not self._hangs:
            return None
        with self._lock:
            hang = self._hangs.get(run_id)
            if hang is not None and definition is not None and not self._same(hang, definition):
                del self._hangs[run_id]
                hang = None
            if hang is not None and hang.owed:
                self._hangs[run_id] = replace(hang, owed=False)
                return hang
            if (
                hang is not None
                and hang.times >= HANGS
                and (definition is not None or hang.definition is None)
            ):
                return self._held_back(run_id, hang)
            return self._held_in_epidemic(definition) or self._held_in_distress(definition)

    def _held_back(self, run_id: str, hang: Hang) -> Hang | None:
        now = self._clock()
        if now - hang.at < self._back_off:
            return hang
        # One try: whoever asks again before it has ended is held.
        self._hangs[run_id] = replace(hang, at=now)
        return None

    def _held_in_epidemic(self, definition: WorkflowDefinition | None) -> Hang | None:
        hang = self._epidemics.get(definition.name) if definition is not None else None
        return hang if hang is not None and self._clock() - hang.at < self._back_off else None

    def _held_in_distress(self, definition: WorkflowDefinition | None) -> Hang | None:
        if not self.distress or definition is None:
            return None
        now = self._clock()
        return next(
            (
                each
                for each in self._hangs.values()
                if each.is_of(definition) and now - each.at < self._back_off
            ),
            None,
        )

    @staticmethod
    def _same(hang: Hang, definition: WorkflowDefinition) -> bool:
        # A run that hung before its definition was found hung in an import: only time tells.
        return hang.definition is None or hang.is_of(definition)
