"""A process: an asyncio task with an identity, a state, an exit that is recorded, monitors, and links to its children.

It knows nothing of strategies and restarts. Invariants:

- starting -> running -> stopping -> dead, never back; a state may be skipped. Death is recorded once, with its exit.
- The dead do not speak: from the instant of death every method of its context raises `DeadProcess`.
- When a process dies, whatever the reason, those still linked to it (its children) are killed first, the youngest first.
- An ordered stop runs the `terminate` callback, then cancels the body, and kills both when the limit
  has passed. A kill runs neither.
- Monitors are called at the instant of death, in the order in which they were set, once.
- A process may have no body (see `job`). It is stopped and killed as any other; what is done about its work is for its monitors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeAlias, TypeVar

from hourglass._supervision.clock import Timer
from hourglass._supervision.driver import Driver
from hourglass._supervision.exits import KILLED, NORMAL, SHUTDOWN, Exit, crash
from hourglass._supervision.failures import DeadProcess, StartFailed
from hourglass._supervision.node import Node, logger
from hourglass._supervision.spec import Shutdown
from hourglass._supervision.states import SEEN, ChildState, ChildView, State

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Down:
    """A monitored process has died."""

    process: Process
    exit: Exit


OnDown: TypeAlias = Callable[[Down], object]
Terminate: TypeAlias = Callable[[], Awaitable[object] | None]
Family: TypeAlias = Callable[[], Iterable[ChildView]]


class Monitor:
    """A watch on a process, which can be given up."""

    __slots__ = ("_callback", "_process")

    def __init__(self, process: Process, callback: OnDown) -> None:
        self._process = process
        self._callback = callback

    def cancel(self) -> None:
        """Watch no longer."""
        if self._process._monitors is not None:
            self._process._monitors.pop(self, None)

    def _fire(self, down: Down) -> None:
        down.process.guarded(self._callback, down)


class Process:
    """One process of a tree. It is made by `Context.spawn` and `Context.spawn_task`, and by `start_tree`."""

    # There may be thousands of them, one for each piece of work: what few need is made when it is needed.
    __slots__ = (
        "__weakref__",
        "_body",
        "_failure",
        "_monitors",
        "_quiet",
        "_terminate",
        "_terminating",
        "_timer",
        "_waiters",
        "exit",
        "family",
        "id",
        "links",
        "node",
        "parent",
        "path",
        "returned",
        "started_at",
        "state",
        "value",
    )

    def __init__(self, node: Node, id: str, parent: Process | None, *, quiet: bool = False) -> None:
        self.id = id
        self.path: str = f"{parent.path}/{id}" if parent else id
        self.parent = parent
        self.node = node
        self.state = State.STARTING
        self.exit: Exit | None = None
        self.started_at: float | None = None
        self.value: Any = None  # what it gave to `started`
        self.returned: Any = None  # what its body returned
        self.family: Family = tuple
        self.links: dict[Process, None] = {}
        self._quiet = quiet
        self._monitors: dict[Monitor, None] | None = None
        self._waiters: list[asyncio.Future[None]] | None = None
        self._timer: Timer | None = None
        self._terminate: Terminate | None = None
        self._terminating: Driver | None = None
        self._failure: BaseException | None = None
        self._body: Driver | None = None
        if parent is not None:
            parent.links[self] = None

    def __repr__(self) -> str:
        return f"<Process {self.path} {self.state.value}{f', {self.exit}' if self.exit else ''}>"

    @property
    def alive(self) -> bool:
        """Whether it has not died yet."""
        return self.state is not State.DEAD

    @property
    def was_started(self) -> bool:
        """Whether it ever said that it had started."""
        return self.started_at is not None

    @property
    def seen(self) -> ChildState:
        """Its state, as a view of the tree shows it."""
        return SEEN[self.state]

    # --- what others may ask and do ---------------------------------------------------------------

    def monitor(self, callback: OnDown) -> Monitor:
        """Call back when it dies, at that instant; at once if it is dead."""
        monitor = Monitor(self, callback)
        if self.exit is not None:
            monitor._fire(Down(self, self.exit))
        else:
            self._monitors = self._monitors or {}
            self._monitors[monitor] = None
        return monitor

    async def wait_started(self) -> Any:
        """What it gave to `started`; `StartFailed` if it ended before."""
        while not self.was_started and self.exit is None:
            await self._change()
        if not self.was_started:
            error = self.exit.error if self.exit else None
            raise StartFailed(f"{self.path} did not start: {self.exit}") from error
        return self.value

    async def wait_dead(self) -> Exit:
        """Its exit, once it has died."""
        while self.exit is None:
            await self._change()
        return self.exit

    async def wait_result(self) -> Any:
        """What its body returned; raises what it raised, or `DeadProcess` if it was stopped or killed."""
        reason = await self.wait_dead()
        if isinstance(reason.error, Exception):
            raise reason.error
        if reason is not NORMAL:
            # Its own cancellation must not look like a cancellation of the caller that waits here.
            raise DeadProcess(f"{self.path} ended without a result: {reason}") from reason.error
        return self.returned

    def begin_stop(self, limit: Shutdown) -> None:
        """Ask it to end in order; killed when `limit` has passed. Asking again changes nothing, but for `"brutal"`."""
        if limit == "brutal":
            self.kill()
        elif self.state in (State.STARTING, State.RUNNING):
            self._set_timer(None if limit == "infinity" else limit, self._overdue)
            self._enter(State.STOPPING)
            if self._terminate is None:
                self._cancel_body()
            else:
                self._terminating = Driver(_called(self._terminate), self, f"{self.path} (terminate)")

    def kill(self, reason: Exit = KILLED) -> None:
        """End it now. No `terminate`, no waiting; it is dead when this returns, and so are those linked to it."""
        if not self.alive:
            return
        self.state = State.DEAD  # first, so that nothing it still does is heard
        self._kill_links()
        for driver in (self._terminating, self._body):
            if driver is not None:
                self.node.unwinds(driver)
                driver.kill()
        self._die(reason)

    # --- its life ---------------------------------------------------------------------------------

    def run(self, body: Coroutine[Any, Any, object], *, start_limit: float | None = None) -> None:
        """Give it its body."""
        self._set_timer(start_limit, self._start_overdue)
        self._body = Driver(body, self, self.path)

    def has_started(self, value: Any) -> None:
        """It is ready."""
        if self.state is not State.STARTING:
            return  # it is being stopped; or it says so twice, which changes nothing
        self.started_at, self.value = self.node.clock.now(), value
        self._set_timer(None)
        self._enter(State.RUNNING)
        if not self._quiet:
            self.node.report("started", self.path)

    def finish(self, error: BaseException | None = None) -> None:
        """The work of a process without a body is done, or has failed with `error`. Nothing happens if it is dead."""
        if self.alive and self._body is None:
            self._kill_links()
            self._die(self._exit_after(error))

    def set_terminate(self, callback: Terminate) -> None:
        """What an ordered stop runs before the body is cancelled; the latest callback counts."""
        self._terminate = callback

    def ended(self, driver: Driver, error: BaseException | None, value: Any) -> None:
        """One of its coroutines has ended: the body, or the terminate callback."""
        self.node.unwound(driver)
        if not self.alive:
            return
        if driver is self._terminating:
            self._terminating = None
            self._failure = self._failure or error
            if self._body is not None:
                self._cancel_body()
                return
        else:
            self._body = None
            self.returned = value
            if self._failure is None or not isinstance(error, (asyncio.CancelledError, NoneType)):
                self._failure = error  # a failed `terminate` says more than the cancellation after it
        if self._terminating is None:
            self._kill_links()
            self._die(self._exit_after(self._failure))

    def lingers(self, driver: Driver) -> None:
        """A killed coroutine goes on."""
        self.node.lingers(driver)
        self.node.report("lingering", self.path)

    def discarded(self, driver: Driver, error: BaseException | None) -> None:
        """A lingering coroutine was thrown away."""
        self.node.unwound(driver)
        self.node.report("discarded", self.path, detail="it refused to close" if error else "")

    def _exit_after(self, error: BaseException | None) -> Exit:
        stopping = self.state is State.STOPPING
        match error:
            case None if stopping:
                return SHUTDOWN
            case None if not self.was_started:
                return crash(StartFailed(f"{self.path} returned before it said that it had started"))
            case None:
                return NORMAL
            case asyncio.CancelledError() if stopping or self.parent is None:
                return SHUTDOWN  # a root has no supervisor: only the loop's owner can have cancelled it
            case _:
                return crash(error)

    def _die(self, reason: Exit) -> None:
        self._set_timer(None)
        self._terminating = self._body = self._terminate = None
        self.exit = reason
        if self.parent is not None:
            self.parent.links.pop(self, None)
        self._report_death(reason)
        self._enter(State.DEAD)
        self._tell(reason)

    def _tell(self, reason: Exit) -> None:
        """Its monitors hear of its death."""
        if self._monitors:
            down = Down(self, reason)
            monitors, self._monitors = self._monitors, None
            for monitor in monitors:
                monitor._fire(down)

    def guarded(self, callback: Callable[[T], object], news: T) -> None:
        """Call a monitor, or `on_death` of a job; what it raises must not disturb the death of the process."""
        try:
            callback(news)
        except Exception:
            logger.exception("a monitor of %s failed", self.path)

    def _report_death(self, reason: Exit) -> None:
        failed_start = not self.was_started and reason.abnormal
        if failed_start or reason.abnormal or not self._quiet:
            self.node.report("start_failed" if failed_start else "exited", self.path, reason)

    def _kill_links(self) -> None:
        if self.links:
            for child in reversed(tuple(self.links)):
                child.kill()

    def _cancel_body(self) -> None:
        if self._body is not None:
            self._body.cancel()
        else:
            self.finish()  # there is nothing that would have to unwind

    def _overdue(self) -> None:
        self.node.report("overdue", self.path)
        self.kill()

    def _start_overdue(self) -> None:
        self.kill(crash(StartFailed(f"{self.path} took too long to start")))

    def _set_timer(self, delay: float | None, callback: Callable[[], object] | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay is not None and callback is not None:
            self._timer = self.node.clock.call_later(delay, callback)

    def _enter(self, state: State) -> None:
        self.state = state
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters = self._waiters or []
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if self._waiters and waiter in self._waiters:
                self._waiters.remove(waiter)


async def _called(terminate: Terminate) -> None:
    waits = terminate()
    if waits is not None:
        await waits
