"""The runs that one worker has cached (`Cache`), the activations that are ready for delivery, and the eviction of
runs.

Must not know: polls, activities, requests. This is the part of Core between a task and its activations. The
processing of the task itself is in `task_flow`. Invariants:

- A run is removed only when its eviction has been answered, or with its last completion if the run has closed and the
  worker is notified immediately.
- Each activation carries the number of the change that must be durable before the activation is delivered.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from hourglass._contract.handle import HandleConfig
from hourglass._embedded.activations.cursor import Cursor
from hourglass._embedded.activations.local_activities import LocalResult
from hourglass._embedded.activations.local_attempts import LocalAttempts
from hourglass._embedded.activations.task_flow import CLOSED, CachedRun, Stage, TaskFlow
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching.pollers import QueuePoller
from hourglass._embedded.runs.outbox import OutboxQueue
from hourglass._embedded.runs.run import LoadedRun
from hourglass._evaluator.commands import Completion, Succeeded, TaskFailed, TaskFailureCause
from hourglass._evaluator.events import Activation, RunEvicted
from hourglass.converter import ApplicationFailure, Failure
from hourglass.errors import HourglassError

AHEAD = 1000
"""The number of changes that may still be unwritten when an activation is delivered.

An activation need not wait for the changes that it reports: workflow code has no effect except its completion, and
everything that follows from the completion waits for both. A step therefore costs one commit instead of two. The
limit stops workers while the disk is full.
"""


EVICTION_CANDIDATES = 32
"""The number of least recently used runs that are considered for one eviction."""

_SHUT_DOWN = Failure("the worker was shut down", ApplicationFailure(type="WorkerShutdown"))


class Cache:
    """Cached runs, least recently used first, and the activations that are ready for the worker.

    `changed` is called when local activities have made progress, and when a delayed activation may be delivered.
    """

    def __init__(
        self,
        engine: Engine,
        poller: QueuePoller,
        config: HandleConfig,
        changed: Callable[[], object],
    ) -> None:
        self.ready: OutboxQueue[Activation] = OutboxQueue(engine.outbox, changed)
        self._engine = engine
        self._poller = poller
        self._active_runs = poller.active_runs
        self._size = config.max_cached_workflows
        self._most = max(self._size, config.max_busy_workflows)
        self._runs: dict[str, CachedRun] = {}
        self.local = LocalAttempts(
            engine.clock,
            config,
            engine.namespace,
            outbox=engine.outbox,
            ended=self.local_ended,
            stalled=self.hand_over,
            changed=changed,
        )
        self._flow = TaskFlow(engine, poller, config, self.local, self._deliver)

    def begin_task(self, record: LoadedRun) -> None:
        """Start processing a run's workflow task."""
        cached = self._use(record)
        cached.take_task(record, () if record.updates is None else self._engine.updates.give(record))
        self._flow.advance(cached)

    def begin_queries(self, record: LoadedRun) -> None:
        """Start processing the queries of a run. A run that is not cached is replayed."""
        cached = self._use(record)
        cached.cursor.extend(record.events, live=False)
        self._flow.advance(cached)

    def complete(self, completion: Completion) -> bool:
        """Accept the completion of an activation. Return False if the run has no activation in progress."""
        cached = self._runs.get(completion.run_id)
        if cached is None or completion.run_id not in self._active_runs:
            return False
        stage, cached.stage = cached.stage, Stage.IDLE
        self._active_runs.discard(completion.run_id)
        if stage is Stage.EVENTS and type(completion) is Succeeded:
            self._flow.accept(cached, completion)
        elif stage is Stage.EVICTION:
            self._forget(cached)
        elif isinstance(completion, TaskFailed):
            self._flow.fail(cached, completion.cause, completion.failure, "LANG_FAIL")
        else:
            cached.answer_queries(completion.commands)
            (self._flow.advance if cached.task_number else self._flow.settle)(cached)
        return True

    def request_eviction(self, run_id: str) -> None:
        """Evict a run as soon as no activation is in progress."""
        self._evict_soon(run_id, RunEvicted("LANG_REQUESTED", "the worker requested the eviction"))

    def closed(self, run_id: str) -> None:
        """Evict a closed run. If the run was closed from outside, the worker learns of this only through the eviction."""
        self._evict_soon(run_id, CLOSED)

    def parked(self, run_id: str) -> None:
        """Evict a run whose latest changes cannot be stored. Its activations no longer wait for these changes."""
        ready = self.ready.items
        for place, (activation, _) in enumerate(ready):
            if activation.run_id == run_id:
                ready[place] = (activation, 0)
        self.local.forget(run_id)
        self._evict_soon(run_id, RunEvicted("FATAL", "the latest changes of the run cannot be stored"))

    def forget_closed(self, run_id: str) -> bool:
        """Remove a closed run whose eviction is the newest activation, because the worker is notified in another way.
        Return whether the run was removed.
        """
        ready = self.ready.items
        newest = ready[-1][0] if ready else None
        if newest is None or newest.run_id != run_id or newest.events[0] is not CLOSED:
            return False
        ready.pop()
        self._active_runs.discard(run_id)
        self._forget(self._runs[run_id])
        return True

    def release_runs(self) -> None:
        """Release the cached runs to other workers."""
        self._flow.is_leaving = True
        for cached in tuple(self._runs.values()):
            if cached.is_idle:
                self._engine.tasks.unstick(cached.record, self._poller)
            else:
                self._flow.hand_over(cached)

    def abandon(self) -> None:
        """Fail all tasks in progress and remove all runs."""
        cause, who = TaskFailureCause.WORKFLOW_WORKER_UNHANDLED_FAILURE, self._poller.identity
        for cached in tuple(self._runs.values()):
            if cached.task_number:
                self._engine.tasks.fail(cached.record, cached.task_number, cause, _SHUT_DOWN, who)
            self._forget(cached)
        self._clear()

    def lose(self) -> None:
        """Remove all runs because the worker's process has ended. Its tasks and queries are immediately offered to
        other workers.
        """
        tasks = self._engine.tasks
        for cached in tuple(self._runs.values()):
            record, number, queries = cached.record, cached.task_number, cached.queries
            cached.task_number, cached.queries = 0, ()
            self._forget(cached)
            if number:
                tasks.lose(record, number)
            if queries:
                tasks.return_queries(record, queries)
        self._clear()

    def _clear(self) -> None:
        self.local.abandon()
        self.ready.items.clear()
        self._active_runs.clear()

    def reject_queries(self, error: HourglassError) -> None:
        """Reject the queries in progress with the error of the engine, which has stopped."""
        for cached in self._runs.values():
            cached.reject_queries(error)

    def local_ended(self, run_id: str, result: LocalResult) -> None:
        """Record the result of a local activity, and continue the run's task if the task is resting."""
        cached = self._runs.get(run_id)
        if cached is not None:
            cached.cursor.resolve_local(result)
            if cached.stage is Stage.RESTING:
                self._flow.advance(cached)

    def hand_over(self, run_id: str) -> None:
        """Let another worker execute the local activities of a resting task, unless this worker has an attempt of one."""
        cached = self._runs.get(run_id)
        if cached is not None:
            self._flow.hand_over(cached)

    def realign(self) -> None:
        """Rearm all alarms after the clock has jumped."""
        self.local.realign()
        for cached in tuple(self._runs.values()):
            if cached.stage is Stage.RESTING:
                self._flow.limit_rest(cached)

    def _use(self, record: LoadedRun) -> CachedRun:
        """Return the run's entry, adding one if necessary, and mark it as the most recently used."""
        run_id = record.run.run_id
        cached = self._runs.pop(run_id, None)
        if cached is None:
            cached = CachedRun(record, Cursor(run_id, self._engine.namespace, self._poller.version))
            self._engine.runs.hold(record)
            self._make_room()
        self._runs[run_id] = cached
        return cached

    def _make_room(self) -> None:
        """Evict least recently used runs if there are too many, at most two, because one is added.

        Busy runs stay cached up to the limit for busy runs, because their eviction would cost a replay.
        """
        if not self._size or len(self._runs) < self._size:
            return
        evicted, over = 0, len(self._runs) > self._size
        for run_id, cached in list(islice(self._runs.items(), EVICTION_CANDIDATES)):
            if cached.is_idle and not cached.is_busy:
                self._evict_for_room(cached)
                evicted += 1
                if evicted > over:
                    return
            elif cached.stage is not Stage.EVICTION:
                self._runs[run_id] = self._runs.pop(run_id)  # in use: other runs are considered next time
        if len(self._runs) >= self._most and not evicted:
            idle = next((cached for cached in self._runs.values() if cached.is_idle), None)
            if idle is not None:
                self._evict_for_room(idle)

    def _evict_for_room(self, cached: CachedRun) -> None:
        cached.eviction = RunEvicted("CACHE_FULL", "the cache is full")
        self._flow.evict(cached)

    def _evict_soon(self, run_id: str, eviction: RunEvicted) -> None:
        cached = self._runs.get(run_id)
        if cached is None or cached.stage is Stage.EVICTION:
            return
        cached.eviction = cached.eviction or eviction
        if cached.stage is Stage.RESTING:
            if not cached.record.run.is_open:
                cached.task_number = 0  # the task was answered as well
            self._flow.finish(cached, again=True)
        elif cached.stage is Stage.IDLE and not cached.task_number:
            self._flow.settle(cached)

    def _forget(self, cached: CachedRun) -> None:
        self._engine.tasks.unstick(cached.record, self._poller)
        if cached.stage is Stage.RESTING:
            self._flow.resume(cached)
        if self.local.in_use:
            self.local.forget(cached.cursor.run_id)
        if self._runs.pop(cached.cursor.run_id, None) is not None:
            self._engine.runs.release(cached.record)

    def _deliver(self, cached: CachedRun, activation: Activation, stage: Stage) -> None:
        cached.stage = stage
        self._active_runs.add(activation.run_id)
        # The activation waits only for the change that is AHEAD changes older than the newest, not for the
        # changes that it reports. This is safe: the results of its completion (an attempt, an answer to a
        # client) leave the engine when the completion's own change is durable. That change is written after
        # everything that the activation reports.
        self.ready.items.append((activation, self._engine.writes.appended - AHEAD))
