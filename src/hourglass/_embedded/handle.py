"""A handle on the in-memory engine for one task queue: both of a worker's polls, and the ends of what it was
given.

Must not know: how runs change (see `transitions`), how history becomes activations (see `cursor`, `cache`).
Invariants: an item is given out only by a poll that returns it, so that a poll that is cancelled loses
nothing; each run has one activation out at most; a shutting-down handle takes nothing new and raises
`Shutdown` when all that is out has come back.
"""

from __future__ import annotations

import logging
from collections import deque

from hourglass._bridge.handle import (
    ActivityCancel,
    ActivityCancelled,
    ActivityDeferred,
    ActivityFailed,
    ActivityItem,
    ActivityOk,
    ActivityResult,
    HandleConfig,
    Shutdown,
)
from hourglass._embedded import transitions
from hourglass._embedded.bell import Bell
from hourglass._embedded.cache import Cache
from hourglass._embedded.clock import Cancel, to_ns
from hourglass._embedded.engine import MemoryEngine, Record, Token
from hourglass._embedded.run import Activity
from hourglass._engine.commands import Completion
from hourglass._engine.events import Activation, Payloads
from hourglass.converter import ApplicationFailure, CanceledFailure, Failure

_log = logging.getLogger("hourglass.embedded")


class MemoryHandle:
    """Implements `hourglass._bridge.handle.Handle`."""

    def __init__(self, engine: MemoryEngine, config: HandleConfig) -> None:
        config.check()
        self._engine = engine
        self._config = config
        self._cache = Cache(engine, self, config.max_cached_workflows)
        self._bell = Bell()
        self._closing = False
        self._out: set[bytes] = set()
        self._cancels: deque[ActivityCancel] = deque()
        self._grace: Cancel | None = None
        engine.offers.join(self)

    # --- what the engine asks (Taker) -----------------------------------------------------------------------

    @property
    def task_queue(self) -> str:
        """The queue that it serves."""
        return self._config.task_queue

    @property
    def identity(self) -> str:
        """Who it is."""
        return self._config.identity

    @property
    def takes_workflows(self) -> bool:
        """Whether it takes workflow tasks now."""
        return self._config.workflows and not self._closing

    @property
    def has_out(self) -> bool:
        """Whether its worker has something in hand."""
        return bool(self._cache.outstanding or self._out)

    def is_busy(self, run_id: str) -> bool:
        """Whether an activation of this run is out."""
        return self._cache.is_busy(run_id)

    def wake(self) -> None:
        """Something may be there to take."""
        self._bell.ring()

    def closed(self, run_id: str) -> None:
        """A run has closed: forget it once its activation, if one is out, is back."""
        self._cache.closed(run_id)
        self._bell.ring()

    def cancel_attempt(self, token: bytes, reason: str) -> None:
        """Stop an attempt that this handle's worker holds."""
        if token in self._out:
            self._cancels.append(ActivityCancel(token, reason))
            self._bell.ring()

    # --- workflow tasks -------------------------------------------------------------------------------------

    async def poll_activation(self) -> Activation:
        """Wait for the next activation; raise `Shutdown` at the end."""
        while True:
            activation = self._next_activation()
            if activation is not None:
                return activation
            if self._closing and not self._cache.outstanding:
                raise Shutdown("the handle is shut down")
            await self._bell.wait()

    def _next_activation(self) -> Activation | None:
        while not self._cache.ready and self.takes_workflows:
            if self._cache.outstanding >= self._config.max_concurrent_workflow_tasks:
                break
            task = self._engine.take_task(self)
            asked = None if task else self._engine.take_queries(self)
            if task is not None:
                self._cache.begin_task(task)
            elif asked is not None:
                self._cache.begin_queries(asked)
            else:
                break
        return self._cache.ready.popleft() if self._cache.ready else None

    async def complete_activation(self, completion: Completion) -> None:
        """Answer an activation."""
        if not self._cache.complete(completion):
            _log.warning("completion for run %s, which has no activation out", completion.run_id)
        self._engine.offers.wake(self.task_queue)
        self._bell.ring()

    def request_eviction(self, run_id: str) -> None:
        """Ask that a run be evicted."""
        self._cache.request_eviction(run_id)
        self._bell.ring()

    # --- activities -----------------------------------------------------------------------------------------

    async def poll_activity(self) -> ActivityItem:
        """Wait for the next activity task or cancellation; raise `Shutdown` at the end."""
        while True:
            item = self._next_activity()
            if item is not None:
                return item
            if self._closing and not self._out:
                raise Shutdown("the handle is shut down")
            await self._bell.wait()

    def _next_activity(self) -> ActivityItem | None:
        while self._cancels:
            cancel = self._cancels.popleft()
            if cancel.token in self._out:
                return cancel
        if self._closing or not self._config.activities:
            return None
        if len(self._out) >= self._config.max_concurrent_activities:
            return None
        task = self._engine.take_attempt(self)
        if task is not None:
            self._out.add(task.token)
        return task

    async def complete_activity(self, result: ActivityResult) -> None:
        """Report the end of an attempt. The end of an attempt that no longer counts is dropped, as a server
        does.
        """
        self._out.discard(result.token)
        self._bell.ring()
        token = Token.decode(result.token)
        self._engine.release(token)
        found = self._engine.attempt(token)
        if found is not None and not isinstance(result, ActivityDeferred):
            self._end(*found, result)

    def _end(
        self, record: Record, activity: Activity, result: ActivityOk | ActivityFailed | ActivityCancelled
    ) -> None:
        who = self.identity
        match result:
            case ActivityOk():
                self._engine.change(
                    record,
                    lambda run, now: transitions.complete_activity(run, activity, result.result, who, now),
                )
            case ActivityCancelled() if activity.cancel_requested_event_id:
                info = result.failure.info
                details = info.details if isinstance(info, CanceledFailure) else ()
                self._engine.change(
                    record, lambda run, now: transitions.cancel_activity(run, activity, details, who, now)
                )
            case ActivityFailed() | ActivityCancelled():
                failure = result.failure if isinstance(result, ActivityFailed) else _unasked(result.failure)
                self._engine.change(
                    record, lambda run, now: transitions.fail_activity(run, activity, failure, who, now)
                )

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        """Report that an attempt lives."""
        found = self._engine.attempt(Token.decode(token))
        if found is None:
            self.cancel_attempt(token, "NOT_FOUND")
            return
        record, activity = found
        self._engine.change(record, lambda run, now: transitions.heartbeat(run, activity, details, now))

    # --- the end --------------------------------------------------------------------------------------------

    def initiate_shutdown(self) -> None:
        """Take no new work; after the grace period ask the running activities to stop."""
        if self._closing:
            return
        self._closing = True
        self._engine.offers.leave(self)
        self._cache.let_go()
        self._engine.offers.wake(self.task_queue)
        clock = self._engine.clock
        self._grace = clock.call_at(
            clock.now_ns() + to_ns(self._config.graceful_shutdown), self._stop_activities
        )
        self._bell.ring()

    def _stop_activities(self) -> None:
        for token in self._out:
            self._cancels.append(ActivityCancel(token, "WORKER_SHUTDOWN"))
        self._bell.ring()

    async def finalize_shutdown(self) -> None:
        """Free everything. What is still out is given up: tasks fail and are offered again at once."""
        self.initiate_shutdown()
        if self._grace is not None:
            self._grace()
        for token in self._out:
            self._engine.release(Token.decode(token))
        self._out.clear()
        self._cache.abandon()
        self._bell.ring()


def _unasked(failure: Failure) -> Failure:
    """The failure of an attempt that stopped although nobody cancelled it (its worker shuts down): worth a
    retry.
    """
    return Failure(
        failure.message or "the attempt stopped without being asked to",
        ApplicationFailure(type="WorkerShutdown"),
        cause=failure,
    )
