"""The driver: makes everything in an environment happen, one step at a time, in one thread, and lets time pass.

It is what a worker's tree is in production, without its threads: it takes activations and attempts from the engine; the
worker's evaluations answer the activations, and its activity executor executes the attempts (`_activities`). User code runs
outside the event loop, as in a worker.

Invariants:

- Nothing happens while no caller waits in the environment.
- A caller that gets control back finds the present instant settled: no step is left that could be done now, but for
  real activities that still run in their threads.
- Time moves only when no step is left, no real activity runs, and a caller waits for it to move.
- With the same choices the same steps are done in the same order.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from hourglass._contract.handle import (
    ActivityCancel,
    ActivityItem,
    ActivityResult,
    ActivityTask,
    HandleConfig,
)
from hourglass._contract.ids import new_id
from hourglass._contract.service import Connection
from hourglass._contract.workflows import WaitForClose
from hourglass._embedded import EngineConnection, VirtualClock
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._embedded.clock import Bell
from hourglass._embedded.matching.task_queues import DispatchPolicy
from hourglass._evaluator.commands import Completion, Succeeded
from hourglass._evaluator.events import Activation, RunEvicted, is_eviction
from hourglass._evaluator.specs import Payloads
from hourglass._worker.activities.attempts import attempt_name
from hourglass._worker.activities.executors import ActivityExecutor
from hourglass._worker.activities.publishing import ProgressSender
from hourglass._worker.health.parked import task_failed
from hourglass._worker.lanes.evaluation import Evaluations, Verdict
from hourglass.activity._context import Equipment
from hourglass.errors import InternalError, UsageError
from hourglass.testing._activities import (
    HEARTBEAT_INTERVAL,
    ActivityStage,
    EnvironmentMailbox,
    EnvironmentRunner,
    Mishap,
    Performance,
)
from hourglass.testing._guard import Guard
from hourglass.testing._registry import EnvironmentRegistry
from hourglass.testing._threads import QuietLoop
from hourglass.testing._trouble import Troubles, explain

# --- steps, and the choice of the next one --------------------------------------------------------
#
# At any instant an environment knows the steps that are possible. One is chosen, done, and the possible ones are
# looked at again; time moves when there is none. The same choices give the same story.


StepKind = Literal["activation", "attempt", "cancel", "ended", "woke", "action"]


class Step(msgspec.Struct, frozen=True, eq=False):
    """Something that can happen now.

    activation: a workflow gets to know what happened. attempt: an attempt of an activity begins. cancel: one is
    told to stop. ended: one that ran elsewhere is done. woke: the virtual duration of a fake is over. action:
    something that the test put down for this time.
    """

    kind: StepKind
    name: str
    do: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class StepAdder(Protocol):
    """The driver, as task queues and runners see it."""

    def add(self, step: Step) -> None:
        """Add a step that is possible from now on."""
        ...

    def wake_up(self, name: str, wake: Callable[[], None]) -> None:
        """Add the step that ends a fake's virtual duration."""
        ...


class Chooser(Protocol):
    """Decides what happens next."""

    def choose(self, steps: Sequence[Step]) -> int:
        """The place of the step that is done next; there is at least one."""
        ...


class InOrder:
    """What came first happens first."""

    def choose(self, steps: Sequence[Step]) -> int:
        """The first."""
        return 0


class Shuffled:
    """Any order, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, steps: Sequence[Step]) -> int:
        """One of them."""
        return self._random.randrange(len(steps))


# --- task queues: a handle, and its runs ----------------------------------------------------------
#
# What is taken becomes a step.
# A crash drops all that a worker would lose with its process.


IDENTITY = "test-worker"

_MANY = 1_000_000  # nothing is to wait for a slot


class ServedQueue:
    """What serves one task queue. In the environment's thread."""

    def __init__(
        self,
        name: str,
        connection: Connection,
        loop: QuietLoop,
        bell: Bell,
        evaluations: Callable[[str], Evaluations],
        stage: ActivityStage,
        steps: StepAdder,
    ) -> None:
        """Create the queue; on the loop."""
        self.name = name
        self._connection = connection
        self._loop = loop
        self._bell = bell
        self._make = evaluations
        self._steps = steps
        self.runner = EnvironmentRunner(stage, steps)
        self.executor = ActivityExecutor(
            stage.equipment,
            self._heartbeat,
            lambda _: self.runner,
            heartbeat_interval=HEARTBEAT_INTERVAL,
            publisher=ProgressSender(connection, converter=stage.equipment.converter),
            mailbox=EnvironmentMailbox(loop),
            timers=stage.timers,
            is_quiet=True,
        )

    async def open(self) -> None:
        """Begin to serve; on the loop."""
        self.evaluations = self._make(self.name)
        config = HandleConfig(
            task_queue=self.name,
            identity=IDENTITY,
            max_cached_workflows=_MANY,
            max_concurrent_workflow_tasks=_MANY,
            max_concurrent_activities=_MANY,
            max_concurrent_local_activities=_MANY,
        )
        handle = await self._connection.open_handle(config)
        assert isinstance(handle, EngineHandle)  # an environment's engine is in this thread
        self.handle = handle
        self.attend()

    def attend(self) -> None:
        """Begin to take what there is."""
        self.handle.attend(self._bell)

    def taken(self) -> Sequence[Activation | ActivityItem]:
        """All that there is now."""
        return self._loop.call(self._take)

    def _take(self) -> list[Activation | ActivityItem]:
        return [*self.handle.take_activations(), *self.handle.take_activities()]

    def refuse(self, activation: Activation, why: str) -> None:
        """Fail the task of an activation without executing anything."""
        self._loop.call(
            self.handle.complete_workflow_task, task_failed(activation.run_id, "WorkflowParked", why)
        )

    def judge(self, activation: Activation) -> Verdict:
        """Have an activation evaluated; the driver sees to the answer."""
        return self.evaluations.evaluate(activation)

    def answer(self, verdict: Verdict) -> None:
        """Answer the activation of a verdict."""
        self._loop.call(self.handle.complete_workflow_task, verdict.completion)
        for run_id in verdict.evict:
            self.handle.request_eviction(run_id)

    def begin(self, task: ActivityTask, mishap: Mishap | None = None) -> None:
        """Start an attempt, which a mishap may befall."""
        if mishap is not None:
            self.runner.plan(task.token, mishap)
        self.executor.begin(task, self)

    def executed(self, result: ActivityResult) -> None:
        """Report the result of an attempt: now, or, where it ran on another thread, as a step of its own."""
        performance = self.runner.ended(result)
        if performance is not None and performance.is_elsewhere:
            self._steps.add(Step("ended", performance.name, partial(self._report, result, performance)))
        else:
            self._report(result, performance)

    def _report(self, result: ActivityResult, performance: Performance | None) -> None:
        if performance is None or not performance.mishap.result_lost:
            self._loop.call(self.handle.complete_activity, result)

    def _heartbeat(self, token: bytes, details: Payloads) -> None:
        self.handle.heartbeat(token, details)

    def crash(self) -> None:
        """Lose everything that a worker knows, as if its process had died, and begin anew."""
        self._close()
        self._loop.do(self.open())

    def close(self) -> None:
        """Drop all fibers, in their own thread, and let go of the handle."""
        self._close()
        self.executor.stop()

    def _close(self) -> None:
        for attempt in list(self.executor.attempts.values()):
            self.executor.abandon(attempt)
        self.runner.abandon()
        self.evaluations.close()
        self._loop.do(self.handle.finalize())


def queues_of(completion: Completion) -> list[str]:
    """The task queues that the commands of a completion name."""
    if not isinstance(completion, Succeeded):
        return []
    named: list[str] = []
    for command in completion.commands:
        name = getattr(getattr(command, "spec", None), "task_queue", "")
        if name and isinstance(name, str):
            named.append(name)
    return named


# --- the driver -----------------------------------------------------------------------------------


T = TypeVar("T")

_PATIENCE = 10.0


class Interrupted(BaseException):
    """The caller that waited has given up: its asynchronous call was cancelled, or its environment is closed."""


class DriverPolicy(DispatchPolicy):
    """The policy of an environment's engine: the driver decides."""

    driver: EnvironmentDriver

    def may_take(self, run_id: str, scheduled_event_id: int) -> bool:
        """See `DispatchPolicy`."""
        return self.driver.may_take(run_id, scheduled_event_id)

    def due_now(self, due: list[int]) -> list[int]:
        """See `DispatchPolicy`."""
        return self.driver.due_now(due)

    def new_run_id(self) -> str:
        """See `DispatchPolicy`."""
        return self.driver.new_run_id()


class EnvironmentDriver:
    """Drives one environment. All but what is said to be for any thread belongs to the environment's thread."""

    make_queue: Callable[..., ServedQueue] = ServedQueue
    make_troubles: Callable[[], Troubles] = Troubles
    inline = False
    """Whether real `def` activities run on the environment's thread."""
    gates = False
    """Whether the engine asks before it gives anything out; else it does so once a run is parked."""

    def __init__(
        self,
        connection: EngineConnection,
        clock: VirtualClock,
        loop: QuietLoop,
        registry: EnvironmentRegistry,
        chooser: Chooser,
        evaluations: Callable[[str, Troubles], Evaluations],
        horizon_ns: int,
        guard: Guard,
        policy: DriverPolicy,
        equipment: Equipment,
    ) -> None:
        self.connection: Connection = connection
        self.engine = connection.engine
        self.policy = policy
        policy.driver, policy.is_selective = self, self.gates
        self.clock = clock
        self.loop = loop
        self.registry = registry
        self.troubles = self.make_troubles()
        self.chooser = chooser
        self.guard = guard
        self.stage = ActivityStage(registry, self.troubles, clock, equipment, inline=self.inline)
        self.waited_for: list[WaitForClose] = []
        # Client calls that activities make from other threads, and that the driver must answer.
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
        """Whether the engine may give this out: all but the workflow tasks of runs that are parked. The code will not
        change while the test runs: executed once more, it would raise once more.
        """
        return scheduled_event_id != 0 or not self.troubles.is_parked(run_id)

    def due_now(self, due: list[int]) -> list[int]:
        """Which of a run's timers that are due at the same moment happen now."""
        return due

    def new_run_id(self) -> str:
        """The id of a new run."""
        return new_id()

    # --- from any thread ----------------------------------------------------------------------------------

    @property
    def at_home(self) -> bool:
        """Whether this is the environment's thread."""
        return threading.get_ident() == self._thread

    def interrupt(self) -> None:
        """Have the wait that is going on end with `Interrupted`."""
        self._interrupted = True
        self.loop.call_soon_threadsafe(self.ring)

    # --- waiting ------------------------------------------------------------------------------------------

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Make things happen until a coroutine is done and the instant is settled."""
        try:
            self.check()
        except BaseException:
            coro.close()
            raise
        self._interrupted = False
        # What is not answered at this instant waits for time: a run that closes, an update that takes a while.
        return self._until_done(coro, lambda: True)

    def ask(self, coro: Coroutine[Any, Any, T]) -> T:
        """The same, but time stands still meanwhile."""
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
        """Let time pass until then, and all happen that is due on the way."""
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
        """Refuse what would go wrong later, and less clearly."""
        if self.closed:
            raise UsageError("this Environment is closed: what happens in it happens inside its `with` block")
        if not self.at_home:
            raise UsageError(
                "an Environment belongs to the thread that opened it, and this is another: use it there, or one for each thread"
            )

    # --- steps --------------------------------------------------------------------------------------------

    def add(self, step: Step) -> None:
        """Something can happen now."""
        if not self.closed:
            self.steps.append(step)
            self.ring()

    def wake_up(self, name: str, wake: Callable[[], None]) -> None:
        """Add the step that ends a fake's virtual duration."""
        self.add(Step("woke", name, wake))

    def ring(self) -> None:
        """Wake the driver where it waits for other threads."""
        self._bell.ring()

    async def serve(self, task_queue: str) -> None:
        """Serve a queue from now on; on the loop."""
        if task_queue not in self._queues:
            queue = self._queues[task_queue] = self.make_queue(
                task_queue,
                self.connection,
                self.loop,
                self._bell,
                lambda name: self._evaluations(name, self.troubles),
                self.stage,
                self,
            )
            await queue.open()

    def crash(self) -> None:
        """Lose all that a worker holds, as if its process had died: runs come back from their histories, attempts when
        they have timed out.
        """
        self.check()
        self.steps.clear()
        for queue in self._queues.values():
            queue.crash()

    def close(self) -> None:
        """End; open runs are executed once more and compared, then left as they are, and their fibers unwound. Raises why
        one of them is parked by that.
        """
        if self.closed:
            return
        told = set(self.troubles.known())
        try:
            with self.guard:
                for queue in self._queues.values():
                    queue.evaluations.recheck()
        finally:
            self._close()
        for error in self.troubles.known():
            if error not in told:
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
        self.loop.settle()  # what has heard of that: the loop outlives the environment, and shall not keep it
        self._queues.clear()
        self.clock.forget_all()
        del self.policy.driver, self._evaluations

    def _drive(self, done: Callable[[], bool], may_move: Callable[[], bool]) -> None:
        steps, troubles = self.steps, self.troubles
        while True:
            self._collect()
            if self._interrupted or troubles.urgent:
                self._raise_urgent()
            if steps:
                steps.pop(self.chooser.choose(steps)).do()
            elif self.loop.settle():
                continue
            elif done():
                return
            elif may_move():
                self._raise_parked()
                self._wait_or_move()
            else:
                self._await_others()

    def _collect(self) -> None:
        for queue in self._queues.values():
            if queue.handle.may_have_items:
                for item in queue.taken():
                    self.steps.append(self._step(queue, item))

    def _wait_or_move(self) -> None:
        stage = self.stage
        if len(stage.running) > len(self.outside):
            self.loop.do(self._bell.wait())
        elif self.engine.runs.in_flight and not stage.asleep and not stage.running:
            self._await_others()
        elif self.clock.now_ns() > self.horizon_ns:
            raise explain(self, "virtual time has come to the environment's horizon")
        elif not self._move():
            raise explain(self, "nothing is due, and nothing is under way")

    def _await_others(self) -> None:
        """The engine or another thread has something to do: that takes no virtual time."""
        if len(self.stage.running) > len(self.outside):
            self.loop.do(self._bell.wait())
        elif not self.loop.do(self._bell.wait(_PATIENCE)):
            raise InternalError(f"nothing happens in the environment for {_PATIENCE:g} s of real time")

    def _move(self) -> bool:
        """Let time pass until something is due; False if nothing ever will be."""
        return self.loop.call(self._advance)

    def _advance(self) -> bool:
        return self.clock.advance_to_next()

    def _raise_urgent(self) -> None:
        if self._interrupted:
            raise Interrupted
        if self.troubles.urgent:
            raise self.troubles.urgent.popleft()

    def _raise_parked(self) -> None:
        parked = self.troubles.parked()
        if parked is not None:
            raise parked

    def _step(self, queue: ServedQueue, item: Activation | ActivityItem) -> Step:
        if isinstance(item, Activation):
            return Step("activation", item.run_id, partial(self._evaluate, queue, item))
        if isinstance(item, ActivityCancel):
            attempt = queue.executor.attempts.get(item.token)
            cancel = partial(queue.executor.cancel, item.token, item.reason)
            return Step("cancel", "an attempt" if attempt is None else attempt.name, cancel)
        return Step("attempt", attempt_name(item), partial(queue.begin, item))

    def _evaluate(self, queue: ServedQueue, activation: Activation) -> None:
        for event in activation.events:
            if isinstance(event, RunEvicted):
                self.troubles.evicted(activation.run_id, event)
        if self.troubles.is_parked(activation.run_id) and not is_eviction(activation):
            queue.refuse(activation, "the run is parked")
            return
        with self.guard:
            verdict = queue.judge(activation)
        if self.troubles.any_parked:
            self.policy.is_selective = True
        queue.answer(verdict)
        for name in queues_of(verdict.completion):
            self.loop.do(self.serve(name))


async def _ended(task: asyncio.Task[Any]) -> None:
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # looked at: asyncio shall not complain
