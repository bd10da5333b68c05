"""Evaluation of one activation on a lane: find or create the run, evaluate the activation, verify the run, and answer.
Must not know: threads, engines.

`Evaluations` belongs to one lane, and runs on the lane's thread, because fibers cannot leave their thread. Only the
methods that move runs are called on the control loop. `LaneContext` is shared by all lanes of a worker.

Invariants:

- Every activation is answered (I3). After an exception in this module the task fails and the run is removed.
- An activation of an unknown run without a start event fails the task, so that the engine sends the whole history (I4);
  a start event replaces the cached run.
- After a failed task the run is removed from the cache: the engine sends the run's history again.
- A lane that has handed over its runs changes no shared state and returns no verdict; the lane only unwinds its fibers.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from hourglass import _forks
from hourglass._evaluator.commands import Completion, FailRun, Succeeded, TaskFailed, TaskFailureCause
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.definition import WorkflowDefinition
from hourglass._evaluator.evaluator import Evaluator
from hourglass._evaluator.events import Activation, QueryReceived, RunEvicted, RunStarted
from hourglass._evaluator.verify import verify_run
from hourglass._worker.health.lane_notes import LaneNotes, packed
from hourglass._worker.health.parked import ParkedRuns, cache_miss, task_failed
from hourglass._worker.health.quarantine import HeldRun, Quarantine, digest_of, rejection
from hourglass._worker.health.stopping import LaneStopped
from hourglass._worker.lanes.cache import Entry, Key, LiveRuns, LostJournals, StateCache
from hourglass._worker.lanes.counts import Counts
from hourglass._worker.lanes.nesting import NestingDepths
from hourglass._worker.lanes.run_log import MISFIT, RunLog, place_of
from hourglass._worker.lanes.turn_rules import TurnRules
from hourglass._worker.lanes.watcher import Watcher
from hourglass.errors import HourglassError, UsageError

logger = logging.getLogger("hourglass.worker")

Verify: TypeAlias = Literal["off", "always"] | float
"""The runs that are verified by a second execution: none, all, or a fraction of all runs."""

_DROP_ATTEMPTS = 3


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The answer to an activation, whether its run is closed, and the runs whose eviction the cache requests."""

    completion: Completion
    closed: bool = False
    evict: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class LaneContext:
    """The objects and options that all lanes of a worker share.

    `first_check` is the first activation after which an open run is verified. With `on_demand` runs are verified only
    when `recheck` is called.
    """

    resolve: Callable[[str], WorkflowDefinition]
    settings: RunSettings
    verify: Verify = "off"
    watcher: Watcher | None = None
    cache: StateCache = field(default_factory=StateCache)
    quarantine: Quarantine = field(default_factory=Quarantine)
    parked: ParkedRuns = field(default_factory=ParkedRuns)
    lost: LostJournals = field(default_factory=LostJournals)
    turns: TurnRules = field(default_factory=TurnRules)
    nesting: NestingDepths = field(default_factory=NestingDepths)
    notes: LaneNotes | None = None
    first_check: int = 1
    on_demand: bool = False


class Evaluations:
    """The runs of one lane, and the evaluation of their activations."""

    def __init__(self, context: LaneContext) -> None:
        self.context = context
        self.steps = 0
        """A counter that increases while a large run is re-executed or unwound."""
        self.unwound = 0
        """The number of runs whose fibers were dropped."""
        self._counts = Counts()
        self._home = _forks.pid
        self._settings = context.settings
        self._verified_settings = msgspec.structs.replace(context.settings, verify=True)
        self._quarantine, self._parked = context.quarantine, context.parked
        self._watcher = context.watcher.renewed() if context.watcher is not None else None
        self._note = context.notes.note() if context.notes is not None else None
        self._cache = context.cache
        self._cache.admit(self)
        self._live = LiveRuns(context.cache.limits.live)
        self._log = RunLog(context.settings.task_queue, context.parked, context.quarantine)
        self._executing: Entry | None = None
        """The run whose code is executing or whose fibers are being unwound; None if there is none."""
        self._retired = False  # its runs have moved to a replacement lane

    @property
    def counts(self) -> Counts:
        """The counters so far, with the current numbers of cached and live runs."""
        self._counts.cached, self._counts.live = self._cache.count(self), len(self._live)
        self._counts.parked = self._parked.kinds()
        return self._counts

    @property
    def executing(self) -> Entry | None:
        """The run whose code is executing or whose fibers are being unwound; None if there is none."""
        return self._executing

    def evaluate(self, activation: Activation, generation: int = 0) -> Verdict:
        """Evaluate an activation and return the verdict. Raises only `LaneStopped`."""
        self._counts.activations += 1
        key = Key(self._settings.task_queue, activation.run_id, generation)
        try:
            verdict = self._evaluate(key, activation)
        except LaneStopped:
            raise
        except BaseException as error:
            self._raise_if_retired()
            # The workflow type is unknown, or Hourglass has a bug.
            self._parked.log_died(activation.run_id, error)
            name = type(error).__name__
            verdict = Verdict(task_failed(activation.run_id, name, str(error) or name))
        if type(verdict.completion) is TaskFailed:
            self._counts.failed_tasks += 1
            self._remove(key, activation)
        self._executing = None
        if self._note is not None:
            self._note.clear()
        return verdict

    def recheck(self) -> None:
        """Verify every open run that has had activations since its last verification. If the second execution of a run
        differs, record the run as parked.
        """
        for entry in self._cache.owned(self):
            if entry.verified and not entry.run.closed and entry.activations > entry.checked:
                entry.checked = entry.activations
                difference = verify_run(entry.run)
                if difference is not None:
                    self._log.parked(entry, difference)

    def remove_older(self, generation: int) -> None:
        """Remove the runs of all handles older than this generation."""
        for entry in self._cache.pop_older(self._settings.task_queue, generation, self):
            self._drop(entry)

    def drop(self, entry: Entry) -> None:
        """Drop the fibers of a run that was removed from the cache, if this lane owns them."""
        if entry in self._live:
            self._drop(entry)

    def close(self) -> None:
        """Drop all fibers and remove all runs."""
        self.unwind()
        self._cache.release(self)

    def unwind(self) -> None:
        """Drop all fibers. The states stay in the cache, with their owners, which may be other lanes."""
        if self._executing is not None:
            entry, self._executing = self._executing, None
            self._drop(entry)
        while (oldest := self._live.oldest()) is not None:
            self._drop(oldest)
        if self._note is not None:
            self._note.release()

    def sibling(self) -> Evaluations:
        """Return new evaluations without runs, for another lane. Called on the control loop."""
        return Evaluations(self.context)

    def hand_over(self, failed: Activation | None = None, generation: int = 0) -> Evaluations:
        """Move all runs to a replacement lane, except the run of the activation that failed. Called on the control
        loop.
        """
        replacement = self.sibling()
        # First: if the hung thread returns after this line, it finds that it is retired, and stops instead of
        # answering.
        self._retired = True
        failed_key = Key(self._settings.task_queue, failed.run_id, generation) if failed is not None else None
        left = self._cache.hand_over(self, replacement, failed_key)
        replacement._counts = dataclasses.replace(self._counts)
        if failed is not None:
            replacement._counts.failed_tasks += 1
            if left is not None:
                _remember(self.context.lost, left, failed)
        _silence(self._executing)
        return replacement

    def move(self, run_id: str, generation: int, target: Evaluations) -> Entry | None:
        """Move a waiting run to another lane. Return the entry whose fibers this lane must drop; None if there are
        none. Called on the control loop.
        """
        left = self._cache.move(Key(self._settings.task_queue, run_id, generation), self, target)
        return left if left is not None and left.run.live is not None else None

    def move_all(self, target: Evaluations) -> None:
        """Move all runs to another lane, because this lane is idle and about to end. Called on the control
        loop.
        """
        self._cache.hand_over(self, target)

    def work_of(self, run_id: str, generation: int) -> int:
        """Return the approximate number of steps needed to re-execute a run; 0 if unknown. Called on the control
        loop.
        """
        entry = self._cache.find(Key(self._settings.task_queue, run_id, generation))
        return entry.run.work if entry is not None else 0

    def _stepped(self) -> None:
        self.steps += 1

    def _raise_if_retired(self) -> None:
        if self._retired:
            raise LaneStopped

    def _evaluate(self, key: Key, activation: Activation) -> Verdict:
        started: RunStarted | None = None
        only_queries = True  # queries change nothing and are not recorded
        # `type` instead of `isinstance`, which calls the metaclass of a struct for each class that does not fit.
        for event in activation.events:
            if type(event) is RunEvicted:
                self._evict(key, event)
                return Verdict(Succeeded(activation.run_id))
            if type(event) is not QueryReceived:
                only_queries = False
                if type(event) is RunStarted:
                    started = event
        if started is not None:
            begun = self._begin(key, started)
            if isinstance(begun, HeldRun):
                kind_of_held = "ProcessDied" if begun.died else f"WorkflowHung at {begun.stack.place}"
                self._parked.remember(activation.run_id, f"{kind_of_held}: ")
                return Verdict(rejection(activation.run_id, begun))
            entry = begun
            if (
                started.parent_run_id
                and (failed := self._begin_child(entry, started, activation)) is not None
            ):
                return Verdict(failed)
            if self._log.is_verbose and not activation.is_replaying:
                self._log.begun(started, activation.run_id)
        else:
            cached = self._cache.get(key, self)
            if cached is None:
                self._raise_if_retired()  # not a miss: the run has moved to the replacement lane
                self._counts.misses += 1
                return Verdict(cache_miss(activation.run_id))
            entry = self._executing = cached
            entry.run.on_step = self._stepped  # the run may have moved here from another lane
            if self._note is not None:
                self._note.write(cached.noted)
        run = entry.run
        was_closed = run.state.result is not None
        completion = self._activate(entry, activation, None if only_queries else self._watcher)
        closed = run.state.result is not None
        closing = closed and not was_closed
        if type(completion) is Succeeded and not only_queries:
            entry.grown(activation)
            if entry.verified:
                completion = self._check(entry, completion, closing=closing)
        if type(completion) is TaskFailed:
            return Verdict(completion)
        if run.notices or self._quarantine.runs or self._parked.reasons:
            self._log.progressed(entry, activation, only_queries=only_queries)
        if closing and not activation.is_replaying:
            self._counts.run_closed(run.state.workflow_type, run.state.result)
            if self._log.is_verbose or type(run.state.result) is FailRun:
                self._log.closed(entry, activation)
        if closed:
            self._drop(entry)  # only the fibers: the run can answer queries until it is evicted
        if self._live.settle(entry):
            while (excess := self._live.excess()) is not None:
                self._drop(excess)
        evict = self._cache.to_evict(entry)
        return Verdict(completion, closed, tuple([chosen.run_id for chosen in evict]) if evict else ())

    def _begin(self, key: Key, started: RunStarted) -> Entry | HeldRun:
        context = self.context
        self._remove(key)
        # Check the quarantine twice: before the definition is resolved, because that may import modules, which can hang
        # or kill the process; and with the definition, which shows whether the code has changed.
        if self._quarantine.runs and (held := self._quarantine.held(key.run_id, None)) is not None:
            return held
        if self._note is not None:
            self._note.write(packed(key.run_id, started.workflow_type))
        definition = context.resolve(started.workflow_type)
        if self._quarantine.runs and (held := self._quarantine.held(key.run_id, definition)) is not None:
            return held
        verified = _is_verified(context.verify, key.run_id)
        settings = context.turns.settings(key.run_id, self._verified_settings if verified else self._settings)
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
        entry.run.seen = context.lost.take(key.run_id)
        self._executing = entry
        if not self._cache.put(entry, self):
            raise LaneStopped
        return entry

    def _begin_child(self, entry: Entry, started: RunStarted, activation: Activation) -> TaskFailed | None:
        """Check how deeply a child workflow is nested. Return a failed task if the child is too deep."""
        try:
            warning = self.context.nesting.record(activation.run_id, started)
        except UsageError as error:
            return self._fail(entry, error)
        if warning and not activation.is_replaying:
            self._log.warn(entry, warning)
        return None

    def _activate(self, entry: Entry, activation: Activation, watcher: Watcher | None) -> Completion:
        complaint: HourglassError | None = None
        if watcher is not None:
            watcher.enter()
        try:
            completion = entry.run.activate(activation)
        finally:
            if _forks.pid != self._home:
                # Before acquiring any lock that another thread may have held at the fork.
                _end_fork(self._home)
            if watcher is not None:
                complaint = watcher.exit()
        if self._retired:
            raise LaneStopped
        if type(completion) is TaskFailed:
            self._log.parked(entry, entry.run.error)
        elif complaint is not None:
            return self._fail(entry, complaint)
        return completion

    def _check(self, entry: Entry, completion: Completion, *, closing: bool) -> Completion:
        """Verify the run if a verification is due: execute the run a second time, and compare. Return the completion,
        or a failed task if the executions differ.
        """
        if self.context.on_demand or not (closing or entry.is_to_be_checked(self.context.first_check)):
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

    def _fail(
        self,
        entry: Entry,
        error: HourglassError,
        cause: TaskFailureCause = TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE,
    ) -> TaskFailed:
        self._log.parked(entry, error)
        return TaskFailed(entry.key.run_id, self._settings.converter.to_failure(error), cause)

    def _evict(self, key: Key, evicted: RunEvicted) -> None:
        """Remove a run on the engine's request. Log and count the eviction if it reports that the run's code does not
        fit its history.

        Both engines compare commands with the history themselves and fail the task. Only the eviction names the
        difference.
        """
        cached = self._cache.get(key, self)
        place = place_of(cached) if cached is not None and evicted.reason == MISFIT else ""
        entry = self._remove(key)
        retried = self.context.turns.learn(evicted, entry)
        if evicted.reason == MISFIT:
            self._counts.failed_tasks += 1
            if not retried:
                self._log.misfit(key.run_id, evicted, entry, place)

    def _remove(self, key: Key, failed: Activation | None = None) -> Entry | None:
        """Remove a run. Remember its journal for a while, including the activation that failed, if any."""
        entry = self._cache.remove(key, self)
        if self._settings.steps is not None:
            self._settings.steps.pop(key.run_id, None)
        if entry is None:
            self._raise_if_retired()
            return None
        if entry.run.live is None:
            self._live.discard(entry)
        else:
            self._executing = None
            self._drop(entry)
        _remember(self.context.lost, entry, failed)
        return entry

    def _drop(self, entry: Entry) -> None:
        evaluated, self._executing = self._executing, entry
        if self._note is not None:
            self._note.write(entry.noted)
        try:
            _unwind(entry)
        finally:
            _end_fork(self._home)
        self._live.discard(entry)
        self._executing = evaluated
        if self._note is not None and evaluated is None:
            self._note.clear()
        self.unwound += 1


def _end_fork(home: int) -> None:
    """End this process if it is a forked child that has left the workflow's code. A forked child cannot use the
    worker's objects.
    """
    if _forks.pid == home:
        return
    try:
        os.write(
            2, b"hourglass: a process that a workflow forked has left the workflow's code, and ends here\n"
        )
    finally:
        os._exit(1)


def _silence(entry: Entry | None) -> None:
    """Make a run reject the commands of its hung code, in case the code returns later (I5)."""
    live = entry.run.live if entry is not None else None
    if live is not None:
        live.dead = live.latched = True


def _remember(lost: LostJournals, entry: Entry, failed: Activation | None) -> None:
    """Remember the journal of a removed run, including the activation that failed, if any."""
    journal = entry.run.state.journal
    lost.keep(entry.key.run_id, journal if failed is None else [*journal, failed], entry.journal_bytes)


def _unwind(entry: Entry) -> None:
    """Unwind a run's fibers, even if the thread is asked to stop meanwhile. Otherwise the fibers would leak with the
    thread.
    """
    for _ in range(_DROP_ATTEMPTS):
        try:
            entry.run.drop()
            return
        except LaneStopped:
            continue
        except BaseException:
            logger.exception("the fibers of run %s did not unwind cleanly", entry.key.run_id)


def _is_verified(verify: Verify, run_id: str) -> bool:
    """Whether a run is verified. The decision depends on the run id alone, so that all workers agree."""
    if isinstance(verify, str):
        return verify == "always"
    return zlib.crc32(run_id.encode()) < verify * 2**32
