"""A worker's handle on the engine, for one task queue. It grants the worker's slots to the matcher, delivers the
tasks that the matcher assigns to the worker, and accepts completions.

Must not know: how runs change (see `transitions`), how history becomes activations (see `cursor`, `cache`), which
worker receives a task (see `matching`). Assigned items wait here until the changes that they depend on are durable.
Meanwhile more items are assigned, so that the changes of many runs become durable together.

Invariants:

- An item is delivered once, and only when it may leave the engine.
- Each run has at most one activation in progress.
- A handle that is shutting down receives no new work. It ends with `Shutdown` when all delivered items are completed.
  If the engine's store has failed, it ends with `HandleBroken`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable

from hourglass._contract.handle import (
    ActivityCancel,
    ActivityItem,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    CompletionResult,
    HandleBroken,
    HandleConfig,
    OnActivations,
    OnActivities,
    OnEnd,
    Shutdown,
    WorkKind,
)
from hourglass._embedded.activations.cache import Cache
from hourglass._embedded.activations.heartbeats import Heartbeats
from hourglass._embedded.clock import Cancel, to_ns
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching.pollers import HostProcess, QueuePoller
from hourglass._embedded.runs.outbox import OutboxQueue
from hourglass._embedded.runs.run import AttemptToken, LoadedRun
from hourglass._evaluator.commands import Completion
from hourglass._evaluator.events import Activation
from hourglass._evaluator.specs import Payloads

_log = logging.getLogger("hourglass.embedded")


class WorkerAttempts:
    """The attempts that are assigned to one worker, both unsent and in progress. `kept` contains the undelivered
    items. `changed` is called when an item can be delivered.

    An attempt uses a slot until it has ended, is offered to other workers, or is abandoned. Items are delivered in
    the order of their arrival.
    """

    def __init__(self, engine: Engine, poller: QueuePoller, changed: Callable[[], object]) -> None:
        self.kept: OutboxQueue[ActivityItem] = OutboxQueue(engine.outbox, changed)
        self._attempts = engine.attempts
        self._poller = poller

    def next_item(self) -> ActivityItem | None:
        """Remove and return the next attempt or cancellation that may leave now; None if there is none."""
        while (item := self.kept.next()) is not None:
            attempt = self._poller.attempts.get(item.token)
            if attempt is not None:
                return self._attempts.hand_out(item, attempt) if isinstance(item, ActivityTask) else item
        return None

    def unsent(self) -> set[bytes]:
        """Return the tokens of the attempts that have not been sent to the worker."""
        return {item.token for item, _ in self.kept.items if isinstance(item, ActivityTask)}

    def cancel(self, token: bytes, reason: str, depends_on: int) -> None:
        """Ask the worker to stop an attempt. Discard the attempt instead if it is no longer current and has not been
        sent.
        """
        if reason != "CANCELLED" and token in self.unsent():
            self.kept.items = deque(entry for entry in self.kept.items if entry[0].token != token)
            del self._poller.attempts[token]
        else:
            self.kept.put(ActivityCancel(token, reason), depends_on)

    def stop_waiting(self, run_id: str) -> None:
        """Release the items of a run whose pending changes will never become durable."""
        self.kept.items = deque(
            (item, 0 if AttemptToken.decode(item.token).run_id == run_id else depends_on)
            for item, depends_on in self.kept.items
        )

    def give_back(self) -> None:
        """Offer the attempts that have not been sent to this worker to other workers."""
        items, self.kept.items = self.kept.items, deque()
        for item, depends_on in items:
            if isinstance(item, ActivityTask):
                attempt = self._poller.attempts.pop(item.token, None)
                if attempt is not None:
                    self._attempts.give_back(attempt.token)
            else:
                self.kept.items.append((item, depends_on))

    def stop(self) -> None:
        """Ask the worker to stop all its attempts."""
        self.kept.items.extend(
            (ActivityCancel(token, "WORKER_SHUTDOWN"), 0) for token in self._poller.attempts
        )

    def lose(self) -> None:
        """Record that the worker's attempts are lost because its process has ended. Offer unsent attempts to other
        workers.
        """
        self.give_back()
        attempts = list(self._poller.attempts.values())
        self._clear()
        for attempt in attempts:
            self._attempts.lose(attempt.token)

    def release_all(self) -> None:
        """Release all attempts, including those that the worker is executing."""
        for attempt in self._poller.attempts.values():
            self._attempts.release(attempt.token)
        self._clear()

    def _clear(self) -> None:
        self._poller.attempts.clear()
        self.kept.items.clear()


class EngineHandle:
    """Implements `hourglass._contract.handle.Handle` for the worker and `TaskReceiver` for the matcher.

    `process` is the process of the worker. With `collects_results`, the results of attempts are collected in
    `unconfirmed`, to be sent to the next engine if this one fails.
    """

    def __init__(
        self,
        engine: Engine,
        config: HandleConfig,
        ended: Callable[[EngineHandle], object] = lambda _: None,
        *,
        process: HostProcess | None = None,
        collects_results: bool = False,
    ) -> None:
        config.check()
        process = HostProcess(os.getpid()) if process is None else process
        self.poller = QueuePoller(config, engine.queues.of(config.task_queue), process, self)
        """The worker as seen by the matcher."""
        self.engine = engine
        self._config = config
        self._ended = ended
        self.forgets_at_once = not process.key
        """Whether the last completion of a closed run also removes the run from the worker's cache (`RUN_FORGOTTEN`).
        Otherwise the run is evicted.
        """
        self.unconfirmed: list[ActivityResult] | None = [] if collects_results else None
        self._attempts = WorkerAttempts(engine, self.poller, self._schedule_delivery)
        self._cache = Cache(engine, self.poller, config, self._schedule_delivery)
        self._local = self._cache.local
        self._heartbeats = Heartbeats(engine.clock, config, engine.attempts.record_heartbeat)
        self._on_activations: OnActivations = _ignore
        self._on_activities: OnActivities = _ignore
        self._on_end: OnEnd = _ignore
        self._delivered: list[WorkKind] = []
        """The kinds of work whose delivery has been started and has not ended."""
        self._paused: list[WorkKind] = []
        self._will_deliver = False
        self._closing = False
        self._grace: Cancel | None = None
        engine.join(self.poller)

    def start(self, on_activations: OnActivations, on_activities: OnActivities, on_end: OnEnd) -> None:
        """Start receiving and delivering work."""
        self._on_activations, self._on_activities, self._on_end = on_activations, on_activities, on_end
        self._delivered = [WorkKind.WORKFLOWS, WorkKind.ACTIVITIES]
        for kind in WorkKind:
            self._grant(kind)
        self.engine.queues.dispatch(self.poller)
        self._schedule_delivery()

    def _grant(self, kind: WorkKind) -> None:
        """Grant the matcher the worker's slots for this kind of work."""
        if kind is WorkKind.WORKFLOWS:
            self.poller.task_slots = self.poller.task_limit
        else:
            self.poller.attempt_slots = self.poller.attempt_limit

    def _revoke(self, kind: WorkKind) -> None:
        if kind is WorkKind.WORKFLOWS:
            self.poller.task_slots = 0
        else:
            self.poller.attempt_slots = 0

    def pause(self, kind: WorkKind) -> None:
        """Stop receiving and delivering work of this kind until `resume` is called."""
        if not self._closing and kind not in self._paused:
            self._paused.append(kind)
            self._revoke(kind)

    def resume(self, kind: WorkKind) -> None:
        """Resume receiving and delivering work of this kind."""
        if kind in self._paused:
            self._paused.remove(kind)
            self._grant(kind)
            self.engine.queues.dispatch(self.poller)
            self._schedule_delivery()

    def begin_task(self, record: LoadedRun) -> None:
        """Start processing a run's workflow task."""
        self._cache.begin_task(record)
        if not self._will_deliver:
            self._schedule_delivery()

    def begin_queries(self, record: LoadedRun) -> None:
        """Start processing the queries of a run."""
        self._cache.begin_queries(record)
        self._schedule_delivery()

    def begin_attempt(self, task: ActivityTask, depends_on: int) -> None:
        """Send an attempt to the worker once the change with the number `depends_on` is durable."""
        self._attempts.kept.put(task, depends_on)

    def _schedule_delivery(self) -> None:
        """Schedule a delivery for the next iteration of the event loop. Completions come in bursts, and a single
        delivery serves all completions of one iteration.
        """
        if not self._will_deliver:
            self._will_deliver = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        """Pass all work that can be delivered now to the worker's callbacks."""
        self._will_deliver = False
        if not self._delivered:
            return
        if self.engine.is_over:
            self._end_all(self.engine.over())
            return
        if self._cache.ready.items and WorkKind.WORKFLOWS not in self._paused:
            activations = self.take_activations()
            if activations:
                self._on_activations(activations)
        if (self._attempts.kept.items or self._local.in_use) and WorkKind.ACTIVITIES not in self._paused:
            items = self.take_activities()
            if items:
                self._on_activities(items)
        if self._closing:
            for kind in tuple(self._delivered):
                if self.is_finished(kind):
                    self._end(kind, Shutdown("the handle is shut down"))

    def take_activations(self) -> list[Activation]:
        """Remove and return all activations that may leave now."""
        return self._cache.ready.take()

    def take_activities(self) -> list[ActivityItem]:
        """Remove and return all activity attempts and cancellations that may leave now."""
        items: list[ActivityItem] = []
        while self._local.in_use and (item := self._local.next_item()) is not None:
            items.append(item)
        while (item := self._attempts.next_item()) is not None:
            items.append(item)
        return items

    def is_finished(self, kind: WorkKind) -> bool:
        """Whether the handle is shutting down and the worker has completed all work of this kind."""
        poller, local = self.poller, self._local
        if not self._closing:
            return False
        if kind is WorkKind.WORKFLOWS:
            return not poller.active_runs and not poller.resting_runs
        # A run with an activation in progress may still request a local activity, and this worker would have
        # to execute it.
        may_request = bool(poller.active_runs) and not local.is_stopped
        return not poller.attempts and not local.has_out and not may_request

    def _end(self, kind: WorkKind, why: Shutdown | HandleBroken) -> None:
        if kind in self._delivered:
            self._delivered.remove(kind)
            self._on_end(kind, why)

    def _end_all(self, why: HandleBroken) -> None:
        for kind in tuple(self._delivered):
            self._end(kind, why)

    def break_off(self, why: HandleBroken) -> None:
        """Stop delivering work because the engine has ended or cannot assign work."""
        if self.engine.is_over:
            self._cache.reject_queries(self.engine.failed or why)
        asyncio.get_running_loop().call_soon(self._end_all, why)
        self._schedule_delivery()

    def complete_workflow_task(self, completion: Completion) -> CompletionResult:
        """Complete an activation. Raise `HandleBroken` if the engine has ended."""
        if self.engine.is_over:
            raise self.engine.over()
        cache = self._cache
        if not cache.complete(completion):
            _log.warning(
                "a completion was ignored because the run has no activation in progress: run_id=%s",
                completion.run_id,
            )
        is_forgotten = (
            self.forgets_at_once and bool(cache.ready.items) and cache.forget_closed(completion.run_id)
        )
        self.engine.queues.dispatch(self.poller)
        if not self._will_deliver and (cache.ready.items or self._closing):
            self._schedule_delivery()
        return CompletionResult.RUN_FORGOTTEN if is_forgotten else CompletionResult.RECEIVED

    def complete_activity(self, result: ActivityResult) -> None:
        """Report the result of an attempt. Raise `HandleBroken` if the engine has ended."""
        engine, poller = self.engine, self.poller
        if engine.is_over:
            raise engine.over()
        attempt = poller.attempts.pop(result.token, None)
        if attempt is not None and self.unconfirmed is not None:
            self.unconfirmed.append(result)
        if attempt is None and self._local.is_local(result.token):
            self._local.complete(result)
            self._schedule_delivery()
        else:
            is_ok = isinstance(result, ActivityOk)
            self._heartbeats.end(result.token, flush=not is_ok)
            # The attempt may have been assigned to another worker in the meantime.
            token = AttemptToken.decode(result.token) if attempt is None else attempt.token
            eager = engine.tasks.eager(poller, attempt.record) if attempt is not None and is_ok else None
            if engine.attempts.end(token, result, poller.identity, eager) and attempt is not None:
                poller.queue.tasks_received += 1
                self._cache.begin_task(attempt.record)
        engine.queues.dispatch(poller)
        if not self._will_deliver and (self._cache.ready.items or self._closing):
            self._schedule_delivery()

    @property
    def attempts(self) -> set[bytes]:
        """The tokens of the attempts that the worker is executing, except local activities."""
        return self.poller.attempts.keys() - self._attempts.unsent()

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt is alive. For local activities this does nothing: they count as alive while the
        process is alive.
        """
        engine = self.engine
        if engine.is_over:
            raise engine.over()
        if self._local.is_local(token):
            return
        current = engine.attempts.find(AttemptToken.decode(token))
        if current is None:
            self._heartbeats.end(token, flush=False)
            self.cancel_attempt(token, "NOT_FOUND", engine.writes.newest)
        else:
            self._heartbeats.beat(token, details, current[1].spec.heartbeat_timeout)

    def cancel_attempt(self, token: bytes, reason: str, depends_on: int) -> None:
        """Ask the worker to stop an attempt, or discard the attempt if it is no longer current and has not been sent."""
        if token in self.poller.attempts:
            self._attempts.cancel(token, reason, depends_on)
            self._schedule_delivery()

    def request_eviction(self, run_id: str) -> None:
        """Request the eviction of a run."""
        self._cache.request_eviction(run_id)
        self._schedule_delivery()

    def closed(self, run_id: str) -> None:
        """Evict a closed run once it has no activation in progress."""
        self._cache.closed(run_id)
        if self._cache.ready.items and not self._will_deliver:
            self._schedule_delivery()

    def parked(self, run_id: str) -> None:
        """Evict a run whose latest changes cannot be stored, without waiting for these changes."""
        self._attempts.stop_waiting(run_id)
        self._cache.parked(run_id)
        self._schedule_delivery()

    def realign(self) -> None:
        """Rearm all alarms after the clock has jumped."""
        self._cache.realign()

    def _close(self) -> None:
        """Stop receiving new work."""
        self._closing = True
        self.poller.close()
        self.engine.queues.leave(self.poller)

    def initiate_shutdown(self) -> None:
        """Stop receiving new work. After the graceful shutdown timeout, ask the running activities to stop."""
        if self._closing:
            return
        self._close()
        self._paused.clear()  # the remaining items must still be delivered
        self._attempts.give_back()
        self._local.close()
        self._cache.release_runs()
        self.engine.queues.wake(self.poller.task_queue)
        self._grace = self.engine.clock.call_after(
            to_ns(self._config.graceful_shutdown), self._stop_activities
        )
        self._schedule_delivery()

    def _stop_activities(self) -> None:
        self._attempts.stop()
        self._local.stop("WORKER_SHUTDOWN")
        self._cache.release_runs()  # runs whose local attempts can no longer start here move to another worker
        self._schedule_delivery()

    async def finalize(self) -> None:
        """Release all resources. Work in progress is abandoned: workflow tasks fail and are immediately offered to
        other workers.
        """
        self.initiate_shutdown()
        if self._grace is not None:
            self._grace()
        self._attempts.release_all()
        self._heartbeats.close()
        self._cache.abandon()
        self._schedule_delivery()
        self._ended(self)

    def lose(self) -> None:
        """Release the worker's tasks, queries and attempts immediately, because its process has ended. Tasks and
        queries are offered to other workers, and attempts are retried by their retry policies.

        The handle must not be used afterwards.
        """
        self._close()
        if self._grace is not None:
            self._grace()
        self._heartbeats.close()
        if not self.engine.is_over:
            self._attempts.lose()
            self._cache.lose()
            self.engine.queues.wake(self.poller.task_queue)
        self._schedule_delivery()
        self._ended(self)


def _ignore(*_: object) -> None:
    """Do nothing: the initial callback of a handle that has not been started."""
