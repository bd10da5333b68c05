"""Functions that wait, and that run work concurrently. Turns have the same order as in asyncio under Temporal's Python SDK
(I1).
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, overload

from hourglass._evaluator import operations
from hourglass._evaluator.call_sites import call_site
from hourglass._evaluator.context import current_run
from hourglass._evaluator.event_groups import EventGroup, block_of, check_groups, with_current_groups
from hourglass._evaluator.fibers import FiberTask, LoopFiber, Task, error_of, require_fiber, was_cancelled
from hourglass._evaluator.fibers import wait_for as wait_until
from hourglass._evaluator.interception import SleepInput
from hourglass._evaluator.operations import Timer
from hourglass._evaluator.options import Duration, optional_seconds, seconds
from hourglass._evaluator.scheduler import CANCELLED, FAILED, PENDING, RESOLVED, Future, Gathered
from hourglass.errors import Cancelled, UsageError
from hourglass.workflow._cancellation import Timeout

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")
T4 = TypeVar("T4")

ReturnWhen = Literal["ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"]


def sleep(
    duration: Duration, /, *, summary: str = "", event_groups: Sequence[EventGroup] | None = None
) -> None:
    """Wait for a duration, from seconds to months. `sleep(0)` only yields to the other tasks of this workflow."""
    if event_groups is not None:
        with block_of(check_groups(event_groups)):
            sleep(duration, summary=summary)
        return
    length = seconds(duration, "the duration of a sleep")
    run = current_run()
    if run is not None and run.outbound is not None:
        proceed: Callable[[SleepInput], None] = lambda call: operations.sleep(call.duration, call.summary)  # noqa: E731
        run.outbound.sleep(SleepInput(duration=length, summary=summary, _proceed=proceed))
    else:
        operations.sleep(length, summary)


@overload
def spawn(fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> Task[R]: ...
@overload
def spawn(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Task[R]: ...
def spawn(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Task[Any]:
    """Run a function of the workflow, plain or `async def`, concurrently with the caller. `result()` of the returned task
    waits for it.
    """
    fiber = require_fiber("workflow.spawn")
    if not callable(fn):
        raise UsageError(f"workflow.spawn takes a function, not {type(fn).__name__}")
    label = getattr(fn, "__name__", type(fn).__name__)
    call: Callable[[], Any] = lambda: _awaited(fn(*args, **kwargs))  # noqa: E731
    if fiber.run.grouped:
        call = with_current_groups(call)
    task: FiberTask[Any] = FiberTask(fiber.run, fiber.next_child_path(), label, call)
    task.scope = fiber.scope
    if fiber.scope is not None:
        fiber.scope.add(task)
    if fiber.run.sites is not None:
        task.spawned_at = call_site()
    task.start_soon()
    return task


def _awaited(value: Any) -> Any:
    return run_async(value) if inspect.iscoroutine(value) else value


def run_async(coroutine: Coroutine[Any, Any, R], /) -> R:
    """Run a coroutine on the run's event loop and wait for its result:
    `workflow.run_async(fetch_all(orders))`.

    In the coroutine, asyncio works as in an `async def` workflow: `asyncio.sleep` is a durable timer, and activities are
    awaited. Cancelling the caller cancels the coroutine.
    """
    if not inspect.iscoroutine(coroutine):
        raise UsageError(
            f"workflow.run_async takes a coroutine, such as `fetch(order)` of an `async def fetch`, not "
            f"{type(coroutine).__name__}"
        )
    try:
        fiber = require_fiber("workflow.run_async")
        if isinstance(fiber, LoopFiber):
            raise UsageError(
                "workflow.run_async must not be called in `async def` code, because it waits: await the coroutine"
            )
    except BaseException:
        coroutine.close()
        raise
    from hourglass._evaluator.event_loop import CoroutineTask  # import asyncio only if it is needed

    task: CoroutineTask[R] = CoroutineTask(fiber.run.loop, coroutine)
    task.looked_at = True
    if fiber.scope is not None:
        fiber.scope.add(task)
    result: R = wait_until(task)
    return result


@overload
def gather(  # pyright: ignore[reportOverlappingOverload] - two tasks make a pair, as in asyncio's stubs
    a: Task[T1], b: Task[T2], /, *, return_exceptions: Literal[False] = False
) -> tuple[T1, T2]: ...
@overload
def gather(
    a: Task[T1], b: Task[T2], c: Task[T3], /, *, return_exceptions: Literal[False] = False
) -> tuple[T1, T2, T3]: ...
@overload
def gather(
    a: Task[T1], b: Task[T2], c: Task[T3], d: Task[T4], /, *, return_exceptions: Literal[False] = False
) -> tuple[T1, T2, T3, T4]: ...
@overload
def gather(*tasks: Task[T], return_exceptions: Literal[False] = False) -> list[T]: ...
@overload
def gather(*tasks: Task[T], return_exceptions: Literal[True]) -> list[T | BaseException]: ...
def gather(*tasks: Task[Any], return_exceptions: bool = False) -> Any:
    """Wait for all tasks and return their results in order. Raise the exception of the first task that fails.

    If a task fails, the other tasks keep running. With `return_exceptions`, exceptions are returned like results.
    """
    fiber = require_fiber("workflow.gather")
    children = list(dict.fromkeys(_tasks(tasks, "workflow.gather")))
    if not children:
        return []
    for child in children:
        child.looked_at = True
    at_once = fiber.run.behaviour.gathering_done_takes_no_turn
    wait_until(
        Gathered(fiber.scheduler, list(children), return_exceptions=return_exceptions, at_once=at_once)
    )
    return [_value(task, return_exceptions) for task in tasks]


def _value(task: Task[Any], return_exceptions: bool) -> Any:
    if task.state == RESOLVED or not return_exceptions:
        return task.outcome()
    return error_of(task)


def _tasks(candidates: Iterable[Any], where: str) -> list[Task[Any]]:
    if callable(candidates) and not isinstance(candidates, Iterable):
        raise UsageError(f"{where} takes tasks, not a function; for a condition: workflow.wait_condition(fn)")
    if isinstance(candidates, Task):
        raise UsageError(f"{where} takes several tasks, as a list; for the result of one: task.result()")
    tasks = list(candidates)
    for candidate in tasks:
        if not isinstance(candidate, Task):
            raise UsageError(
                f"{where} takes tasks, not {type(candidate).__name__}: start one with activity.start(…) or workflow.spawn(fn, …)"
            )
    return tasks


def map(fn: Callable[[T], R], items: Iterable[T], /, *, limit: int | None = None) -> list[R]:
    """Call an activity or a function for every item, at most `limit` at a time, and return the results in
    order.

    If a call fails, cancel the others and raise its exception.
    """
    require_fiber("workflow.map")
    if limit is not None and limit < 1:
        raise UsageError(f"limit must be at least 1, not {limit}")
    all_items = list(items)
    results: dict[int, R] = {}
    waiting = iter(enumerate(all_items))

    def work() -> None:
        for index, item in waiting:
            results[index] = fn(item)

    width = len(all_items) if limit is None else min(limit, len(all_items))
    workers = [spawn(work) for _ in range(width)]
    try:
        gather(*workers)
    except BaseException:
        for worker in workers:
            worker.cancel()
        raise
    return [results[index] for index in range(len(all_items))]


def wait(
    tasks: Iterable[Task[T]],
    timeout: Duration | None = None,
    return_when: ReturnWhen = "ALL_COMPLETED",
) -> tuple[list[Task[T]], list[Task[T]]]:
    """Wait until `return_when` applies to the tasks. Return the finished tasks and the others, both in the order of
    `tasks`."""
    fiber = require_fiber("workflow.wait")
    watched = _tasks(tasks, "workflow.wait")
    if not watched:
        raise UsageError("workflow.wait needs at least one task")
    if return_when not in ("ALL_COMPLETED", "FIRST_COMPLETED", "FIRST_EXCEPTION"):
        raise UsageError(
            f"return_when must be ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION, not {return_when!r}"
        )
    limit = optional_seconds(timeout, "the timeout of workflow.wait")
    waiter = Future(fiber.scheduler)
    timer = None if limit is None else Timer(fiber, limit, waiter.release)
    missing = len(watched)

    def on_done(task: Future) -> None:
        nonlocal missing
        missing -= 1
        failed = return_when == "FIRST_EXCEPTION" and task.state == FAILED
        if missing <= 0 or return_when == "FIRST_COMPLETED" or failed:
            if timer is not None:
                timer.cancel()
            waiter.release()

    for task in watched:
        task.add_callback(on_done)
    try:
        wait_until(waiter)
    finally:
        if timer is not None:
            timer.cancel()
        for task in watched:
            task.remove_callback(on_done)
    return [task for task in watched if task.done()], [task for task in watched if not task.done()]


def as_completed(tasks: Iterable[Task[T]]) -> Iterator[Task[T]]:
    """Iterate over tasks in the order in which they finish."""
    fiber = require_fiber("workflow.as_completed")
    watched = _tasks(tasks, "workflow.as_completed")
    ended: deque[Task[T]] = deque()
    waiters: deque[Future] = deque()

    def on_done(task: Any) -> None:
        ended.append(task)
        while waiters:
            waiter = waiters.popleft()
            if waiter.state == PENDING:
                waiter.resolve()
                break

    for task in watched:
        task.add_callback(on_done)

    def iterate() -> Iterator[Task[T]]:
        for _ in watched:
            while not ended:
                waiter = Future(fiber.scheduler)
                waiters.append(waiter)
                wait_until(waiter)
            yield ended.popleft()

    return iterate()


def wait_condition(
    holds: Callable[[], object],
    /,
    timeout: Duration | None = None,
    *,
    timeout_summary: str = "",
    event_groups: Sequence[EventGroup] | None = None,
) -> None:
    """Wait until a function returns a true value. Raise `TimeoutError` after `timeout`.

    The function is called repeatedly while the workflow runs: it must be fast and must not change anything.
    """
    if event_groups is not None:
        with block_of(check_groups(event_groups)):
            wait_condition(holds, timeout, timeout_summary=timeout_summary)
        return
    fiber = require_fiber("workflow.wait_condition")
    if not callable(holds):
        raise UsageError(
            f"workflow.wait_condition takes a function, such as `lambda: ready`, not {type(holds).__name__}"
        )
    limit = optional_seconds(timeout, "the timeout of workflow.wait_condition")
    live = fiber.run
    was_cancelled = live.cancel_reason is not None
    future = Future(fiber.scheduler)
    live.scheduler.conditions.append((holds, future))
    try:
        if limit is None:
            wait_until(future)
        else:
            wait_with_timeout(fiber, future, limit, timeout_summary)
    finally:
        if (
            live.behaviour.cancellation_beats_condition
            and not was_cancelled
            and live.cancel_reason is not None
            and not live.dead
        ):
            raise Cancelled


def wait_for(task: Task[T], timeout: Duration | None) -> T:
    """Return the result of a task. After `timeout`, cancel the task and raise `TimeoutError`."""
    fiber = require_fiber("workflow.wait_for")
    (watched,) = _tasks([task], "workflow.wait_for")
    watched.looked_at = True
    limit = optional_seconds(timeout, "the timeout of workflow.wait_for")
    result: T = wait_until(watched) if limit is None else wait_with_timeout(fiber, watched, limit)
    return result


def wait_with_timeout(fiber: FiberTask[Any], future: Future, limit: float, summary: str = "") -> Any:
    """Wait for a future for at most `limit` seconds, with the same turns as `asyncio.wait_for` in Python 3.11.

    In runs that temporalio began on a later Python version, take the turns of that version: a timeout around an ordinary
    wait.
    """
    if limit > 0 and fiber.run.behaviour.limited_waits_are_blocks:
        return _wait_within(future, Timeout(limit, summary))
    if limit <= 0:
        if future.state == PENDING:
            _cancel_and_wait(fiber, future)
        if future.state == CANCELLED:
            raise TimeoutError("the condition did not hold")
        return wait_until(future)
    waiter = Future(fiber.scheduler)
    timer = Timer(fiber, limit, waiter.release, summary)
    future.add_callback(waiter.release)
    try:
        try:
            wait_until(waiter)
        except Cancelled:
            if future.state != PENDING:
                # asyncio drops the cancellation here unless the awaited future itself was cancelled. In our own runs, it is
                # never lost.
                if fiber.run.behaviour.cancellation_beats_limited_wait or was_cancelled(future):
                    raise
                return wait_until(future)
            future.remove_callback(waiter.release)
            _cancel_and_wait(fiber, future)
            raise
        if future.state != PENDING:
            return wait_until(future)
        future.remove_callback(waiter.release)
        _cancel_and_wait(fiber, future)
        if future.state == CANCELLED:
            raise TimeoutError(f"the tasks did not complete within {limit:g} s")
        return wait_until(future)
    finally:
        timer.cancel()


def _wait_within(future: Future, limit: Timeout) -> Any:
    """Wait for a future like `asyncio.wait_for` from Python 3.12 on."""
    try:
        with limit:
            return wait_until(future)
    except TimeoutError as error:
        cause = error.__cause__
        if isinstance(cause, Cancelled) and cause.__cause__ is not None and future.state == FAILED:
            # Remote work that is cancelled because of the timeout fails; authors of temporalio see its error
            # instead of `TimeoutError`.
            raise error_of(future) from None
        raise


def _cancel_and_wait(fiber: FiberTask[Any], future: Future) -> None:
    waiter = Future(fiber.scheduler)
    future.add_callback(waiter.release)
    try:
        future.cancel()
        wait_until(waiter)
    finally:
        future.remove_callback(waiter.release)
