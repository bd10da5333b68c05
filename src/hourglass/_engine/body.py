"""The body of a run: how it begins, and what becomes of the run when it ends."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from hourglass._engine.commands import CancelRun, CompleteRun, FailRun
from hourglass._engine.context import LiveRun, raised_at, returned_at
from hourglass._engine.events import AnyEvent, RunStarted
from hourglass._engine.fibers import Dropped, FiberTask, current_fiber, error_of, is_cancellation, watched
from hourglass._engine.interception import chain
from hourglass._engine.messages import (
    ContinueAsNewRequest,
    HandlerFiber,
    executed,
    finished,
    is_failure,
    parked,
)
from hourglass._engine.scheduler import RESOLVED
from hourglass.errors import (
    Cancelled,
    CancelledError,
    InternalError,
    PayloadError,
    TaskCancelledError,
    UsageError,
)


def start(live: LiveRun, rest: list[AnyEvent]) -> None:
    """Begin a run: note its type and input, build its object, and make its body's fiber, which does not run yet."""
    started = next((event for event in rest if isinstance(event, RunStarted)), None)
    if started is None:
        raise InternalError("an activation came for a run that was never started")
    live.started = started
    live.begun_ns = live.facts.timestamp_ns
    state = live.state
    state.workflow_type = started.workflow_type
    if live.settings.interceptors:
        with live.looking("the start of an interceptor"):
            live.inbound, live.outbound = watched(chain, live.settings.interceptors)
    definition = live.definition
    try:
        arguments = definition.arguments(live.converter, started.arguments)
    except (PayloadError, UsageError) as error:
        if not is_failure(live, error):
            raise
        live.main = RefusedFiber(live, error)
        return
    if definition.is_class:
        obj = _build_object(live, arguments if definition.init_takes_arguments else [])
        live.handlers.bind_object(obj)
        # Decoded again: what the constructor did to its arguments must not reach the body (I6).
        arguments = [obj, *definition.arguments(live.converter, started.arguments)]

    live.main = MainTask(live, arguments) if definition.is_async else MainFiber(live, arguments)


class MainFiber(HandlerFiber):
    """The body of the workflow. A class of its own, because closures would cost each waiting run half a KiB."""

    __slots__ = ("arguments",)

    def __init__(self, live: LiveRun, arguments: list[Any]) -> None:
        super().__init__(live, (), "workflow", self._main)
        self.arguments = arguments

    def _main(self) -> None:
        run_top_level(self.run, self._complete)

    def _complete(self) -> None:
        live = self.run
        if live.inbound is None:
            value = _call(live.definition.run, self.arguments)
        else:
            value = executed(live, live.inbound, self.arguments)
        at = returned_at(self, live.definition.run) if live.sites is not None else None
        live.issue(CompleteRun(live.converter.encode(value)), self, at=at)


class MainTask:
    """The body of an asynchronous workflow: a task on the run's event loop, begun a turn after the run."""

    __slots__ = ("arguments", "run", "task")

    def __init__(self, live: LiveRun, arguments: list[Any]) -> None:
        self.run = live
        self.arguments = arguments
        self.task: Any = None

    def start_soon(self) -> None:
        """Begin at the next free turn."""
        loop = self.run.loop
        self.task = loop.create_task(await_top_level(self.run, self._complete()), name="workflow")

    async def _complete(self) -> None:
        live = self.run
        arguments, self.arguments = self.arguments, []
        definition = live.definition
        call = (
            functools.partial(_call, definition.run, arguments)
            if live.inbound is None
            else functools.partial(executed, live, live.inbound, arguments)
        )
        value, at = await finished(live, call)
        live.issue(CompleteRun(live.converter.encode(value)), live.loop.fiber, at=at)

    def cancel(self) -> bool:
        """Ask the body to stop: `asyncio.CancelledError` is raised where it waits."""
        return self.task is not None and bool(self.task.cancel())

    def frames(self) -> list[FrameType]:
        """Where it stands, the innermost frame first."""
        return [] if self.task is None else self.run.loop.frames_of(self.task)


class RefusedFiber(HandlerFiber):
    """In the place of a body whose arguments do not fit, where the workflow says that this fails the run."""

    __slots__ = ("error",)

    def __init__(self, live: LiveRun, error: Exception) -> None:
        super().__init__(live, (), "workflow", self._main)
        self.error = error

    def _main(self) -> None:
        run_top_level(self.run, self._refuse)

    def _refuse(self) -> None:
        raise self.error


def _call(body: Callable[..., Any], arguments: list[Any]) -> Any:
    """Call the body. Spelled out for the usual counts: a call by `*` takes C stack, which every waiting fiber keeps."""
    match arguments:
        case []:
            return body()
        case [a]:
            return body(a)
        case [a, b]:
            return body(a, b)
        case [a, b, c]:
            return body(a, b, c)
        case _:
            return body(*arguments)


def _build_object(live: LiveRun, arguments: list[Any]) -> Any:
    """Run the constructor: it may look at facts and register things, but not wait."""
    if live.definition.is_async:  # where asyncio's objects can be made
        return live.loop.fiber.call(functools.partial(live.definition.target, *arguments))
    fiber: FiberTask[Any] = FiberTask(
        live, ("init",), f"{live.definition.name}.__init__", live.definition.target, *arguments
    )
    fiber.run_at_once()
    if fiber.state != RESOLVED:
        raise error_of(fiber)
    return fiber.value


def run_top_level(live: LiveRun, call: Callable[[], None]) -> None:
    """Run the body or a signal's handler: what it lets out decides the run's fate."""
    try:
        call()
    except (Exception, Cancelled, ContinueAsNewRequest) as error:
        if live.dead:
            raise
        fiber = current_fiber()
        assert fiber is not None
        end_run(live, fiber, error)


async def await_top_level(live: LiveRun, coroutine: Coroutine[Any, Any, None]) -> None:
    """The same of a coroutine."""
    try:
        await live.loop.translated(coroutine)
    except (Exception, Cancelled, ContinueAsNewRequest) as error:
        if live.dead:
            raise
        end_run(live, live.loop.fiber, error)
    except (GeneratorExit, Dropped):
        raise
    except BaseException as error:
        live.error = parked("a coroutine", error)


def end_run(live: LiveRun, fiber: FiberTask[Any], error: BaseException) -> None:
    """What becomes of a run whose body, or whose signal's handler, let an error out."""
    at = raised_at(error) if live.sites is not None else None
    if isinstance(error, ContinueAsNewRequest):
        live.issue(error.command, fiber, at=at)
    elif live.cancel_reason is not None and is_cancellation(error):
        live.issue(CancelRun(), fiber, at=at)
    elif isinstance(error, Cancelled) or (
        isinstance(error, TaskCancelledError) and live.behaviour.other_tasks_cancellation_ends_run
    ):
        # To asyncio, and so in runs of temporalio's, another task's cancellation is like one's own.
        failed = CancelledError("the workflow was cancelled from within")
        live.issue(FailRun(live.converter.to_failure(failed)), fiber, at=at)
    elif is_failure(live, error):
        live.issue(FailRun(live.converter.to_failure(error)), fiber, at=at)
    else:
        live.error = error
