"""The driver of an environment: does one step at a time, on a single thread, and advances virtual time.

Items that the engine delivers become steps; a step passes its item to the worker's dispatch (`_served_queue`). The driver
decides when that happens, evaluates activations in place of the worker's lanes, and advances the virtual clock. User code
runs outside the event loop, as in a worker.

Invariants:

- Steps are done only while a caller waits in the environment.
- When control returns to a caller, the current instant is settled: no more steps are possible, except steps of real
  activities that are still running in their threads.
- Time passes only when no step is possible, no real activity runs, and a caller waits for time to pass.
- The same choices result in the same steps in the same order.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from hourglass._contract.handle import ActivityCancel, ActivityItem
from hourglass._contract.service import Connection
from hourglass._contract.workflows import WaitForClose
from hourglass._embedded import EngineConnection, VirtualClock
from hourglass._embedded.clock import Bell
from hourglass._embedded.engine import Engine
from hourglass._embedded.matching.task_queues import DispatchPolicy
from hourglass._evaluator.events import Activation, RunEvicted, is_eviction
from hourglass._worker.activities.attempts import attempt_name
from hourglass._worker.health.parked import task_failed
from hourglass._worker.lanes.evaluation import Evaluations, Verdict
from hourglass.activity._context import Equipment
from hourglass.errors import InternalError, UsageError
from hourglass.testing._activities import EnvironmentActivities
from hourglass.testing._errors import EnvironmentErrors, explain
from hourglass.testing._guard import Guard, WorkflowHung
from hourglass.testing._quiet_loop import QuietLoop
from hourglass.testing._registry import EnvironmentRegistry
from hourglass.testing._served_queue import ServedQueue, queues_of
from hourglass.testing._steps import Chooser, Step

T = TypeVar("T")

_PATIENCE = 10.0  # seconds of real time


class Interrupted(BaseException):
    """Raised in a wait that no longer has a caller, because its asynchronous call was cancelled or its environment was
    closed.
    """


class EnvironmentDriver(DispatchPolicy):
    """The driver of an environment. Must be used on the environment's thread, except for methods marked as thread-safe. It is
    also the dispatch policy of the environment's engine.
    """

    explores = False
    """Whether the engine asks the driver before dispatching any task, real `def` activities run on the environment's thread, and
    parked runs are not logged. If this is False, the engine asks once a run is parked.
    """
    connection: Connection
    engine: Engine

    def __init__(
        self,
        clock: VirtualClock,
        loop: QuietLoop,
        registry: EnvironmentRegistry,
        chooser: Chooser,
        evaluations: Callable[[str, EnvironmentErrors], Evaluations],
        horizon_ns: int,
        guard: Guard,
        equipment: Equipment,
    ) -> None:
        self.is_selective = self.explores
        self.clock = clock
        self.loop = loop
        self.registry = registry
        self.errors = EnvironmentErrors(is_quiet=self.explores)
        self.chooser = chooser
        self.guard = guard
        self.stage = EnvironmentActivities(registry, self.errors, clock, equipment, inline=self.explores)
        self.waited_for: list[WaitForClose] = []
        # The driver must complete the client calls of activities on other threads.
        self.outside: set[asyncio.Task[Any]] = set()
        self.closed = False
        self.steps: list[Step] = []
        self.horizon_ns = clock.now_ns() + horizon_ns
        self._evaluations = evaluations
        self._thread = threading.get_ident()
        self._queues: dict[str, ServedQueue] = {}
        self._bell = Bell()
        self._interrupted = False

    def may_take(self, run_id: str, scheduled_event_id: int) -> bool:
        """Return whether the engine may dispatch a task. Only the workflow tasks of parked runs are rejected: code does not
        change during a test, so the run would only be parked again.
        """
        return scheduled_event_id != 0 or not self.errors.is_parked(run_id)

    def connect(self, connection: EngineConnection) -> None:
        """Set the connection to the engine, for which this driver is the policy. Must be called before any other method."""
        self.connection, self.engine = connection, connection.engine

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is on the environment's thread. Thread-safe."""
        return threading.get_ident() == self._thread

    def interrupt(self) -> None:
        """End the current wait by raising `Interrupted`. Thread-safe."""
        self._interrupted = True
        self.loop.call_soon_threadsafe(self.ring)

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Do steps until a coroutine is done and the instant is settled, and return its result. Virtual time passes as
        needed.
        """
        try:
            self.check()
        except BaseException:
            coro.close()
            raise
        self._interrupted = False
        return self._until_done(coro, lambda: True)

    def run_now(self, coro: Coroutine[Any, Any, T]) -> T:
        """Do steps until a coroutine is done, without letting virtual time pass. Return its result."""
        return self._until_done(coro, lambda: False)

    def _until_done(self, coro: Coroutine[Any, Any, T], may_move: Callable[[], bool]) -> T:
        task = self.loop.create_task(coro)
        task.add_done_callback(lambda _: self.ring())
        try:
            self._drive(task.done, may_move)
        except BaseException:
            task.cancel()
            self.loop.do(_ended(task))
            raise
        return task.result()

    def skip_to(self, when_ns: int) -> None:
        """Advance virtual time to `when_ns`, and do all steps that are due by then."""
        self.check()
        self._interrupted = False
        reached: list[bool] = []
        cancel = self.clock.call_at(when_ns, lambda: reached.append(True))
        try:
            self._drive(lambda: bool(reached), lambda: True)
        finally:
            cancel()
        self._raise_parked()

    def check(self) -> None:
        """Raise `UsageError` if the environment is closed or the caller is on another thread."""
        if self.closed:
            raise UsageError("this Environment is closed: use it inside its `with` block")
        if not self.is_own_thread:
            raise UsageError(
                "an Environment can be used only in the thread that opened it: open another one in this thread"
            )

    def add(self, step: Step) -> None:
        """Add a step that can be done from now on."""
        if not self.closed:
            self.steps.append(step)
            self.ring()

    def ring(self) -> None:
        """Wake the driver if it is waiting for other threads."""
        self._bell.ring()

    async def serve(self, task_queue: str) -> None:
        """Serve a task queue from now on. Must be called on the event loop."""
        if task_queue not in self._queues:
            queue = self._queues[task_queue] = ServedQueue(
                task_queue,
                self.connection,
                self.loop,
                lambda name: self._evaluations(name, self.errors),
                self.stage,
                self,
            )
            await queue.open()

    def crash(self) -> None:
        """Drop the worker's state, as if its process had died. Runs are rebuilt from their histories, and attempts are
        retried after their timeouts.
        """
        self.check()
        self.steps.clear()
        for queue in self._queues.values():
            queue.crash()

    def close(self) -> None:
        """Close the environment. Execute open runs a second time, compare the commands, and then unwind the fibers. Raise
        `WorkflowParked` if a run issues different commands.
        """
        if self.closed:
            return
        before = set(self.errors.known())
        try:
            for queue in self._queues.values():
                with self.guard.watching(queue.evaluations):
                    queue.evaluations.recheck()
        finally:
            self._close()
        for error in self.errors.known():
            if error not in before:
                raise error

    def _close(self) -> None:
        self.closed = True
        self.steps.clear()
        for queue in self._queues.values():
            queue.close()
        for task in self.outside:
            task.cancel()
        self.loop.settle()
        self.loop.do(self.connection.close())
        self.loop.settle()  # callbacks of the shutdown: the loop outlives the environment and must not reference it
        self._queues.clear()
        self.clock.forget_all()
        del self._evaluations

    def _drive(self, done: Callable[[], bool], may_move: Callable[[], bool]) -> None:
        steps, errors = self.steps, self.errors
        while True:
            self.loop.settle()
            if self._interrupted or errors.urgent:
                self._raise_urgent()
            if steps:
                steps.pop(self.chooser.choose(steps)).do()
            elif done():
                return
            elif may_move():
                self._raise_parked()
                self._wait_or_move()
            else:
                self._await_others()

    def _wait_or_move(self) -> None:
        stage = self.stage
        if len(stage.running) > len(self.outside):
            self.loop.do(self._bell.wait())
        elif self.engine.awaits_workers and not stage.asleep and not stage.running:
            self._await_others()
        elif self.clock.now_ns() > self.horizon_ns:
            raise explain(self, "virtual time has reached the environment's horizon")
        elif not self._move():
            raise explain(self, "no timer is pending, and no task is in progress")

    def _await_others(self) -> None:
        """Wait for the engine or another thread, without advancing virtual time."""
        if len(self.stage.running) > len(self.outside):
            self.loop.do(self._bell.wait())
        elif not self.loop.do(self._bell.wait(_PATIENCE)):
            raise InternalError(f"the environment has made no progress for {_PATIENCE:g} s of real time")

    def _move(self) -> bool:
        """Advance virtual time until the next callback is due. Return False if there is none."""
        return self.loop.call(self.clock.advance_to_next)

    def _raise_urgent(self) -> None:
        if self._interrupted:
            raise Interrupted
        if self.errors.urgent:
            raise self.errors.urgent.popleft()

    def _raise_parked(self) -> None:
        parked = self.errors.parked()
        if parked is not None:
            raise parked

    def arrived(self, queue: ServedQueue, item: Activation | ActivityItem) -> None:
        """Add the step for an item that a handle delivers. Must be called on the event loop."""
        self.add(self._step(queue, item))

    def _step(self, queue: ServedQueue, item: Activation | ActivityItem) -> Step:
        do = partial(queue.begin, item)
        if isinstance(item, Activation):
            return Step("activation", item.run_id, do)
        if isinstance(item, ActivityCancel):
            attempt = queue.executor.attempts.get(item.token)
            return Step("cancel", "an attempt" if attempt is None else attempt.name, do)
        return Step("attempt", attempt_name(item), do)

    def evaluate(
        self,
        queue: ServedQueue,
        activation: Activation,
        reply: Callable[[Verdict], object],
        generation: int,
    ) -> None:
        """Evaluate an activation in place of a lane, outside the event loop. Pass the verdict to `reply`."""
        for event in activation.events:
            if isinstance(event, RunEvicted):
                self.errors.evicted(activation.run_id, event)
        if self.errors.is_parked(activation.run_id) and not is_eviction(activation):
            reply(Verdict(task_failed(activation.run_id, "WorkflowParked", "the run is parked")))
            return
        verdict = self._guarded(queue, activation, generation)
        if verdict is None:
            return
        if self.errors.any_parked:
            self.is_selective = True
        reply(verdict)
        self._serve_named(verdict)

    def _serve_named(self, verdict: Verdict) -> None:
        """Serve the task queues that a run's commands name."""
        for name in queues_of(verdict.completion):
            self.loop.do(self.serve(name))

    def _guarded(self, queue: ServedQueue, activation: Activation, generation: int) -> Verdict | None:
        """Evaluate an activation. If its code hangs, return None and record the error, so that it is raised in the test
        immediately.
        """
        try:
            with self.guard.watching(queue.evaluations):
                return queue.evaluations.evaluate(activation, generation)
        except WorkflowHung as error:
            self.errors.add(error)
            return None


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # retrieved, because otherwise asyncio logs it
