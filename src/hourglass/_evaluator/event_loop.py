"""The event loop of a run's coroutines: asyncio's own tasks on the run's scheduler. Besides `awaited`, the only
module that knows asyncio.

Each asyncio callback takes one turn of the scheduler, as in Temporal's Python SDK (I1). `gather`, `wait_for`,
`timeout`, `TaskGroup`, `Queue` and all others are the standard library's, and so are their turns. This loop
provides only the order of the callbacks (the scheduler's), the time (the history's), and timers (as commands).
Functions with effects outside of the run (sockets, processes, threads) are rejected by name.

Callbacks run in one fiber of the run (`LoopFiber`), so that the author's calls find the run as in plain code.
Callbacks cannot suspend this fiber: a coroutine waits with `await`. Must not know: events, definitions,
operations.

Dropping a run closes its coroutines: `finally` blocks run while the run is latched (I5).
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
from asyncio import events
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from contextvars import Context, ContextVar, copy_context
from functools import partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, TypeVarTuple, cast
from weakref import ReferenceType, ref

from hourglass._evaluator import thread_guard
from hourglass._evaluator.commands import CancelTimer, EventGroupMarker, StartTimer
from hourglass._evaluator.fibers import LoopFiber, Task, read_only_error, was_cancelled
from hourglass._evaluator.scheduler import PENDING, RESOLVED, Future
from hourglass._evaluator.state import TIMER, PathStep
from hourglass.errors import Cancelled, DeterminismError, UsageError, WorkflowParked

if TYPE_CHECKING:
    from hourglass._evaluator.context import LiveRun

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

_MAX_UNWINDS = 1000  # how often a closed coroutine may resume before it is abandoned
# never freed: if these coroutines were garbage-collected, they would resume during another run
_abandoned_coroutines: list[Any] = []

timer_summary: ContextVar[str] = ContextVar("hourglass_timer_summary", default="")
"""The summary of timers that the current context starts. A context variable, because asyncio's functions have
no parameter for a summary.
"""


# From Python 3.14 on, a thread has one current task, not one per loop. If a run is executed in a task of
# another loop, as in a replay, that task is temporarily removed as the current task.
_set_task: Callable[[Any, Any], Any] = (
    cast(Any, asyncio.tasks)._swap_current_task if sys.version_info >= (3, 14) else lambda loop, task: None
)


class TimerHandle(asyncio.TimerHandle):
    """A timer of the run, returned by `call_later`."""

    __slots__ = ("groups", "seq")

    groups: tuple[EventGroupMarker, ...]
    seq: int

    def fired(self) -> None:
        """Schedule the callback after the timer has fired."""
        loop = self._loop  # type: ignore[attr-defined]
        loop.run.scheduler.ready.append((loop.turn, self))


class EventLoop(asyncio.AbstractEventLoop):
    """The part of asyncio's event loop interface that a run supports."""

    def __init__(self, run: LiveRun) -> None:
        self.run = run
        self.fiber = LoopFiber(run, self._within)
        self.tasks: dict[asyncio.Task[Any], tuple[int, Context | None]] = {}
        self._made = 0
        self._settling = False
        self._exception_handler: Callable[..., object] | None = None
        self._close_abandoned_generator = partial(_close_abandoned_generator, ref(self))

    @classmethod
    def of(cls, run: LiveRun) -> EventLoop:
        """Return a loop for a run. The cast hides from type checkers that the rejecting methods are only added
        below.
        """
        loop: EventLoop = cast(Any, cls)(run)
        return loop

    def turn(self, handle: asyncio.Handle) -> None:
        """Take one turn: run a callback of asyncio."""
        if handle._cancelled:
            return
        try:
            self.fiber.call(handle._run)
        except BaseException as error:
            # `SystemExit` and the like are bugs, and must not end the thread that runs workflows.
            self.run.error = WorkflowParked(f"a coroutine raised {type(error).__name__}: {error}")
            self.run.error.__cause__ = error
        if self.run.error is not None:
            raise self.run.error

    def _within(self, function: Callable[[], R]) -> R:
        outer_loop, hooks = events._get_running_loop(), sys.get_asyncgen_hooks()
        outer_task = _set_task(outer_loop, None) if outer_loop is not None else None
        events._set_running_loop(self)
        sys.set_asyncgen_hooks(finalizer=self._close_abandoned_generator)
        try:
            return function()
        finally:
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(outer_loop)
            if outer_task is not None:
                _set_task(outer_loop, outer_task)

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Schedule a callback for the next free turn."""
        run = self.run
        if run.latched and not run.dead and not self._settling:
            raise read_only_error("waking a task", run.read_only)
        handle = asyncio.Handle(callback, args, self, context)
        run.scheduler.ready.append((self.turn, handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call a function after a delay in workflow time, with a durable timer."""
        run = self.run
        if run.latched:
            run.raise_unavailable(self.fiber, "starting a timer")
        if not delay >= 0:
            raise UsageError(f"a timer cannot end in the past ({-delay:g} s ago)")
        seq = run.accumulator.number(TIMER)
        handle = TimerHandle(self.time() + delay, callback, args, self, context)
        handle.seq = seq
        summary = timer_summary.get()
        note = run.converter.encode(summary) if summary else None
        command = StartTimer(seq, int(delay * 1e9), note)
        handle.groups = run.issue(command, self.fiber, (TIMER, seq), handle).event_groups
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call a function at a time on the clock of `time()`. The delay is rounded to a millisecond, as in
        temporalio, because a float of seconds is not more precise than that.
        """
        return self.call_later(round(when - self.time(), 3), callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        assert isinstance(handle, TimerHandle)
        run, key = self.run, (TIMER, handle.seq)
        if not run.dead and run.pending.pop(key, None) is not None:
            run.issue(CancelTimer(handle.seq, event_groups=handle.groups), self.fiber)

    def time(self) -> float:
        """Return the workflow's time in seconds: the timestamp of the current workflow task."""
        return self.run.facts.timestamp_ns / 1e9

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this run."""
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **kwargs: Any
    ) -> asyncio.Task[Any]:
        """Run a coroutine concurrently with the other tasks. The coroutine starts one turn later."""
        run = self.run
        if run.latched:
            coro.close()
            run.raise_unavailable(self.fiber, "starting a task")
        context = copy_context() if context is None else context
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        return self.register_task(task, context)

    def register_task(self, task: asyncio.Task[R], context: Context | None = None) -> asyncio.Task[R]:
        """Register a task until it is done. Dropping the run must be able to find the task, and asyncio only
        keeps a weak reference.
        """
        self._made += 1
        self.run.turning_points += 1
        self.tasks[task] = self._made, context
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)
        self.run.turning_points += 1
        if not task.cancelled() and task._log_traceback:
            self.run.note_failed(FailedTask(task))

    def until(self, target: Task[Any]) -> Generator[Any, None, None]:
        """Wait, in a coroutine, until a task of plain code is settled."""
        if target.state != PENDING:
            return
        waiter = _Waiter(target, self)
        target.add_callback(waiter.settle)
        try:
            yield from waiter
        finally:
            target.remove_callback(waiter.settle)

    def settle(self, future: asyncio.Future[Any], value: object = None) -> None:
        """Settle a future while the run is read-only, because a condition has become true."""
        previous, self._settling = self._settling, True
        try:
            future.set_result(value)
        finally:
            self._settling = previous

    def drop(self, on_step: Callable[[], object] | None) -> None:
        """Close every coroutine, in the loop's fiber. The run must be latched."""
        tasks, self.tasks = self.tasks, {}
        outer_loop = events._get_running_loop()
        for task, (_, context) in tasks.items():
            coroutine = task.get_coro()
            if not inspect.iscoroutine(coroutine):
                continue
            closed: list[bool] = []
            close = partial(_close, coroutine, closed)
            self.fiber.call(close if context is None else partial(context.run, close))
            if not closed:  # the coroutine may still be suspended, and then `_within` has not ended either
                events._set_running_loop(outer_loop)
                _abandoned_coroutines.append(coroutine)
            if on_step is not None:
                on_step()

    async def await_translated(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Await a coroutine. If it is cancelled, raise `Cancelled`."""
        try:
            return await coroutine
        except asyncio.CancelledError as error:
            raise Cancelled().with_traceback(error.__traceback__) from error.__cause__

    @staticmethod
    def frames_of(task: asyncio.Task[Any]) -> list[FrameType]:
        """Return the frames of a task, the innermost first."""
        return coroutine_frames(task.get_coro())

    def lines(self) -> list[TaskLine]:
        """Return the tasks that have not ended, oldest first, for display."""
        return [TaskLine(task, number) for task, (number, _) in self.tasks.items()]

    def get_debug(self) -> bool:
        """Return False, because asyncio's debug mode measures durations with real clocks."""
        return False

    def is_running(self) -> bool:
        """Return True, because code that can access this loop runs on it."""
        return True

    def is_closed(self) -> bool:
        """Return whether the run was dropped."""
        return self.run.dead

    def get_task_factory(self) -> None:
        """Return None, because tasks are always asyncio's own."""

    def get_exception_handler(self) -> Any:
        """Return the handler that `set_exception_handler` has set."""
        return self._exception_handler

    def set_exception_handler(self, handler: Any) -> None:
        """Set a function that is called with the exceptions of callbacks."""
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Report an exception of a callback in the run's log."""
        error = context.get("exception")
        description = f": {type(error).__name__}: {error}" if error is not None else ""
        self.run.notices += (f"{context.get('message', 'an error in a callback')}{description}",)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Handle an exception of a callback, or of a future that was never awaited.

        The latter is reported when the run closes (`LiveRun.unread_failures`), because the time of garbage
        collection must not matter.
        """
        if self.run.dead or "never retrieved" in str(context.get("message")):
            return
        if self._exception_handler is None:
            self.default_exception_handler(context)
        else:
            self._exception_handler(self, context)


def _close_abandoned_generator(owner: ReferenceType[EventLoop], generator: AsyncGenerator[Any, Any]) -> None:
    """Close an abandoned `async def` generator. During a turn of the generator's run, it is closed immediately,
    as Python does without an event loop.

    If its run is gone, or another run is active, it is never executed again (I5), because the time of garbage
    collection is random.
    """
    loop = owner()
    if loop is None or loop.run.dead or events._get_running_loop() is not loop:
        return
    closing = generator.aclose()
    try:
        closing.send(None)
    except (StopIteration, StopAsyncIteration):
        return
    closing.close()
    raise RuntimeError(
        "an async generator waited while it was garbage-collected: close it explicitly, with contextlib.aclosing"
    )


def _unsupported_method(name: str) -> Callable[..., NoReturn]:
    hint = _ALTERNATIVES.get(name, "it accesses resources outside the workflow. Use an activity instead")

    def reject(self: EventLoop, *args: Any, **kwargs: Any) -> NoReturn:
        raise DeterminismError(f"the event loop of a workflow does not support {name}: {hint}")

    reject.__name__ = name
    reject.__doc__ = "Raise `DeterminismError`, because a re-execution would see different results."
    return reject


_LIFE = "the loop runs as long as the workflow, and workflow code cannot start or stop it"
_ALTERNATIVES = {
    "run_in_executor": "threads (including asyncio.to_thread) are not recorded in the history. Use an activity instead",
    "call_soon_threadsafe": "other threads cannot access a workflow. Send a signal to the workflow instead",
    "set_default_executor": "workflow code cannot use threads. Use an activity instead",
    "set_task_factory": "tasks are always plain asyncio tasks, so that they behave the same on every worker",
    **dict.fromkeys(("run_forever", "run_until_complete", "stop", "close"), _LIFE),
    "add_signal_handler": "operating system signals are handled by the worker. Send a Temporal signal to the workflow instead",
    "remove_signal_handler": "operating system signals are handled by the worker",
}
_OURS = frozenset(vars(EventLoop))

thread_guard.install()

for _name in vars(asyncio.AbstractEventLoop):
    if not _name.startswith("_") and _name not in _OURS and not _name.startswith("shutdown_"):
        setattr(EventLoop, _name, _unsupported_method(_name))


class _Waiter(asyncio.Future[None]):
    """The future that a coroutine awaits in place of a task of plain code. Cancelling the future cancels the
    task.
    """

    def __init__(self, target: Task[Any], loop: EventLoop) -> None:
        super().__init__(loop=loop)
        self._target = target
        self._cancel_requested = False

    def cancel(self, msg: Any = None) -> bool:
        """Request the cancellation of the task. The wait continues until the task has ended."""
        if self.done():
            return False
        self._cancel_requested = True
        return self._target.cancel()

    def settle(self, _: object) -> None:
        """Settle the future when the task is settled."""
        if self._cancel_requested and was_cancelled(self._target):
            super().cancel()
        elif not self.done():
            self.set_result(None)


class Awaited(Future):
    """A future of ours that also settles an asyncio future, which a coroutine awaits."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: EventLoop) -> None:
        super().__init__(loop.run.scheduler)
        self.loop = loop
        self.future = loop.create_future()
        self.future.add_done_callback(self._ended)

    def _ended(self, _: object) -> None:
        if self.state == PENDING:  # the waiting coroutine has stopped waiting
            super()._settle(RESOLVED, None)

    def resolve(self, value: Any = None) -> None:
        """Settle this future and the asyncio future with a value."""
        if not self.future.done():
            super()._settle(RESOLVED, value)
            self.loop.settle(self.future, value)

    def fail(self, error: BaseException) -> None:
        """Settle this future, and fail the asyncio future with an error."""
        if not self.future.done():
            super()._settle(RESOLVED, None)
            self.future.set_exception(error)


class CoroutineTask(Task[R]):
    """A task for a coroutine that plain code runs, created by `workflow.run_async`."""

    __slots__ = ("label", "task")

    def __init__(self, loop: EventLoop, coroutine: Coroutine[Any, Any, R]) -> None:
        super().__init__(loop.run.scheduler)
        self.looked_at = False
        self.label = getattr(coroutine, "__qualname__", type(coroutine).__name__)
        self.task = loop.create_task(coroutine)
        self.task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[R]) -> None:
        if task.cancelled():
            super().cancel()
        elif (error := task.exception()) is not None:
            self.fail(error)
        else:
            self.resolve(task.result())

    def cancel(self, source: object = None) -> bool:
        """Request the cancellation of the coroutine: `asyncio.CancelledError` is raised at its current await."""
        return self.task.cancel()


class FailedTask:
    """A failed asyncio task, until the workflow reads its result."""

    __slots__ = ("label", "task", "value")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.value = task._exception
        self.label = _label(task)

    @property
    def looked_at(self) -> bool:
        """Whether the workflow has read the task's result."""
        return not self.task._log_traceback


class TaskLine:
    """An asyncio task as a line of execution, for display."""

    __slots__ = ("_task", "label", "path")

    waiting_on: Future | None = None

    def __init__(self, task: asyncio.Task[Any], number: int) -> None:
        self._task = task
        self.path: tuple[PathStep, ...] = ("async", number)
        self.label = _label(task)

    def frames(self) -> list[FrameType]:
        """Return the frames of the coroutine and of those that it awaits, the innermost first."""
        return coroutine_frames(self._task.get_coro())


def coroutine_frames(coroutine: object) -> list[FrameType]:
    """Return the frames of a suspended coroutine and of those that it awaits, the innermost first."""
    frames: list[FrameType] = []
    while coroutine is not None and len(frames) < _MAX_UNWINDS:
        frame = _part(coroutine, "frame")
        if frame is None:
            break
        frames.insert(0, frame)
        coroutine = _generator_of(_part(coroutine, "await") or getattr(coroutine, "gi_yieldfrom", None))
    return frames


def _part(coroutine: object, name: str) -> Any:
    """Return the frame or the awaited object of a coroutine, a generator or an asynchronous generator."""
    return next(
        filter(None, (getattr(coroutine, f"{kind}_{name}", None) for kind in ("cr", "gi", "ag"))), None
    )


def _generator_of(awaited: Any) -> Any:
    """Return the asynchronous generator whose next item is awaited. Return any other object unchanged. The
    awaitable of a next item is a C object, from which only the garbage collector can reach the generator.
    """
    while type(awaited).__name__ in ("async_generator_asend", "async_generator_athrow", "anext_awaitable"):
        awaited = next(iter(gc.get_referents(awaited)), None)
    return awaited


def _label(task: asyncio.Task[Any]) -> str:
    """Return the name of a task, as set by the author or by Hourglass, or else the name of the task's
    coroutine.
    """
    name = task.get_name()
    code: CodeType | None = getattr(task.get_coro(), "cr_code", None)
    return code.co_qualname if code is not None and name.startswith("Task-") else name


def _close(coroutine: Any, closed: list[bool]) -> None:
    """Close a coroutine and everything that it awaits, beginning with the innermost awaitable. An awaitable
    left open inside a closed coroutine could be garbage-collected at any time, and would then resume in another
    context.
    """
    depth = sum(1 for _ in _awaits(coroutine))
    for _ in range(_MAX_UNWINDS + depth):
        *_, innermost = coroutine, *_awaits(coroutine)
        try:
            if inspect.iscoroutine(innermost):
                innermost.close()
            else:
                innermost.throw(GeneratorExit)  # `close()` would leave the asynchronous generator suspended
        except BaseException:
            pass  # it raised an exception while unwinding, or awaits something else
        if inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED:
            closed.append(True)
            return


def _awaits(coroutine: Any) -> Iterator[Any]:
    """Yield the chain of awaitables of a suspended coroutine, the outermost first: coroutines, and for an
    asynchronous generator the awaitable of its next item.
    """
    awaited = coroutine.cr_await
    while awaited is not None:
        inner = _generator_of(awaited)
        if inspect.isasyncgen(inner):
            if inner.ag_frame is None:
                return
            yield awaited
            awaited = inner.ag_await
        elif inspect.iscoroutine(inner) and inspect.getcoroutinestate(inner) != inspect.CORO_CLOSED:
            yield inner
            awaited = inner.cr_await
        else:
            return
