"""What a lane does with an activation: find or make the run, evaluate, check, and answer. Knows no threads and no
engine.

`Evaluations` belongs to one lane; everything in it but what the control loop asks (a section of its own) runs on that
lane's thread, because fibers cannot leave it. `Counts` are its figures.

Invariants:

- An activation is answered, whatever happens (I3): what dies in here is answered as a failed task, and its
  run forgotten.
- A run that is not known and has no start event fails the task, so that the engine sends the whole history
  (I4); a start event replaces what is kept.
- After a failed task nothing of the run is kept: the engine will send it from its history.
- Once it has handed over its runs it changes nothing that others see, and says nothing; it only unwinds its fibers.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import warnings
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

import msgspec

from hourglass import _forks
from hourglass._evaluator.commands import (
    CancelRun,
    CompleteRun,
    Completion,
    ContinueAsNew,
    FailRun,
    Succeeded,
    TaskFailed,
    TaskFailureCause,
)
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.definition import WorkflowDefinition
from hourglass._evaluator.evaluator import Evaluator
from hourglass._evaluator.events import Activation, QueryReceived, RunEvicted, RunStarted
from hourglass._evaluator.verify import verify_run
from hourglass._worker import work_log
from hourglass._worker.code_origin import is_library, is_ours
from hourglass._worker.health.lane_notes import LaneNote, packed
from hourglass._worker.health.parked import ParkedRuns, WorkflowLabel, cache_miss, task_failed
from hourglass._worker.health.quarantine import HeldRun, Quarantine, digest_of, rejection
from hourglass._worker.health.stopping import LaneStopped
from hourglass._worker.lanes.cache import (
    CacheLimits,
    Entry,
    Key,
    LiveRuns,
    LostJournals,
    StateCache,
    TurnRules,
)
from hourglass._worker.lanes.generations import Generations
from hourglass._worker.lanes.passed_handlers import passed_handler
from hourglass._worker.lanes.watcher import Watcher
from hourglass.errors import HourglassError, UsageError

# --- figures ------------------------------------------------------------------------------------------------


_ENDS: dict[type, str] = {
    CompleteRun: "completed",
    FailRun: "failed",
    CancelRun: "canceled",
    ContinueAsNew: "continued_as_new",
}
_MOST_KINDS = 1000


@dataclass
class Counts:
    """What a lane has done so far. Written by the lane, read by any thread."""

    activations: int = 0
    failed_tasks: int = 0
    misses: int = 0
    cached: int = 0
    live: int = 0
    parked: dict[str, str] = field(default_factory=dict)
    closed: dict[tuple[str, str], int] = field(default_factory=dict)
    """How many runs closed, by workflow type and how."""

    def add(self, other: Counts) -> None:
        """Count what a lane that is no more has done."""
        self.activations += other.activations
        self.failed_tasks += other.failed_tasks
        self.misses += other.misses
        for key, number in other.closed.items():
            self.closed[key] = self.closed.get(key, 0) + number

    def run_closed(self, workflow_type: str, result: object) -> None:
        """A run has sent its last command."""
        key = workflow_type, _ENDS.get(type(result), "")
        if key not in self.closed and len(self.closed) >= _MOST_KINDS:
            key = "other", key[1]  # a dynamic workflow takes any type that the wire names
        self.closed[key] = self.closed.get(key, 0) + 1


# --- the evaluations of a lane ------------------------------------------------------------------------------


logger = logging.getLogger("hourglass.worker")

Verify: TypeAlias = Literal["off", "always"] | float
"""Which runs are executed twice and compared: none, all, or a fraction of them."""

_DROP_ATTEMPTS = 3
_MISFIT = "NONDETERMINISM"
"""Core's reason for evicting a run whose code issued other commands than its history has."""


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The answer to an activation, and what the worker should know about it."""

    completion: Completion
    closed: bool = False
    evict: tuple[str, ...] = ()


class Evaluations:
    """The runs of one lane and how they are evaluated.

    `cache` may be shared with other lanes and outlive this one; `quarantine` says which runs must not be executed.
    `first_check`: the first activation after which an open run is verified; `on_demand`: runs are verified when `recheck`
    is called, and not before.
    """

    def __init__(
        self,
        resolve: Callable[[str], WorkflowDefinition],
        settings: RunSettings,
        *,
        limits: CacheLimits | None = None,
        verify: Verify = "off",
        watcher: Watcher | None = None,
        cache: StateCache | None = None,
        quarantine: Quarantine | None = None,
        parked: ParkedRuns | None = None,
        note: LaneNote | None = None,
        first_check: int = 1,
        on_demand: bool = False,
        generations: Generations | None = None,
    ) -> None:
        self._counts = Counts()
        self._home = _forks.here
        self.quarantine = quarantine if quarantine is not None else Quarantine()
        self.unwound = 0
        self.steps = 0  # moves while a large run is executed again, or unwound
        self._resolve = resolve
        self._settings = settings
        self._verified_settings = msgspec.structs.replace(settings, verify=True)
        self._verify: Verify = verify
        self._watcher = watcher
        self._cache = cache if cache is not None else StateCache(limits)
        self._limits = limits or self._cache.limits
        self._cache.admit(self)
        self._live = LiveRuns(self._limits.live)
        self._lost = LostJournals()
        self._turns = TurnRules()
        self._parked = parked if parked is not None else ParkedRuns()
        self._generations = generations if generations is not None else Generations()
        self._current: Entry | None = None
        self._dropping: Entry | None = None
        self._retired = False
        self._note = note
        self._first_check = first_check
        self._on_demand = on_demand
        self._tells_of_runs = work_log.tells_of_runs()

    @property
    def counts(self) -> Counts:
        """What the lane has done so far, and how much it holds now."""
        self._counts.cached, self._counts.live = self._cache.count(self), len(self._live)
        self._counts.parked = self._parked.kinds()
        return self._counts

    @property
    def task_queue(self) -> str:
        """The task queue whose runs are evaluated here."""
        return self._settings.task_queue

    def evaluate(self, activation: Activation, generation: int = 0) -> Verdict:
        """Answer an activation. Raises nothing but `LaneStopped`."""
        self._counts.activations += 1
        key = Key(self._settings.task_queue, activation.run_id, generation)
        try:
            verdict = self._evaluate(key, activation)
        except LaneStopped:
            raise
        except BaseException as error:
            self._raise_if_retired()
            verdict = self._died(activation.run_id, error)
        if type(verdict.completion) is TaskFailed:
            self._counts.failed_tasks += 1
            self._forget(key, activation)
        self._current = None
        if self._note is not None:
            self._note.clear()
        return verdict

    def forget_older(self, generation: int) -> None:
        """Drop what belongs to handles that are no more."""
        for entry in self._cache.pop_older(self._settings.task_queue, generation, self):
            self._drop(entry)

    def recheck(self) -> None:
        """Execute every verified run that is open once more, now, unless nothing has happened to it since the last time, and
        compare; one that differs is parked. On the lane's thread.
        """
        for entry in self._cache.owned(self):
            if entry.verified and not entry.run.closed and entry.activations > entry.checked:
                entry.checked = entry.activations
                difference = verify_run(entry.run)
                if difference is not None:
                    self._park(entry, difference)

    def close(self) -> None:
        """Drop everything, on the lane's thread."""
        self.unwind()
        self._cache.release(self)

    def unwind(self) -> None:
        """Drop all fibers, on the lane's thread; states stay with their owners, which may be other lanes by now."""
        if self._current is not None:
            self._drop(self._current)
            self._current = None
        while (entry := self._live.oldest()) is not None:
            self._drop(entry)
        if self._note is not None:
            self._note.release()

    # --- moving runs, on the control loop ----------------------------------------------------------------------------

    def suspect(self) -> Entry | None:
        """The run whose code is executing now, or is being unwound."""
        return self._dropping or self._current

    def hand_over(self, failed: Activation | None = None, generation: int = 0) -> Evaluations:
        """Give all runs to a successor on another thread, as data; the run of the activation that failed is forgotten."""
        successor = self._successor()
        # First: a hung thread that comes back from here on finds itself retired, and stops instead of answering.
        self._retired = True
        without = Key(self._settings.task_queue, failed.run_id, generation) if failed is not None else None
        left = self._cache.hand_over(self, successor, without)
        successor.beside(self)
        successor._counts = dataclasses.replace(self._counts)
        if failed is not None:
            successor._counts.failed_tasks += 1
            if left is not None:
                _remember(successor._lost, left, failed)
        _silence(self._current)
        return successor

    def _successor(self) -> Evaluations:
        """One that will have this lane's runs: the same on another thread, with nothing yet."""
        return Evaluations(
            self._resolve,
            self._settings,
            limits=self._limits,
            verify=self._verify,
            watcher=self._watcher.renewed() if self._watcher is not None else None,
            cache=self._cache,
            quarantine=self.quarantine,
            note=self._note.renewed() if self._note is not None else None,
            first_check=self._first_check,
            on_demand=self._on_demand,
        )

    def beside(self, other: Evaluations) -> None:
        """Share with another lane's what outlasts a run's stay on a lane: its state, why it is parked, what it did here
        before. Before it starts.
        """
        if self._cache is not other._cache:
            self._cache.release(self)
            self._cache = other._cache
            self._cache.admit(self)
        self._parked, self._lost, self._turns = other._parked, other._lost, other._turns
        self._generations = other._generations

    def sibling(self) -> Evaluations:
        """The same on another thread, with no runs yet."""
        sibling = self._successor()
        sibling.beside(self)
        return sibling

    def pass_on(self, key: Key, other: Evaluations) -> Entry | None:
        """Give a run that is not in work to another lane, as data; what is left has fibers that this lane must drop."""
        left = self._cache.pass_on(key, self, other)
        return left if left is not None and left.run.live is not None else None

    def leave_to(self, other: Evaluations) -> None:
        """Give all runs to another lane, as data. This one is idle, and will be asked for nothing but to close."""
        self._cache.hand_over(self, other)

    def work_of(self, key: Key) -> int:
        """About how much it takes to execute a run again, 0 if nothing is known of it."""
        entry = self._cache.find(key)
        return entry.run.work if entry is not None else 0

    @property
    def parked_runs(self) -> ParkedRuns:
        """The runs that are parked, of all lanes that work together; may be asked and told in any thread."""
        return self._parked

    def park_hung(self, run_id: str, place: str) -> None:
        """Remember that a run hung; before the lane starts, or on it."""
        self._parked.remember(run_id, f"WorkflowHung at {place}: ")

    def _stepped(self) -> None:
        self.steps += 1

    def _raise_if_retired(self) -> None:
        if self._retired:
            raise LaneStopped

    # --- one activation ----------------------------------------------------------------------------------------------

    def _evaluate(self, key: Key, activation: Activation) -> Verdict:
        started: RunStarted | None = None
        only_looks = True  # queries change nothing and are recorded nowhere
        for event in activation.events:
            kind = type(event)
            if kind is RunEvicted:
                self._evict(key, cast(RunEvicted, event))
                return Verdict(Succeeded(activation.run_id))
            if kind is not QueryReceived:
                only_looks = False
                if kind is RunStarted:
                    started = cast(RunStarted, event)
        if started is not None:
            begun = self._begin(key, started)
            if isinstance(begun, HeldRun):
                if begun.died:
                    self._parked.remember(activation.run_id, "ProcessDied: ")
                else:
                    self.park_hung(activation.run_id, begun.stack.place)
                return Verdict(rejection(activation.run_id, begun))
            entry = begun
            if started.parent_run_id and (refused := self._descend(entry, started, activation)) is not None:
                return Verdict(refused)
            if self._tells_of_runs and not activation.is_replaying:
                work_log.say_begun(started, activation.run_id, self._settings.task_queue)
        else:
            found = self._cache.get(key, self)
            if found is None:
                self._raise_if_retired()  # not a miss: the run has gone to the successor of this lane
                self._counts.misses += 1
                return Verdict(cache_miss(activation.run_id))
            entry = self._current = found
            entry.run.on_step = self._stepped  # it may have come from another lane
            if self._note is not None:
                self._note.write(found.noted)
        run = entry.run
        was_closed = run.state.result is not None
        completion = self._activate(entry, activation, None if only_looks else self._watcher)
        closed = run.state.result is not None
        closing = closed and not was_closed
        if type(completion) is Succeeded and not only_looks:
            entry.grown(activation)
            if entry.verified:
                completion = self._check(entry, completion, closing=closing)
        if type(completion) is TaskFailed:
            return Verdict(completion)
        if run.notices or self.quarantine.runs or self._parked.reasons:
            self._note_progress(entry, activation, only_looks=only_looks)
        if closing and not activation.is_replaying:
            self._counts.run_closed(run.state.workflow_type, run.state.result)
            if self._tells_of_runs or type(run.state.result) is FailRun:
                self._say_closed(entry, activation)
        return self._settle(entry, completion, closed=closed)

    def _settle(self, entry: Entry, completion: Completion, *, closed: bool) -> Verdict:
        if closed:
            self._drop(entry)  # the fibers only: until its eviction the run's state may be asked by queries
        if self._live.settle(entry):
            while (excess := self._live.excess()) is not None:
                self._drop(excess)
        evict = self._cache.to_evict(entry)
        return Verdict(completion, closed, tuple([each.run_id for each in evict]) if evict else ())

    def _begin(self, key: Key, started: RunStarted) -> Entry | HeldRun:
        self._forget(key)
        # Asked twice: before the definition is looked up, which may import, and so hang or die; and in its knowledge,
        # which tells whether the code has changed since.
        hang = self.quarantine.held(key.run_id, None)
        if hang is not None:
            return hang
        if self._note is not None:
            self._note.write(packed(key.run_id, started.workflow_type))
        definition = self._resolve(started.workflow_type)
        hang = self.quarantine.held(key.run_id, definition)
        if hang is not None:
            return hang
        verified = _is_verified(self._verify, key.run_id)
        settings = self._turns.settings(key.run_id, self._verified_settings if verified else self._settings)
        entry = Entry(
            key=key,
            run=Evaluator(definition, key.run_id, settings),
            workflow_id=started.workflow_id,
            verified=verified,
        )
        if self._note is not None:
            entry.noted = packed(key.run_id, started.workflow_type, digest_of(definition))
            self._note.write(entry.noted)
        entry.run.on_step = self._stepped
        entry.run.seen = self._lost.take(key.run_id)
        self._current = entry
        if not self._cache.put(entry, self):
            raise LaneStopped
        return entry

    def _descend(self, entry: Entry, started: RunStarted, activation: Activation) -> TaskFailed | None:
        """A child begins: it may be one too many in a row of them."""
        try:
            told = self._generations.begun(activation.run_id, started)
        except UsageError as error:
            return self._fail(entry, error)
        if told and not activation.is_replaying:
            self._warn(entry, told)
        return None

    def _activate(self, entry: Entry, activation: Activation, watcher: Watcher | None) -> Completion:
        complaint: HourglassError | None = None
        if watcher is not None:
            watcher.enter()
        try:
            completion = entry.run.activate(activation)
        finally:
            if _forks.here != self._home:
                # Before any lock is taken that another thread may have held when it forked.
                _end_fork(self._home)
            if watcher is not None:
                complaint = watcher.exit()
        if self._retired:
            raise LaneStopped
        if type(completion) is TaskFailed:
            self._park(entry, entry.run.error)
        elif complaint is not None:
            return self._fail(entry, complaint)
        return completion

    def _check(self, entry: Entry, completion: Completion, *, closing: bool) -> Completion:
        """Execute the run a second time, now and then and at its close, and compare."""
        if self._on_demand or not (closing or entry.is_to_be_checked(self._first_check)):
            return completion
        entry.checked = entry.activations
        try:
            difference = verify_run(entry.run)
        finally:
            _end_fork(self._home)
        self._raise_if_retired()
        if difference is None:
            return completion
        return self._fail(entry, difference, TaskFailureCause.NON_DETERMINISTIC_ERROR)

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    def _evict(self, key: Key, evicted: RunEvicted) -> None:
        """Forget a run on the engine's request. Log and count it if its code does not fit its history.

        Both engines compare commands with the history themselves, fail the task, and name the difference only here.
        """
        found = self._cache.get(key, self)
        place = _waits_at(found) if found is not None and evicted.reason == _MISFIT else ""
        entry = self._forget(key)
        retried = self._turns.learn(evicted, entry)
        if evicted.reason != _MISFIT:
            return
        self._counts.failed_tasks += 1
        if entry is None:
            self._parked.note_unnamed(key.run_id, evicted.message)
        elif not retried:
            definition = entry.run.definition
            run = WorkflowLabel(definition.name, entry.workflow_id, key.run_id, self._settings.task_queue)
            self._parked.say_misfit(run, evicted.message, place, digest_of(definition))

    def _fail(
        self,
        entry: Entry,
        error: HourglassError,
        cause: TaskFailureCause = TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE,
    ) -> TaskFailed:
        self._park(entry, error)
        return TaskFailed(entry.key.run_id, self._settings.converter.to_failure(error), cause)

    def _died(self, run_id: str, error: BaseException) -> Verdict:
        """The evaluation itself raised: the type is unknown, or we have a bug."""
        self._parked.say_died(run_id, error)
        return Verdict(task_failed(run_id, type(error).__name__, str(error) or type(error).__name__))

    def _park(self, entry: Entry, error: BaseException | None) -> None:
        name, queue = entry.run.definition.name, self._settings.task_queue
        self._parked.say_parked(name, entry.workflow_id, entry.key.run_id, error, queue)

    def _say_closed(self, entry: Entry, activation: Activation) -> None:
        live = entry.run.live
        if live is not None and live.started is not None:
            result, now_ns = entry.run.state.result, activation.timestamp_ns
            hint = passed_handler(live.let_out)
            work_log.say_closed(
                live.started, activation.run_id, self._settings.task_queue, result, now_ns, hint
            )

    def _note_progress(self, entry: Entry, activation: Activation, *, only_looks: bool) -> None:
        notices, entry.run.notices = entry.run.notices, ()
        if activation.is_replaying:
            return  # said when it happened
        for notice in notices:
            name = self._warn(entry, notice)
            for category in getattr(notice, "categories", ()):
                with suppress(Warning):  # filters may make errors of warnings; no worker ends of that
                    warnings.warn(f"workflow {name} ({entry.workflow_id}): {notice}", category, stacklevel=2)
        if not only_looks:
            self.quarantine.run_progressed(activation.run_id)
        if self._parked.forget(activation.run_id):
            logger.info("run %s goes on", activation.run_id)

    def _warn(self, entry: Entry, notice: str) -> str:
        name = entry.run.definition.name
        facts = {"workflow_id": entry.workflow_id, "run_id": entry.key.run_id, "workflow_type": name}
        logger.warning("workflow %s (%s): %s", name, entry.workflow_id, notice, extra=facts)
        return name

    def _forget(self, key: Key, failed: Activation | None = None) -> Entry | None:
        """Lose a run; what it did, the activation that failed included, is remembered for a while."""
        entry = self._cache.remove(key, self)
        if self._settings.steps is not None:
            self._settings.steps.pop(key.run_id, None)
        if entry is None:
            self._raise_if_retired()
            return None
        if entry.run.live is None:
            self._live.discard(entry)
        else:
            self._current = entry
            self._drop(entry)
            self._current = None
        _remember(self._lost, entry, failed)
        return entry

    def let_go(self, entry: Entry) -> None:
        """Drop the fibers of a run that was discarded, if they are here. On the lane's thread."""
        if entry in self._live:
            self._drop(entry)

    def _drop(self, entry: Entry) -> None:
        """Lose a run's fibers."""
        self._dropping = entry
        if self._note is not None:
            self._note.write(entry.noted)
        try:
            _unwind(entry)
        finally:
            _end_fork(self._home)
        self._live.discard(entry)
        self._dropping = None
        if self._note is not None and self._current is None:
            self._note.clear()
        self.unwound += 1


def _waits_at(entry: Entry) -> str:
    """Return ` at file:line` of the author's innermost frame in the first suspended fiber; empty if there is none."""
    live = entry.run.live
    for line in () if live is None else live.lines:
        for frame in line.frames():
            file = frame.f_code.co_filename
            if not is_ours(file) and not is_library(file):
                return f" at {file}:{frame.f_lineno}"
    return ""


def _end_fork(home: int) -> None:
    """End this process if workflow code has forked it, and the code is left: it would sleep for ever, with all that the
    worker has open.
    """
    if _forks.here == home:
        return
    try:
        os.write(
            2, b"hourglass: a process that a workflow forked has left the workflow's code, and ends here\n"
        )
    finally:
        os._exit(1)


def _silence(entry: Entry | None) -> None:
    """Refuse what the hung code of a run asks for from now on, should it come back to ask (I5)."""
    live = entry.run.live if entry is not None else None
    if live is not None:
        live.dead = live.latched = True


def _remember(lost: LostJournals, entry: Entry, failed: Activation | None) -> None:
    """Keep what a run that is lost did, with the activation that failed."""
    journal = entry.run.state.journal
    lost.keep(entry.key.run_id, journal if failed is None else [*journal, failed], entry.journal_bytes)


def _unwind(entry: Entry) -> None:
    """Unwind a run's fibers. Told to stop in the middle, it still does: they would leak with the thread."""
    for _ in range(_DROP_ATTEMPTS):
        try:
            entry.run.drop()
            return
        except LaneStopped:
            continue
        except BaseException:
            logger.exception("the fibers of run %s did not unwind cleanly", entry.key.run_id)


def _is_verified(verify: Verify, run_id: str) -> bool:
    """Decided by the run id alone, so that a run is verified on every worker or on none."""
    if isinstance(verify, str):
        return verify == "always"
    return zlib.crc32(run_id.encode()) < verify * 2**32
