"""Wrappers of handles with blocking polls that return one item at a time.

`Polled` wraps any handle. `PolledEngine` wraps a handle of the embedded engine and takes items only while a poll waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hourglass._contract.handle import (
    ActivityItem,
    ActivityResult,
    CompletionResult,
    Handle,
    OnActivations,
    OnActivities,
    Shutdown,
    WorkKind,
)
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._embedded.clock import Bell
from hourglass._evaluator.commands import Completion
from hourglass._evaluator.events import Activation

T = TypeVar("T")


class _Polls:
    """The base of both wrappers."""

    inner: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def complete_activation(self, completion: Completion) -> CompletionResult:
        """Complete an activation and wait until the engine has accepted it."""
        accepted = self.inner.complete_workflow_task(completion)
        return accepted if isinstance(accepted, CompletionResult) else await accepted

    async def complete_activity(self, result: ActivityResult) -> None:
        """Report the outcome of an attempt and wait until the engine has accepted it."""
        accepted = self.inner.complete_activity(result)
        if accepted is not None:
            await accepted


class Polled(_Polls):
    """A started handle of any engine."""

    def __init__(self, inner: Handle) -> None:
        self.inner = inner
        self.ends: dict[WorkKind, Exception] = {}
        self.activations: deque[Activation] = deque()
        self.activities: deque[ActivityItem] = deque()
        self._bell = Bell()
        inner.start(self._add(self.activations), self._add(self.activities), self._end)

    def _add(self, items: deque[Any]) -> Callable[[Sequence[Any]], None]:
        def add(more: Sequence[Any]) -> None:
            items.extend(more)
            self._bell.ring()

        return add

    def _end(self, kind: WorkKind, why: Exception) -> None:
        assert kind not in self.ends, "this kind of work ended twice"
        self.ends[kind] = why
        self._bell.ring()

    async def poll_activation(self) -> Activation:
        """="""
        return await self._next(WorkKind.WORKFLOWS, self.activations)

    async def poll_activity(self) -> ActivityItem:
        """Wait for the next activity task or cancellation; raise the reason of the end."""
        return await self._next(WorkKind.ACTIVITIES, self.activities)

    async def _next(self, kind: WorkKind, items: deque[T]) -> T:
        while not items:
            if kind in self.ends:
                raise self.ends[kind]
            await self._bell.wait()
        return items.popleft()

    async def stop(self) -> None:
        """Shut down and finalize the handle, whose items must all be completed."""
        self.inner.initiate_shutdown()
        while len(self.ends) < len(WorkKind):
            await self._bell.wait()
        await self.inner.finalize()


class Stepper:
    """Takes single items from a handle that was not started, by granting a slot for each call."""

    def __init__(self, handle: EngineHandle) -> None:
        self._handle = handle
        self._engine = handle.engine
        self._poller = handle.poller

    def next_activation(self) -> Activation | None:
        """Return an activation that is ready, or None. Raises `HandleBroken`."""
        while (activation := self._ready_activation()) is None and self._assign_task():
            pass
        return activation

    def _ready_activation(self) -> Activation | None:
        self._check()
        return self._handle._cache.ready.next()

    def next_activity(self) -> ActivityItem | None:
        """Return an activity task or cancellation that is ready, or None. Raises `HandleBroken`."""
        while (item := self._ready_activity()) is None and self._assign_attempt():
            pass
        return item

    def _ready_activity(self) -> ActivityItem | None:
        self._check()
        return self._handle._local.next_item() or self._handle._attempts.next_item()

    def _check(self) -> None:
        if self._engine.is_over:
            raise self._engine.over()

    def _assign_task(self) -> bool:
        """Assign at most one task, or the queries of one run. Return whether one was assigned."""
        poller = self._poller
        before = poller.queue.tasks_received, len(poller.active_runs)
        granted, poller.task_slots = poller.task_slots, min(before[1] + 1, poller.task_limit)
        try:
            self._engine.tasks.assign(poller)
        finally:
            poller.task_slots = granted
        return (poller.queue.tasks_received, len(poller.active_runs)) != before

    def _assign_attempt(self) -> bool:
        """Assign at most one attempt. Return whether one was assigned."""
        poller = self._poller
        before = len(poller.attempts)
        granted, poller.attempt_slots = poller.attempt_slots, min(before + 1, poller.attempt_limit)
        try:
            self._engine.attempts.assign(poller)
        finally:
            poller.attempt_slots = granted
        return len(poller.attempts) != before


class PolledEngine(_Polls):
    """A handle of the embedded engine. Closed runs are evicted by an activation, as for a worker in another process."""

    def __init__(self, inner: EngineHandle) -> None:
        self.inner = inner
        inner.forgets_at_once = False
        self.stepper = Stepper(inner)
        self._bell = Bell()
        self._polls = dict.fromkeys(WorkKind, 0)
        inner._deliver = self._ring  # type: ignore[method-assign]

    def _ring(self) -> None:
        """Wake the waiting polls instead of delivering items."""
        self.inner._will_deliver = False
        self._bell.ring()

    def start(self, on_activations: OnActivations, on_activities: OnActivities) -> None:
        """Deliver items as to a worker in this process, instead of by polls."""
        del self.inner._deliver
        self.inner.forgets_at_once = True
        self.inner.start(on_activations, on_activities, lambda kind, why: None)

    def forgets(self, completion: Completion) -> bool:
        """Complete an activation as a worker in this process does. Return whether the engine has forgotten the run."""
        self.inner.forgets_at_once = True
        try:
            return self.inner.complete_workflow_task(completion) is CompletionResult.RUN_FORGOTTEN
        finally:
            self.inner.forgets_at_once = False

    def take_all(self) -> list[Activation]:
        """Return all activations that are ready."""
        return list(iter(self.stepper.next_activation, None))

    async def poll_activation(self) -> Activation:
        """Wait for the next activation; raise `Shutdown` at the end."""
        return await self._poll(WorkKind.WORKFLOWS, self.stepper.next_activation)

    async def poll_activity(self) -> ActivityItem:
        """Wait for the next activity task or cancellation; raise `Shutdown` at the end."""
        return await self._poll(WorkKind.ACTIVITIES, self.stepper.next_activity)

    async def _poll(self, kind: WorkKind, take: Callable[[], T | None]) -> T:
        poller = self.inner.poller
        self._polls[kind] += 1
        try:
            while True:
                item = take()
                if item is not None:
                    return item
                if self.inner.is_finished(kind):
                    raise Shutdown("the handle is shut down")
                if kind is WorkKind.WORKFLOWS:
                    poller.task_slots = min(len(poller.active_runs) + self._polls[kind], poller.task_limit)
                else:
                    poller.attempt_slots = min(len(poller.attempts) + self._polls[kind], poller.attempt_limit)
                await self._bell.wait()
        finally:
            self._polls[kind] -= 1
            if not self._polls[kind] and kind is WorkKind.WORKFLOWS:
                poller.task_slots = 0
            elif not self._polls[kind]:
                poller.attempt_slots = 0
