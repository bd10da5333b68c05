"""Fibers: lines of execution inside a run that can be suspended anywhere. The only module that knows greenlet.

A fiber waits by switching back to the *hub*, the greenlet that runs the scheduler. The stack of the fiber is
not unwound, so `finally`, `with` and `except` in user code behave as written. The current fiber is found
through the current greenlet and not through a context variable, because context variables are copied into other
threads. This module must prevent two errors:

- A dropped fiber must not issue commands (I5). While the fiber unwinds, every primitive raises `Dropped`. A
  fiber that keeps swallowing `Dropped` is left suspended forever.
- Finalisers of one run's garbage may be called while another run executes, and must not issue commands for that
  run. Therefore, no fiber is current while the garbage collector runs on this thread.
"""

from __future__ import annotations

import contextvars
import gc
import threading
from collections.abc import Callable, Generator
from functools import partial
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import greenlet
from greenlet._greenlet import enable_optional_cleanup

from hourglass._evaluator.scheduler import CANCELLED, FAILED, PENDING, RESOLVED, Future, Gathered
from hourglass._evaluator.state import PathStep
from hourglass.errors import (
    ActivityError,
    Cancelled,
    CancelledError,
    ChildWorkflowError,
    NexusOperationError,
    NotInWorkflowError,
    ReadOnlyError,
    TaskCancelledError,
    UsageError,
)

if TYPE_CHECKING:
    from hourglass._evaluator.context import LiveRun

# When a thread ends, greenlet assumes a leak if `gc.get_referrers` finds no owner of the thread's main
# greenlet, and drops a reference to it. But `gc.get_referrers` misses objects that the collector is working on,
# e.g. the frames of a traceback with a hub among their variables. The greenlet was then freed while the frames
# still used it, and the process crashed.
enable_optional_cleanup(False)

T = TypeVar("T", covariant=True)

_MAX_PATH_LENGTH = 32  # the maximum number of steps in a path
_MAX_UNWINDS = 1000  # how often a dropped fiber may swallow `Dropped` before it is left suspended forever


class Dropped(BaseException):
    """Raised in a fiber that is being dropped, to unwind it. Do not catch it."""


class _Fiber(greenlet.greenlet):
    __slots__ = ("is_bridge", "owner")
    owner: FiberTask[Any]
    is_bridge: bool  # set only on bridges


class Task(Future, Generic[T]):
    """Work in progress inside a workflow: a spawned function, an activity, or a child workflow."""

    __slots__ = ("looked_at",)

    def result(self) -> T:
        """Wait for the task and return its result, or raise its error."""
        self.looked_at = True
        value: T = wait_for(self)
        return value

    def done(self) -> bool:
        """Return whether the task has ended: with a result, by an exception, or cancelled."""
        return self.state != PENDING

    def cancelled(self) -> bool:
        """Return whether the task was cancelled."""
        return was_cancelled(self)

    def exception(self) -> BaseException | None:
        """Wait for the task and return its exception, or None if the task succeeded."""
        self.looked_at = True
        try:
            wait_for(self)
        except Exception as error:
            if self.state == PENDING:
                raise
            return error
        return None

    def __await__(self) -> Generator[Any, None, T]:
        """Await the task in `async def` code: `await task` instead of `task.result()`."""
        self.looked_at = True
        fiber = require_fiber("waiting")
        yield from fiber.run.loop.until(self)
        if self.state == RESOLVED:
            value: T = self.outcome()
            return value
        raise error_of(self)

    def outcome(self) -> Any:
        """Return the value of a resolved task. Subclasses that store the value encoded return a newly decoded
        object each time.
        """
        return self.value

    def build_error(self) -> BaseException:
        """Return the error of a failed task, ready to be raised."""
        error: BaseException = self.value
        return error


class FiberTask(Task[T]):
    """A task that runs a function of the author in its own fiber."""

    __slots__ = (
        "cancel_count",
        "cancel_source",
        "cancelling",
        "child_count",
        "deferred",
        "depth",
        "fiber",
        "function",
        "label",
        "must_cancel",
        "outermost",
        "path",
        "raised_at",
        "rejections",
        "requests",
        "run",
        "scope",
        "shield_depth",
        "spawned_at",
        "waiting_on",
    )

    def __init__(
        self, run: LiveRun, path: tuple[PathStep, ...], label: str, function: Callable[..., T], *args: Any
    ) -> None:
        super().__init__(run.scheduler)
        self.run = run
        self.path = path
        self.label = label
        self.looked_at = False
        self.requests = 0
        self.child_count = 0
        self.waiting_on: Future | None = None
        self.must_cancel = False
        self.cancelling = False
        self.cancel_source: object = None
        self.depth = 0
        self.shield_depth = 0
        self.cancel_count = 0
        self.deferred = False
        self.rejections = 0
        self.raised_at: TracebackType | None = None
        self.scope: Any = None
        # Set if the run records its call sites: the line that spawned the fiber, and the outermost frame of
        # the author.
        self.spawned_at: tuple[str, int] = ("", 0)
        self.outermost: FrameType | None = None
        self.function: tuple[Callable[..., T], tuple[Any, ...]] | None = (function, args)
        self.fiber: _Fiber | None = None
        run.add_fiber(self)

    def start_soon(self) -> None:
        """Schedule the start of the fiber for the next free turn."""
        self.scheduler.ready.append((self._step, None))

    def next_child_path(self) -> tuple[PathStep, ...]:
        """Return the path of the next fiber that this one spawns."""
        self.child_count += 1
        if len(self.path) < _MAX_PATH_LENGTH:
            return (*self.path, self.child_count)
        # A chain in which each fiber spawns the next may be endless, so paths must stop growing at some length.
        return (*self.path[:2], "deep", self.run.fibers_made)

    def _body(self, error: BaseException | None) -> tuple[int, Any]:
        assert self.function is not None
        function, args = self.function
        self.function = None
        if error is not None:  # cancelled before it started: it never runs
            return CANCELLED, None
        try:
            return RESOLVED, function(*args) if args else function()
        except Cancelled:
            return CANCELLED, None
        except (Dropped, greenlet.GreenletExit):
            return PENDING, None
        except BaseException as raised:
            return FAILED, raised

    def _step(self, _: Any) -> None:
        if self.state != PENDING:
            return
        error: BaseException | None = None
        if self.must_cancel:
            self.must_cancel = False
            self.cancelling = True
            error = Cancelled()
        self.waiting_on = None
        fiber = self.fiber
        hub = greenlet.getcurrent()
        if fiber is None:
            self.run.turning_points += 1
            fiber = self.fiber = _Fiber(self._body)
            fiber.owner = self
            # Like an asyncio task, each fiber has its own context, so other fibers do not see its changes.
            fiber.gr_context = contextvars.copy_context()
        # A fiber waits by switching to its parent, which must be the greenlet that runs it now.
        if fiber.parent is not hub:
            fiber.parent = hub
        awaited = fiber.switch(error) if not watchers else watched(fiber.switch, error)
        if fiber.dead:
            self._ended(*awaited)
        elif awaited is None:  # the fiber yields for one turn
            self.scheduler.ready.append((self._step, None))
        else:
            self.waiting_on = awaited
            awaited.add_callback(self._step)
            # As in asyncio, a cancellation requested while the fiber ran is delivered at its first wait that
            # can be cancelled.
            if self.must_cancel and awaited.cancel():
                self.must_cancel = False
                self.cancelling = True

    def run_at_once(self) -> None:
        """Run the fiber to its end in this turn. Used for code that must not wait (constructors, queries)."""
        self._step(None)
        if self.state == PENDING and not self.run.dead:
            waited, self.waiting_on = self.waiting_on, None
            if waited is not None:
                waited.remove_callback(self._step)
            self.unwind()
            raise UsageError(f"{self.label} must not wait")

    def _ended(self, state: int, value: Any) -> None:
        self.run.remove_fiber(self)
        self.run.turning_points += 1
        self.fiber = None
        if state == FAILED:
            self.raised_at = value.__traceback__
            self.run.note_failed(self)
            self.fail(value)
        elif state == CANCELLED or (state == RESOLVED and self.must_cancel):
            # As in asyncio, a fiber that is cancelled during its last turn counts as cancelled, although its
            # function returned.
            super().cancel()
        elif state == RESOLVED:
            self.resolve(value)

    def cancel(self, source: object = None) -> bool:
        """Request the cancellation of this fiber: `Cancelled` is raised at its current or next wait. Each
        request is delivered once.
        """
        if self.state != PENDING:
            return False
        if self.run.latched:
            self.run.raise_unavailable(self, "cancelling a task")
        self.cancel_count += 1
        if self.shield_depth and (source is None or depth_of(source) < self.shield_depth):
            self._set_cancel_source(source, fresh=not self.deferred)
            self.deferred = True
            return True
        self._set_cancel_source(source, fresh=not (self.cancelling or self.must_cancel))
        if self.waiting_on is not None and self.waiting_on.cancel():
            self.cancelling = True
        else:
            self.must_cancel = True
        return True

    def withdraw_request(self) -> None:
        """Withdraw one cancellation request, like asyncio's `Task.uncancel`. In runs of temporalio, a timeout
        recognises its own cancellation by the number of requests.
        """
        self.cancel_count = max(0, self.cancel_count - 1)

    def _set_cancel_source(self, source: object, *, fresh: bool) -> None:
        # A block swallows only its own cancellation. Of several pending requests, the one from the outermost
        # block is stored, because it also ends the inner blocks.
        if fresh or depth_of(source) < depth_of(self.cancel_source):
            self.cancel_source = source

    def raise_if_cancelled(self, future: Future) -> None:
        """Raise the cancellation if a wait ended without a value because this fiber was cancelled."""
        if self.cancelling:
            self.cancelling = False
            if was_cancelled(future):
                error = Cancelled()
                error.source = self.cancel_source  # type: ignore[attr-defined]
                raise error from (future.value if future.state == FAILED else None)

    def unwind(self) -> None:
        """Unwind the fiber. Must be called on the fiber's own thread, while the run is latched. A fiber that
        keeps catching the exception stays suspended forever.
        """
        self.run.remove_fiber(self)
        fiber = self.fiber
        if fiber is None or fiber.dead:
            self.function = None
            return
        fiber.parent = greenlet.getcurrent()
        attempts = 0
        while bool(fiber) and attempts < _MAX_UNWINDS:  # a greenlet is true while it is alive
            attempts += 1
            try:
                fiber.throw(greenlet.GreenletExit)
            except BaseException:
                pass
        if not fiber:
            self.fiber = self.waiting_on = None  # both refer back to this object, see `LiveRun.drop`

    def build_error(self) -> BaseException:
        """Return the exception that the function raised. Its original traceback is restored, because it would
        otherwise grow with each raise.
        """
        error: BaseException = self.value
        return error.with_traceback(self.raised_at)

    def frames(self) -> list[FrameType]:
        """Return the frames of the suspended fiber, the innermost first."""
        frame = self.fiber.gr_frame if self.fiber is not None and not self.fiber.dead else None
        frames: list[FrameType] = []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        return frames


class LoopFiber(FiberTask[None]):
    """The fiber of a run's event loop. It executes the callbacks of asyncio one after the other and never
    waits.

    Coroutines can be suspended without a greenlet, so one greenlet serves all coroutines of a run. All their
    commands have the path ("async",). The path need not distinguish the tasks that issue commands, because the
    order of these commands is deterministic.
    """

    __slots__ = ("greenlet", "within")

    def __init__(self, run: LiveRun, within: Callable[[Callable[[], Any]], Any]) -> None:
        super().__init__(run, ("async",), "event loop", _nothing)
        self.function = None
        self.within = within
        self.greenlet: _Fiber | None = None

    def call(self, function: Callable[[], object]) -> Any:
        """Call a function immediately in this fiber. Return its result or raise its exception."""
        fiber = self.greenlet
        hub = greenlet.getcurrent()
        if fiber is None or fiber.dead:
            fiber = self.greenlet = _Fiber(self._serve)
            fiber.owner = self
            fiber.gr_context = contextvars.copy_context()
        if fiber.parent is not hub:
            fiber.parent = hub
        answer = fiber.switch(function) if not watchers else watched(fiber.switch, function)
        if answer is None:  # the fiber was left suspended forever: see `leave_suspended`
            _abandoned.append(fiber)
            self.greenlet = None
            return None
        value, error = answer
        if error is not None:
            raise error
        return value

    def _serve(self, function: Callable[[], object]) -> NoReturn:
        while True:
            answer: tuple[Any, BaseException | None]
            try:
                answer = self.within(function), None
            except BaseException as error:
                answer = None, error
            del function
            parent = greenlet.getcurrent().parent
            assert parent is not None
            function = parent.switch(answer)
            del answer

    def unwind(self) -> None:
        """End the greenlet. The loop has already unwound its coroutines in this fiber."""
        self.run.remove_fiber(self)
        self.within = lambda function: function()  # removes the reference to the loop: see `LiveRun.drop`
        fiber, self.greenlet = self.greenlet, None
        if fiber is not None and not fiber.dead:
            fiber.parent = greenlet.getcurrent()
            fiber.throw(greenlet.GreenletExit)

    def frames(self) -> list[FrameType]:
        """Return no frames, because the fiber has none between two callbacks."""
        return []


_abandoned: list[_Fiber] = []  # never freed, because freeing a greenlet would resume it


def _nothing() -> None:
    """Do nothing. A placeholder, because a `LoopFiber` has no function of its own."""


class Bridge:
    """A plain function that is called from a coroutine and may itself wait for coroutines. Interceptors need
    this: they are plain functions that are called between a coroutine and the coroutine of the author.

    The coroutine awaits `drive`, and the plain function calls `bridged_wait`. Neither takes an additional turn,
    because `drive` awaits the awaitables that the function waits for.
    """

    __slots__ = ("_fiber",)

    def __init__(self, owner: FiberTask[Any], function: Callable[[], Any]) -> None:
        fiber = self._fiber = _Fiber(function)
        fiber.owner = owner
        fiber.is_bridge = True
        fiber.gr_context = greenlet.getcurrent().gr_context

    async def drive(self) -> Any:
        """Call the function, and await each awaitable that it waits for. Return the function's result or raise
        its exception.
        """
        fiber = self._fiber
        awaited = self._resume(fiber.switch)
        while not fiber.dead:
            try:
                value = await awaited
            except BaseException as error:
                awaited = self._resume(fiber.throw, error)
            else:
                awaited = self._resume(fiber.switch, value)
        return awaited

    def _resume(self, resume: Callable[..., Any], *args: Any) -> Any:
        self._fiber.parent = greenlet.getcurrent()
        return resume(*args)


def bridged_wait(awaitable: Any) -> Any:
    """Wait for a coroutine in a plain function that a `Bridge` calls. Return the coroutine's result or raise
    its exception.
    """
    parent = greenlet.getcurrent().parent
    assert parent is not None
    return parent.switch(awaitable)


def on_bridge() -> bool:
    """Return whether the caller is a plain function that a `Bridge` calls."""
    return getattr(greenlet.getcurrent(), "is_bridge", False)


def depth_of(source: object) -> int:
    """Return the nesting depth of the block that requested a cancellation. Return 0 for a request from outside
    of all blocks.
    """
    depth: int = getattr(source, "depth", 0)
    return depth


def was_cancelled(future: Future) -> bool:
    """Return whether a future was cancelled, or failed because its remote work was cancelled."""
    return future.state == CANCELLED or (future.state == FAILED and is_cancellation(future.value))


def is_cancellation(error: BaseException | None) -> bool:
    """Return whether an error reports that remote work, or another task, was cancelled."""
    if isinstance(error, (ActivityError, ChildWorkflowError, NexusOperationError)):
        error = error.__cause__
    return isinstance(error, (CancelledError, TaskCancelledError, Cancelled))


class _Readers(threading.local):
    run: LiveRun | None = None  # the run that evaluates a condition on this thread, outside of fibers


readers = _Readers()

watchers: dict[int, Callable[[Callable[..., Any], Any], Any]] = {}
"""For each traced thread, the function that calls the author's code and traces its calls. Empty in production."""


def watched(function: Callable[..., Any], argument: Any) -> Any:
    """Call the author's code, through this thread's entry in `watchers` if there is one."""
    around = watchers.get(threading.get_ident())
    return function(argument) if around is None else around(function, argument)


# The callbacks `(phase, info)` for the start and stop of a garbage collection must be C functions. Signal
# handlers may run at the start of a Python function, and an exception that such a handler raises (Ctrl-C) would
# be lost, because the collector has no caller to propagate it to. the letters of the latest phase: a collection
# is running while the set contains the "r" of "start"
_phase: set[str] = set()
_last_info: dict[str, object] = {}  # by phase
_own_info = threading.local()  # the info of collections on this thread
gc.callbacks += [
    partial(_phase.intersection_update, ()),
    _phase.update,
    _last_info.__setitem__,
    _own_info.__setattr__,
]


def _collects_here() -> bool:
    """Return whether the current garbage collection runs on this thread."""
    return getattr(_own_info, "start", None) is _last_info["start"]


def current_fiber() -> FiberTask[Any] | None:
    """Return the fiber that runs on this thread. Return None outside of workflow code and in finalisers called
    by the garbage collector.
    """
    fiber = greenlet.getcurrent()
    if type(fiber) is not _Fiber:
        return None
    if "r" in _phase and _collects_here():
        return None
    return fiber.owner


def require_fiber(what: str, name: str = "") -> FiberTask[Any]:
    """Return the current fiber, which may issue commands. Raise an exception outside of a workflow, and if the
    run is dropped or read-only.

    `name` is separate from `what`, so that the two are only joined if the call is rejected. Each durable call
    gets here twice.
    """
    # The code of `current_fiber` is repeated here, because every durable call gets here, and tests trace every
    # function call.
    current = greenlet.getcurrent()
    fiber = None
    if type(current) is _Fiber and not ("r" in _phase and _collects_here()):
        fiber = current.owner
    if fiber is None or fiber.run.latched:
        _raise_unavailable(fiber, f"{what} {name}" if name else what)
    return fiber


def _raise_unavailable(fiber: FiberTask[Any] | None, what: str) -> NoReturn:
    if fiber is not None:
        fiber.run.raise_unavailable(fiber, what)
    if readers.run is not None:
        raise read_only_error(what, readers.run.read_only)
    raise NotInWorkflowError(f"{what} works only inside a running workflow")


def read_only_error(what: str, where: str) -> ReadOnlyError:
    """Return the error for an operation that is not allowed in read-only code: a query, a validator or a
    condition.
    """
    return ReadOnlyError(f"{what} is not allowed in {where}, which must be read-only")


def leave_suspended() -> None:
    """Suspend forever a dropped fiber that keeps swallowing `Dropped`."""
    while True:
        try:
            parent = greenlet.getcurrent().parent
            assert parent is not None
            parent.switch(None)
        except BaseException:
            pass


def suspend(fiber: FiberTask[Any], future: Future | None) -> None:
    """Suspend the fiber until a future is settled, or for one turn if the future is None."""
    if fiber.fiber is None:
        raise UsageError(
            "this call waits, which would block the event loop of `async def` code. Use the awaitable form (`await "
            "workflow.sleep(…)` or `await workflow.execute_activity(fn, …)` with `from hourglass.aio import workflow`), "
            "or run the call in its own fiber: `await workflow.spawn(fn, …)`. Plain `def` workflows need no await"
        )
    parent = fiber.fiber.parent
    assert parent is not None
    error: BaseException | None = parent.switch(future)
    if fiber.run.dead:
        raise Dropped
    if error is not None:
        fiber.cancelling = False
        error.source = fiber.cancel_source  # type: ignore[attr-defined]
        raise error


def wait_for(future: Future) -> Any:
    """Wait in the current fiber until a future is settled. Return its value or raise its error."""
    fiber = require_fiber("waiting")
    if future.state == PENDING:
        if future is fiber:
            raise UsageError("a task cannot wait for itself")
        suspend(fiber, future)
    if future.state == RESOLVED:
        fiber.cancelling = False
        return future.outcome() if isinstance(future, Task) else future.value
    fiber.raise_if_cancelled(future)
    raise error_of(future)


def error_of(future: Future) -> BaseException:
    """Return the error of a future that failed or was cancelled, ready to be raised."""
    if future.state == CANCELLED:
        return TaskCancelledError("the awaited task was cancelled")
    if isinstance(future, Gathered):
        return error_of(future.failed_child) if future.failed_child is not None else future.value
    return future.build_error() if isinstance(future, Task) else future.value
