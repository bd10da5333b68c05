"""What a lane does with an activation: find or make the run, evaluate, check, and answer. Knows no threads and no engine.

`Evaluations` belongs to one lane; everything here runs on that lane's thread, because fibers cannot leave it.

Invariants:

- An activation is answered, whatever happens (I3): what dies in here is answered as a failed task, and its
  run forgotten.
- A run that is not known and has no start event fails the task, so that the engine sends the whole history
  (I4); a start event replaces what is kept.
- After a failed task nothing of the run is kept: the engine will send it from its history.
"""

from __future__ import annotations

import logging
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from hourglass._engine.commands import Completion, Succeeded, TaskFailed, TaskFailureCause
from hourglass._engine.context import RunSettings
from hourglass._engine.definition import WorkflowDefinition
from hourglass._engine.evaluator import Run
from hourglass._engine.events import Activation, QueryReceived, RunEvicted, RunStarted
from hourglass._engine.verify import verify_run
from hourglass._runtime.cache import CacheLimits, Entry, LostJournals, RunCache
from hourglass._runtime.places import where_raised
from hourglass._runtime.watcher import Watcher
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import HourglassError, UnknownTypeError

logger = logging.getLogger("hourglass.worker")

Verify: TypeAlias = Literal["off", "always"] | float
"""Which runs are executed twice and compared: none, all, or a fraction of them."""

_REMEMBERED = 1000


@dataclass(frozen=True)
class Verdict:
    """The answer to an activation, and what the worker should know about it."""

    completion: Completion
    closed: bool = False
    evict: tuple[str, ...] = ()


@dataclass
class Counts:
    """What a lane has done so far. Written by the lane, read by anybody."""

    activations: int = 0
    failed_tasks: int = 0
    misses: int = 0
    cached: int = 0
    live: int = 0
    parked: dict[str, str] = field(default_factory=dict)


class Evaluations:
    """The runs of one lane and how they are evaluated."""

    def __init__(
        self,
        resolve: Callable[[str], WorkflowDefinition],
        settings: RunSettings,
        *,
        limits: CacheLimits | None = None,
        verify: Verify = "off",
        watcher: Watcher | None = None,
    ) -> None:
        self.counts = Counts()
        self._resolve = resolve
        self._settings = settings
        self._verified_settings = msgspec.structs.replace(settings, verify=True)
        self._verify: Verify = verify
        self._watcher = watcher
        self._cache = RunCache(limits or CacheLimits())
        self._lost = LostJournals()
        self._parked: OrderedDict[str, str] = OrderedDict()

    def evaluate(self, activation: Activation) -> Verdict:
        """Answer an activation. Never raises."""
        self.counts.activations += 1
        try:
            verdict = self._evaluate(activation)
        except BaseException as error:
            verdict = self._died(activation, error)
        if isinstance(verdict.completion, TaskFailed):
            self.counts.failed_tasks += 1
            self._forget(activation.run_id, activation)
        self.counts.cached, self.counts.live = len(self._cache), self._cache.live
        return verdict

    def close(self) -> None:
        """Drop everything, on the lane's thread."""
        for entry in self._cache.pop_all():
            _drop(entry)
        self.counts.cached = self.counts.live = 0

    # --- one activation ----------------------------------------------------------------------------------------------

    def _evaluate(self, activation: Activation) -> Verdict:
        if any(isinstance(event, RunEvicted) for event in activation.events):
            self._forget(activation.run_id)
            return Verdict(Succeeded(activation.run_id))
        started = next((event for event in activation.events if isinstance(event, RunStarted)), None)
        if started is not None:
            entry = self._begin(activation.run_id, started)
        else:
            found = self._cache.get((self._settings.task_queue, activation.run_id))
            if found is None:
                return self._missed(activation.run_id)
            entry = found
        was_closed = entry.run.closed
        completion = self._activate(entry, activation)
        closed = entry.run.closed
        if isinstance(completion, Succeeded):
            completion = self._check(entry, activation, completion, closing=closed and not was_closed)
        if isinstance(completion, TaskFailed):
            return Verdict(completion)
        self._note_progress(entry, activation)
        if closed:
            _drop(entry)
        self._cache.settle(entry)
        for excess in self._cache.pop_excess_live():
            _drop(excess)
        evict = tuple(run_id for _, run_id in self._cache.to_evict(entry))
        return Verdict(completion, closed=closed, evict=evict)

    def _begin(self, run_id: str, started: RunStarted) -> Entry:
        self._forget(run_id)
        definition = self._resolve(started.workflow_type)
        verified = _is_verified(self._verify, run_id)
        entry = Entry(
            key=(self._settings.task_queue, run_id),
            run=Run(definition, run_id, self._verified_settings if verified else self._settings),
            workflow_id=started.workflow_id,
            verified=verified,
        )
        entry.run.seen = self._lost.take(run_id)
        self._cache.put(entry)
        return entry

    def _activate(self, entry: Entry, activation: Activation) -> Completion:
        watcher = None if _only_looks(activation) else self._watcher
        if watcher is None:
            completion = entry.run.activate(activation)
            complaint: HourglassError | None = None
        else:
            watcher.enter(entry.run)
            try:
                completion = entry.run.activate(activation)
            finally:
                complaint = watcher.exit()
        if isinstance(completion, TaskFailed):
            self._park(entry, entry.run.error)
        elif complaint is not None:
            return self._fail(entry, complaint)
        return completion

    def _check(
        self, entry: Entry, activation: Activation, completion: Completion, *, closing: bool
    ) -> Completion:
        """Execute the run a second time, at activations 1, 2, 4, 8 … and at its close, and compare."""
        if _only_looks(activation):
            return completion
        self._cache.grown(entry, activation)
        count = entry.activations
        if not entry.verified or not (closing or count & (count - 1) == 0):
            return completion
        difference = verify_run(entry.run)
        if difference is None:
            return completion
        return self._fail(entry, difference, TaskFailureCause.NON_DETERMINISTIC_ERROR)

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    def _missed(self, run_id: str) -> Verdict:
        self.counts.misses += 1
        text = "this worker does not hold the run: its whole history is needed"
        return Verdict(_task_failed(run_id, "RunNotCached", text))

    def _fail(
        self,
        entry: Entry,
        error: HourglassError,
        cause: TaskFailureCause = TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE,
    ) -> TaskFailed:
        self._park(entry, error)
        return TaskFailed(entry.key[1], self._settings.converter.to_failure(error), cause)

    def _died(self, activation: Activation, error: BaseException) -> Verdict:
        """The evaluation itself raised: the type is unknown, or we have a bug."""
        if isinstance(error, UnknownTypeError):
            if self._remember(activation.run_id, str(error)):
                logger.error("run %s cannot go on: %s", activation.run_id, error)
        else:
            logger.error("the evaluation of run %s died", activation.run_id, exc_info=error)
        return Verdict(
            _task_failed(activation.run_id, type(error).__name__, str(error) or type(error).__name__)
        )

    def _park(self, entry: Entry, error: BaseException | None) -> None:
        """Say it aloud, once per run and error: nobody may hang on a parked run unawares."""
        kind, where = ("failed task", "") if error is None else (type(error).__name__, _place(error))
        if self._remember(entry.key[1], f"{kind}{where}: {error}"):
            logger.error(
                "workflow %s (%s, run %s) is parked: %s%s. Its task is retried until the code is mended",
                entry.run.definition.name,
                entry.workflow_id,
                entry.key[1],
                kind,
                where,
                exc_info=error,
            )

    def _remember(self, run_id: str, reason: str) -> bool:
        """Note why a run cannot go on; False if that is known."""
        known = self._parked.get(run_id) == reason
        self._parked[run_id] = reason
        self._parked.move_to_end(run_id)
        while len(self._parked) > _REMEMBERED:
            self._parked.popitem(last=False)
        self.counts.parked = _reasons(self._parked)
        return not known

    def _note_progress(self, entry: Entry, activation: Activation) -> None:
        notices, entry.run.notices = entry.run.notices, []
        if activation.is_replaying:
            return  # said when it happened
        for notice in notices:
            logger.warning("workflow %s (%s): %s", entry.run.definition.name, entry.workflow_id, notice)
        if self._parked and self._parked.pop(activation.run_id, None) is not None:
            self.counts.parked = _reasons(self._parked)
            logger.info("run %s goes on", activation.run_id)

    def _forget(self, run_id: str, failed: Activation | None = None) -> None:
        """Lose a run; what it did, the activation that failed included, is remembered for a while."""
        entry = self._cache.remove((self._settings.task_queue, run_id))
        if entry is not None:
            _drop(entry)
            journal = entry.run.state.journal
            self._lost.keep(
                run_id, [*journal, failed] if failed is not None else journal, entry.journal_bytes
            )


def _reasons(parked: Mapping[str, str]) -> dict[str, str]:
    # Only what kind of error and where: a message may quote data.
    return {run_id: reason.partition(": ")[0] for run_id, reason in parked.items()}


def _drop(entry: Entry) -> None:
    try:
        entry.run.drop()
    except BaseException:
        logger.exception("the fibers of run %s did not unwind cleanly", entry.key[1])


def _only_looks(activation: Activation) -> bool:
    """Whether there are only queries, which change nothing and are recorded nowhere."""
    return all(isinstance(event, QueryReceived) for event in activation.events)


def _is_verified(verify: Verify, run_id: str) -> bool:
    """Decided by the run id alone, so that a run is verified on every worker or on none."""
    if isinstance(verify, str):
        return verify == "always"
    return zlib.crc32(run_id.encode()) < verify * 2**32


def _place(error: BaseException) -> str:
    found = where_raised(error)
    return f" at {found[0]}:{found[1]}" if found is not None else ""


def _task_failed(run_id: str, type_: str, message: str) -> TaskFailed:
    return TaskFailed(run_id, Failure(message=message, info=ApplicationFailure(type=type_)))
