"""What an environment is made of, put together: engine, clock, driver, attempts, a client.

A stage belongs to the thread that makes it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import ModuleType
from typing import Any, Generic, Literal, TypeVar, cast

from hourglass._embedded import VirtualClock, connect_memory
from hourglass._embedded.clock import to_ns
from hourglass._engine.context import RunSettings
from hourglass._engine.definition import check_exceptions
from hourglass._engine.options import Duration, seconds
from hourglass._runtime.activity_loop import LoopThread
from hourglass._runtime.activity_threads import ThreadPool
from hourglass._runtime.cache import CacheLimits
from hourglass._runtime.evaluation import Evaluations, Verify
from hourglass._runtime.plan import checked_verify, checked_watch
from hourglass._runtime.watcher import Action, Watcher
from hourglass.client import Client
from hourglass.client._interception import Interceptor, activity_chain, workflow_interceptors
from hourglass.converter import Converter
from hourglass.errors import UsageError
from hourglass.metrics import Registry, default_registry
from hourglass.testing._attempts import Attempts
from hourglass.testing._calls import as_ns
from hourglass.testing._cast import Cast
from hourglass.testing._choosing import Chooser
from hourglass.testing._driver import Driver
from hourglass.testing._guard import Guard
from hourglass.testing._session import EnvironmentLink, EnvironmentSession, Runner
from hourglass.testing._trouble import Troubles

# --- bench ------------------------------------------------------------
#
# What all environments of a process share, so that one costs next to nothing: loops and threads.
#
# Each thread that uses environments has one event loop, which runs only while somebody waits in an environment.
# Threads for `def` activities and the loop for `async def` ones are the whole process's. Nothing here knows of
# workflows.
#
# Invariants: a loop is closed when its thread is gone, or at exit; a forked child makes everything anew and frees
# nothing that it inherited.


T = TypeVar("T")

_MOST_THREADS = 200


class QuietLoop(asyncio.SelectorEventLoop):
    """An event loop that is run in short pieces, and can tell whether it had anything to do."""

    _ready: deque[Any]  # asyncio's own: what will run in the next turn

    def settle(self) -> bool:
        """Let everything run that can, until there is nothing but timers and what other threads may bring; says whether
        there was anything.
        """
        ready = self._ready
        if not ready:
            return False
        # What `run_forever` would do, without a look at timers and sockets at each turn: those can wait.
        asyncio._set_running_loop(self)
        try:
            while ready:
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(None)
        return True

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call something that belongs to this loop, in this thread."""
        asyncio._set_running_loop(self)
        try:
            return function(*args)
        finally:
            asyncio._set_running_loop(None)

    def do(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, in this thread. One that never has to wait costs no turn of the loop."""
        asyncio._set_running_loop(self)  # as far as the coroutine can see
        try:
            waits = coro.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            asyncio._set_running_loop(None)
        return self.run_until_complete(_resumed(coro, waits))


async def _resumed(coro: Coroutine[Any, Any, T], waits: Any) -> T:
    """Go on with a coroutine that has begun outside a task."""
    return cast(T, await _rest(coro, waits))


@types.coroutine
def _rest(coro: Coroutine[Any, Any, Any], waits: Any) -> Generator[Any, None, Any]:
    while True:
        try:
            yield waits
        except BaseException as error:
            step: Callable[[], Any] = partial(coro.throw, error)
        else:
            step = partial(coro.send, None)
        try:
            waits = step()
        except StopIteration as end:
            return end.value


class Poll(Generic[T]):
    """A coroutine that is begun again and again, and resumed by hand as soon as what it waits for is there.

    It is no task, so that looking whether there is something costs no turn of the loop.
    """

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._begin = begin
        self._coro: Coroutine[Any, Any, T] | None = None
        self.waits: asyncio.Future[Any] | None = None
        """What it waits for; None before it has begun."""

    def take(self) -> T | None:
        """What it has brought; None if it must wait. On the loop (`QuietLoop.call`)."""
        while self.waits is None or self.waits.done():
            if self._coro is None:
                self._coro = self._begin()
            try:
                self.waits = self._coro.send(None)
            except StopIteration as end:
                self._coro = self.waits = None
                result: T = end.value
                return result
        return None

    def close(self) -> None:
        """Poll no more."""
        coro, self._coro, self.waits = self._coro, None, None
        if coro is not None:
            coro.close()


class _Shared:
    """The process's."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loops: dict[threading.Thread, QuietLoop] = {}
        self.threads = ThreadPool("hourglass-test-activity", _MOST_THREADS)
        self.activity_loop = LoopThread("hourglass-test-activity-loop")


_shared = _Shared()
_inherited: list[_Shared] = []


def current_loop() -> QuietLoop:
    """This thread's loop."""
    if asyncio._get_running_loop() is not None:
        raise UsageError(
            "this thread runs an event loop, which an Environment would block: write `async with Environment() as env:` "
            "and await its methods (with pytest: the fixture hourglass_async_env)"
        )
    me = threading.current_thread()
    with _shared.lock:
        loop = _shared.loops.get(me)
        if loop is None:
            for thread in [each for each in _shared.loops if not each.is_alive()]:
                _shared.loops.pop(thread).close()
            loop = _shared.loops[me] = QuietLoop()
        return loop


def activity_threads() -> ThreadPool:
    """Where `def` activities run."""
    return _shared.threads


def activity_loop() -> LoopThread:
    """Where `async def` activities run."""
    return _shared.activity_loop


def _exit() -> None:
    for loop in _shared.loops.values():
        if not loop.is_running():
            loop.close()


def _after_fork() -> None:
    global _shared
    _inherited.append(_shared)
    _shared = _Shared()


atexit.register(_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# --- stage ------------------------------------------------------------


IDENTITY = "test"

_LIMITS = CacheLimits(live=1_000_000, states=1_000_000)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What an environment was asked to be."""

    workflows: Sequence[object]
    activities: Sequence[object]
    modules: Sequence[str | ModuleType]
    real_activities: bool
    converter: Converter
    verify: Verify
    watch: Action | Literal["off"] | None
    failure_exceptions: Sequence[type[BaseException]]
    start: datetime | None
    horizon: Duration
    chooser: Chooser
    deadlock_timeout: float
    verify_on_demand: bool = False
    interceptors: tuple[Interceptor, ...] = ()
    metrics: Registry = default_registry

    def cast(self) -> Cast:
        """Those who play; refuses what is no workflow and no activity."""
        return Cast(self.workflows, self.activities, self.modules, self.real_activities)

    def clock(self) -> VirtualClock:
        """A clock that stands at the start."""
        return VirtualClock() if self.start is None else VirtualClock(as_ns(self.start))

    def evaluations(self, cast: Cast, namespace: str) -> Callable[[str, Troubles], Evaluations]:
        """How the runs of a queue are evaluated: as in production."""
        verify, watch = checked_verify(self.verify), checked_watch(self.watch, self.verify)
        if sys.getprofile() is not None:
            watch = None  # this thread is being profiled, and has one place for that
        exceptions = check_exceptions(self.failure_exceptions)
        return lambda queue, troubles: Evaluations(
            cast.workflow,
            RunSettings(
                task_queue=queue,
                namespace=namespace,
                converter=self.converter,
                failure_exceptions=exceptions,
                interceptors=workflow_interceptors(self.interceptors),
                metrics=self.metrics,
            ),
            limits=_LIMITS,
            verify=verify,
            watcher=Watcher(watch) if watch is not None else None,
            parked=troubles,
            on_demand=self.verify_on_demand,
        )


class Stage:
    """An open environment."""

    def __init__(
        self,
        setting: Setting,
        runner: Runner | None = None,
        *,
        cast: Cast | None = None,
        make_driver: Callable[..., Driver] = Driver,
    ) -> None:
        loop, clock = current_loop(), setting.clock()
        cast = setting.cast() if cast is None else cast
        connection = loop.do(connect_memory(identity=IDENTITY, clock=clock))
        self.driver = make_driver(
            connection,
            clock,
            loop,
            cast,
            setting.chooser,
            setting.evaluations(cast, connection.namespace),
            to_ns(seconds(setting.horizon, "horizon")),
            Guard(setting.deadlock_timeout),
        )
        link = EnvironmentLink(connection)
        self.session = EnvironmentSession(
            link, setting.converter, None, setting.interceptors, driver=self.driver, runner=runner
        )
        self.client = Client(self.session)
        self.attempts = Attempts(
            self.driver,
            setting.converter,
            lambda: self.client,
            inbound=activity_chain(setting.interceptors),
            registry=setting.metrics,
        )
        self.driver.performer = self.attempts

    def close(self) -> None:
        """End it, in its own thread."""
        self.driver.close()
        self.session.link.closed = True
