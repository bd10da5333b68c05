"""Coroutines in workflows: permitted calls, mixing with plain code, and the drop of a run."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import gc
import logging
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from multiprocessing.pool import ThreadPool
from typing import Any

import anyio.from_thread
import anyio.to_thread
import pytest
from starlette.concurrency import run_in_threadpool

from hourglass import workflow as plain
from hourglass._evaluator.commands import TaskFailed
from hourglass.activity import Activity
from hourglass.aio import activity, workflow
from hourglass.errors import (
    ActivityError,
    ApplicationError,
    DefinitionError,
    UsageError,
)
from hourglass.interceptors import ExecuteWorkflowInput, WorkflowInboundInterceptor

from .activities import charge
from .conftest import Drive
from .driver import cancel, run_settings, signal, update


@activity.defn
async def double(n: int) -> int:
    return 2 * n


# --- an asynchronous workflow -----------------------------------------------------------------------------------------


def test_async_workflow_awaits_timers_and_activities(begin_run: Drive) -> None:
    @plain.defn
    async def total(n: int) -> int:
        await asyncio.sleep(60)
        first, second = await asyncio.gather(
            workflow.execute_activity(double, n), workflow.execute_activity(double, n + 1)
        )
        return first + second

    d = begin_run(total, 3)
    assert d.timers == {1: 60.0}
    d.send(d.fired())
    d.send(d.done(2, 8))
    d.send(d.done(1, 6))
    assert d.result == 14


def test_awaiting_a_failed_activity_raises_activity_error(begin_run: Drive) -> None:
    @plain.defn
    async def fails() -> str:
        try:
            await workflow.execute_activity(double, 1)
        except ActivityError as error:
            return str(error.root_cause)
        return "no"

    d = begin_run(fails)
    d.send(d.failed("double", "no card"))
    assert d.result == "no card"


def test_cancelled_async_workflow_can_clean_up(begin_run: Drive) -> None:
    seen = []

    @plain.defn
    async def waits() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append(workflow.cancellation_reason())
            await workflow.execute_activity(double, 1)
            raise

    d = begin_run(waits)
    d.send(cancel("enough"))
    d.send(d.done("double", 2))
    assert d.was_cancelled
    assert "enough" in seen


def test_asyncio_task_has_its_own_copy_of_context_variables(begin_run: Drive) -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")

    async def child() -> str:
        before = who.get()
        who.set("child")
        return before

    @plain.defn
    async def parent() -> list[str]:
        who.set("parent")
        return [await asyncio.create_task(child()), who.get()]

    d = begin_run(parent)
    assert d.result == ["parent", "parent"]
    assert who.get() == "nobody"


# --- plain code and coroutines ----------------------------------------------------------------------------------------


def test_run_async_runs_a_coroutine_in_plain_code(begin_run: Drive) -> None:
    async def both(n: int) -> int:
        return sum(await asyncio.gather(double_of(n), double_of(n + 1)))

    async def double_of(n: int) -> int:
        return await workflow.execute_activity(double, n)

    @plain.defn
    def outer() -> list[int]:
        background = plain.spawn(lambda: charge("background", 1))
        total = plain.run_async(both(1))
        background.cancel()
        return [total, plain.spawn(double_of, 5).result()]

    d = begin_run(outer)
    assert sorted(d.activities) == ["charge", "double", "double"]
    d.send(d.done(2, 2), d.done(3, 4))
    d.send(d.done(4, 10))
    assert d.result == [6, 10]


def test_cancelled_plain_workflow_cancels_its_coroutine_first(begin_run: Drive) -> None:
    seen: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            seen.append("coroutine")
            raise

    @plain.defn
    def outer() -> None:
        try:
            plain.run_async(wait())
        except plain.Cancelled:
            seen.append("plain")
            raise

    d = begin_run(outer)
    d.send(cancel())
    assert d.was_cancelled
    assert seen[:2] == ["coroutine", "plain"]


def test_workflow_timeout_cancels_the_coroutine_of_run_async(begin_run: Drive) -> None:
    @plain.defn
    def outer() -> str:
        try:
            with plain.timeout(5):
                plain.run_async(asyncio.sleep(100))
        except TimeoutError:
            return "late"
        return "done"

    d = begin_run(outer)
    d.send(d.fired(1))
    assert d.result == "late"


def test_coroutine_awaits_and_cancels_tasks_of_plain_code(begin_run: Drive) -> None:
    def waits() -> str:
        plain.sleep(5)
        return "slept"

    @plain.defn
    async def outer() -> list[Any]:
        first = await charge.start("a", 1)
        second = await plain.spawn(waits)
        try:
            async with asyncio.timeout(1):
                await plain.spawn(waits)
        except TimeoutError:
            return [first, second, "late"]
        return [first, second, "done"]

    d = begin_run(outer)
    d.send(d.done("charge", "c-1"))
    d.send(d.fired())
    d.send(d.fired(2))
    assert d.result == ["c-1", "slept", "late"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: plain.sleep(1),
        lambda: charge("a", 1),
        lambda: plain.wait_condition(lambda: False),
        lambda: plain.run_async(asyncio.sleep(1)),
    ],
    ids=["sleep", "activity", "condition", "run_async"],
)
def test_blocking_workflow_calls_are_rejected_in_a_coroutine(
    drive: Drive, call: Callable[[], object]
) -> None:
    """They would block all coroutines of the run. The error names the `await` alternative."""

    @plain.defn
    async def outer() -> None:
        call()

    d = drive(outer)
    completion = d.offer(d.started)
    assert isinstance(completion, TaskFailed)
    assert "await" in completion.failure.message


def test_run_async_rejects_other_objects_and_calls_outside_workflows(drive: Drive) -> None:
    @plain.defn
    def outer() -> None:
        plain.run_async(3)  # type: ignore[arg-type]

    d = drive(outer)
    completion = d.offer(d.started)
    assert isinstance(completion, TaskFailed)
    assert "takes a coroutine" in completion.failure.message
    with pytest.raises(UsageError, match="inside a running workflow"):
        plain.run_async(asyncio.sleep(1))


# --- handlers ---------------------------------------------------------------------------------------------------------


@plain.defn
class Mixed:
    """A plain workflow with plain and `async def` handlers."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @plain.run
    def run(self) -> list[str]:
        plain.wait_condition(lambda: len(self.seen) == 3 and plain.all_handlers_finished())
        return self.seen

    @plain.signal
    async def awaited(self, name: str) -> None:
        self.seen.append(f"{name} {await workflow.execute_activity(double, 1)}")

    @plain.signal
    def waited(self, name: str) -> None:
        self.seen.append(f"{name} {charge(name, 1)}")

    @plain.update
    async def changed(self, name: str) -> str:
        info = plain.current_update_info()
        assert info is not None
        await asyncio.sleep(1)
        self.seen.append(name)
        return info.id

    @changed.validator
    def check(self, name: str) -> None:
        if not name:
            raise ValueError("no name")

    @plain.query
    async def count(self) -> int:
        return len(self.seen)

    @plain.query
    async def patient(self) -> int:
        await asyncio.sleep(0)
        return 1


def test_plain_workflow_runs_plain_and_async_handlers(begin_run: Drive) -> None:
    d = begin_run(Mixed)
    d.send(signal("awaited", "a"), signal("waited", "b"))
    d.send(update("changed", "", id="u-1"))
    d.send(update("changed", "c", id="u-2"))
    d.send(d.done("double", 2), d.done("charge", "paid"))
    assert d.query("count") == 2
    d.send(d.fired())
    assert sorted(d.result) == ["a 2", "b paid", "c"]


def test_async_query_that_waits_fails(begin_run: Drive) -> None:
    d = begin_run(Mixed)
    with pytest.raises(ApplicationError, match="must not wait"):
        d.query("patient")


def test_async_update_validator_is_rejected_at_definition() -> None:
    with pytest.raises(DefinitionError, match="with `def`"):

        class _Wrong:
            @plain.update
            async def change(self) -> None: ...

            @change.validator
            async def check(self) -> None: ...  # type: ignore[arg-type]


# --- forbidden calls --------------------------------------------------------------------------------------------------


OUTSIDE: dict[str, Callable[[], Any]] = {
    "run_in_executor": lambda: asyncio.to_thread(time.sleep, 1),
    "create_connection": lambda: asyncio.open_connection("localhost", 1),
    "create_server": lambda: asyncio.start_server(print, "localhost", 0),
    "subprocess_exec": lambda: asyncio.create_subprocess_exec("true"),
    "getaddrinfo": lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
    "sock_recv": lambda: asyncio.get_running_loop().sock_recv(None, 1),  # type: ignore[arg-type]
    "call_soon_threadsafe": lambda: asyncio.get_running_loop().call_soon_threadsafe(print),
    "add_reader": lambda: asyncio.get_running_loop().add_reader(0, print),
    "run_until_complete": lambda: asyncio.get_running_loop().run_until_complete(None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_event_loop_rejects_sockets_processes_and_threads(drive: Drive, name: str) -> None:
    @plain.defn
    async def outer() -> None:
        call = OUTSIDE[name]()
        if asyncio.iscoroutine(call):
            await call

    d = drive(outer)
    completion = d.offer(d.started)
    assert isinstance(completion, TaskFailed)
    assert f"does not support {name}" in completion.failure.message


def _ran(ran: list[str]) -> int:
    ran.append(threading.current_thread().name)
    return 1


def _start(thread: threading.Thread) -> None:
    thread.start()
    thread.join()


def _in_new_pool(work: Callable[[], int]) -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _in_portal(work: Callable[[], int]) -> int:
    with anyio.from_thread.start_blocking_portal() as portal:
        return portal.call(work)


async def _in_group(work: Callable[[], int]) -> None:
    await asyncio.gather(asyncio.sleep(0), anyio.to_thread.run_sync(work))


POOL = ThreadPoolExecutor(1)
THREADS: dict[str, Callable[[Callable[[], int]], Any]] = {
    "threading.Thread.start()": lambda work: _start(threading.Thread(target=work)),
    "threading.Timer": lambda work: _start(threading.Timer(0, work)),
    "_thread.start_new_thread()": lambda work: _thread.start_new_thread(work, ()),
    "concurrent.futures.thread.ThreadPoolExecutor.submit()": lambda work: POOL.submit(work).result(),
    "concurrent.futures.thread.ThreadPoolExecutor.submit() of a new pool": _in_new_pool,
    "concurrent.futures._base.Executor.map()": lambda work: list(POOL.map(lambda _: work(), [1])),
    "anyio.to_thread.run_sync()": anyio.to_thread.run_sync,
    "anyio.to_thread.run_sync() in a group": _in_group,
    "anyio.from_thread.start_blocking_portal()": _in_portal,
    "starlette.concurrency.run_in_threadpool()": run_in_threadpool,
    "multiprocessing.pool": lambda work: ThreadPool(1).apply(work),
}


@pytest.mark.parametrize("name", THREADS)
def test_coroutine_cannot_start_threads_or_use_executors(drive: Drive, name: str) -> None:
    ran: list[str] = []
    POOL.submit(int).result()  # its thread waits: `submit` starts none

    @plain.defn
    async def outer() -> None:
        call = THREADS[name](lambda: _ran(ran))
        if asyncio.iscoroutine(call):
            await call

    d = drive(outer)
    completion = d.offer(d.started)
    assert isinstance(completion, TaskFailed)
    assert "workflow code cannot use threads" in completion.failure.message
    if name != "threading.Timer":
        assert name.split(" ")[0] in completion.failure.message
    assert "Use an activity instead" in completion.failure.message
    assert not ran


def test_threads_are_allowed_in_unsafe_blocks_and_outside_coroutines(begin_run: Drive) -> None:
    """Allowed are `workflow.unsafe()`, plain workflows, log handlers, and code outside of workflows."""
    ran: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            _start(threading.Thread(target=_ran, args=(ran,)))

    logger = logging.getLogger("tests.threads")
    logger.addHandler(Handler())

    @plain.defn
    async def outer() -> None:
        with plain.unsafe():
            _start(threading.Thread(target=_ran, args=(ran,)))
        logger.warning("something")

    @plain.defn
    def plain_code() -> None:
        _start(threading.Thread(target=_ran, args=(ran,)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for workflow_code in (outer, plain_code):
            d = begin_run(workflow_code)
            assert d.result is None
    _start(threading.Thread(target=_ran, args=(ran,)))
    assert len(ran) >= 4


# --- errors -----------------------------------------------------------------------------------------------------------


def test_bug_in_a_coroutine_parks_the_run(begin_run: Drive) -> None:
    @plain.defn
    async def broken(kind: str) -> None:
        await asyncio.sleep(1)
        raise SystemExit(3) if kind == "exit" else KeyError("no such key")

    for kind, message in (("key", "no such key"), ("exit", "SystemExit")):
        d = begin_run(broken, kind)
        completion = d.offer(d.fired())
        assert isinstance(completion, TaskFailed)
        assert message in completion.failure.message


def test_unretrieved_exception_of_an_asyncio_task_is_logged_when_the_run_closes(begin_run: Drive) -> None:
    async def fails(name: str) -> None:
        raise ValueError(name)

    @plain.defn
    async def outer() -> None:
        unseen = asyncio.create_task(fails("unseen"))
        seen = asyncio.create_task(fails("seen"))
        await asyncio.wait([unseen, seen])
        seen.exception()

    d = begin_run(outer)
    assert [notice for notice in d.run.notices if "no code has retrieved" in notice and "unseen" in notice]
    assert not [notice for notice in d.run.notices if "ValueError: seen" in notice]


def test_never_awaited_coroutine_emits_runtime_warning(drive: Drive) -> None:
    @plain.defn
    async def forgets() -> str:
        workflow.execute_activity(double, 1)
        return "done"

    d = drive(forgets)
    with pytest.warns(RuntimeWarning, match="was never awaited"):
        d.begin()
    assert d.result == "done"


def test_exception_in_a_call_soon_callback_is_logged_and_the_run_continues(begin_run: Drive) -> None:
    def broken() -> None:
        raise ValueError("in a callback")

    @plain.defn
    async def outer() -> str:
        asyncio.get_running_loop().call_soon(broken)
        await asyncio.sleep(0)
        return "continued"

    d = begin_run(outer)
    assert d.result == "continued"
    assert "in a callback" in " ".join(d.run.notices)


# --- dropping ---------------------------------------------------------------------------------------------------------


def test_dropped_coroutine_issues_no_commands(begin_run: Drive) -> None:
    """`finally` runs, `except CancelledError` does not, and every workflow function raises."""
    seen: list[str] = []

    @plain.defn
    async def waits() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        finally:
            seen.append("finally")
            await workflow.execute_activity(double, 1)
            seen.append("issued a command")

    d = begin_run(waits)
    seen.clear()
    d.run.drop()
    assert seen == ["finally"]
    d.send(cancel())
    assert "cancelled" in seen


def test_dropped_async_generator_is_never_executed_again(begin_run: Drive) -> None:
    """A waiting generator is closed with its run, and garbage collection of the generator has no effect. A generator that is
    dropped while its run executes is closed immediately.
    """
    seen: list[str] = []

    async def waiting() -> int:
        try:
            await asyncio.sleep(100)
        finally:
            seen.append("waiting ends")
        return 1

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            yield 0
            yield await waiting()
        finally:
            seen.append(f"closed, {'alive' if asyncio.current_task() else 'dead'}")
            await asyncio.sleep(1)

    @plain.defn
    async def reads() -> None:
        async for _ in numbers():
            pass

    @plain.defn
    async def abandons_generator() -> None:
        async def once() -> AsyncGenerator[int, None]:
            try:
                yield 1
            finally:
                seen.append("abandoned")

        async for _ in once():
            break
        await asyncio.sleep(5)

    d = begin_run(reads)
    assert "waiting" in d.query("__stack_trace")
    seen.clear()
    d.run.drop()
    gc.collect()
    assert seen[:1] == ["waiting ends"]
    assert "closed, alive" not in seen
    seen.clear()
    other = begin_run(abandons_generator)
    assert set(seen) == {"abandoned"}
    assert other.timers == {1: 5.0}


def test_dropped_async_generator_resets_context_variables(
    begin_run: Drive,
) -> None:
    """The generator is unwound with the run, not by the garbage collector, where `ContextVar.reset` would raise."""
    variable: ContextVar[int] = ContextVar("variable", default=0)
    events: list[str] = []

    @contextmanager
    def with_variable() -> Iterator[None]:
        token = variable.set(1)
        try:
            yield
        finally:
            variable.reset(token)
            events.append("reset")

    @asynccontextmanager
    async def opened() -> AsyncGenerator[int, None]:
        with with_variable():
            await asyncio.sleep(100)
        yield 1

    async def numbers() -> AsyncGenerator[int, None]:
        async with opened() as number:
            yield number

    @plain.defn
    async def reads() -> None:
        async for _ in numbers():
            pass

    d = begin_run(reads)
    events.clear()
    d.run.drop()
    assert "reset" in events


def test_drop_abandons_a_coroutine_that_swallows_every_exception(begin_run: Drive) -> None:
    @plain.defn
    async def stubborn(kind: str) -> None:
        while True:
            try:
                await asyncio.sleep(1)
            except BaseException:
                if kind == "turn":
                    try:
                        await asyncio.sleep(0)
                    except BaseException:
                        continue

    for kind in ("timer", "turn"):
        d = begin_run(stubborn, kind)
        d.run.drop()
        assert d.run.live is None


def test_stack_trace_shows_waiting_coroutines(begin_run: Drive) -> None:
    async def inner() -> None:
        await asyncio.sleep(5)

    @plain.defn
    async def outer() -> None:
        await asyncio.gather(inner(), asyncio.create_task(inner(), name="second"))

    d = begin_run(outer)
    trace = d.query("__stack_trace")
    assert "workflow" in trace
    assert "second" in trace
    assert "test_coroutines.py" in trace


# --- interceptors -----------------------------------------------------------------------------------------------------


def test_plain_interceptor_sees_the_result_of_an_async_workflow(begin_run: Drive) -> None:
    """The interceptor costs no additional turn."""
    seen: list[Any] = []

    class Watching(WorkflowInboundInterceptor):
        def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
            result = super().execute_workflow(input)
            seen.append(result)
            return result * 10

    @plain.defn
    async def body(n: int) -> int:
        await asyncio.sleep(1)
        return await workflow.execute_activity(double, n)

    d = begin_run(body, 4, settings=run_settings(interceptors=(Watching,)))
    assert not seen
    d.send(d.fired())
    d.send(d.done("double", 8))
    assert seen[0] == 8
    assert d.result == 80


# --- definitions ------------------------------------------------------------------------------------------------------


def test_aio_activity_can_be_called_outside_a_workflow() -> None:
    assert isinstance(double, Activity)
    assert asyncio.run(double(4)) == 8


def test_workflow_definition_records_whether_it_is_async() -> None:
    @plain.defn
    async def one() -> None: ...

    @plain.defn
    def other() -> None: ...

    assert one.__hourglass_workflow__.is_async
    assert not other.__hourglass_workflow__.is_async
    with pytest.raises(DefinitionError, match="yield"):

        @plain.defn
        async def generates() -> Any:
            yield 1
