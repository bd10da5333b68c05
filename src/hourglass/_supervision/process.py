"""A process: an asyncio task with an identity, a state, an exit that is recorded, monitors, and links to its children.

It knows nothing of strategies and restarts. Invariants:

- starting -> running -> stopping -> dead, never back; a state may be skipped. Death is recorded once, with its exit.
- The dead do not speak: from the instant of death every method of its context raises `DeadProcess`.
- When a process dies, whatever the reason, those still linked to it (its children) are killed first, the youngest first.
- An ordered stop runs the `terminate` callback, then cancels the body, and kills both when the limit
  has passed. A kill runs neither.
- Monitors are called at the instant of death, in the order in which they were set, once.
- A process may have no body (see `Job`). It is stopped and killed as any other; what is done about its work is for its monitors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType, NoneType
from typing import Any, Literal, TypeAlias, TypeVar, cast

from hourglass._supervision.driver import TaskDriver
from hourglass._supervision.exits import KILLED, NORMAL, SHUTDOWN, DeadProcess, Exit, StartFailed, crash
from hourglass._supervision.node import Cancellable, Node, logger
from hourglass._supervision.spec import ChildSpec, Shutdown, Start

# --- what others see of a process --------------------------------------------------------------------------------------
#
# Where a process is in its life, and how a drawing or a status page of the tree shows it. Data only.


class ProcessState(Enum):
    """Where a process is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DEAD = "dead"


ChildState: TypeAlias = Literal["starting", "running", "stopping", "waiting", "ended"]


@dataclass(frozen=True, slots=True)
class ChildView:
    """A child as its supervisor sees it; without a process it has ended, or waits to be started again."""

    id: str
    state: ChildState
    restarts: int
    process: Process | None


SEEN: dict[ProcessState, ChildState] = {
    ProcessState.STARTING: "starting",
    ProcessState.RUNNING: "running",
    ProcessState.STOPPING: "stopping",
    ProcessState.DEAD: "ended",
}


# --- the process -------------------------------------------------------------------------------------------------------


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
        "started_at",
        "state",
        "value",
    )

    def __init__(self, node: Node, id: str, parent: Process | None, *, quiet: bool = False) -> None:
        self.id = id
        self.path: str = f"{parent.path}/{id}" if parent else id
        self.parent = parent
        self.node = node
        self.state = ProcessState.STARTING
        self.exit: Exit | None = None
        self.started_at: float | None = None
        self.value: Any = None  # what it gave to `started`
        self.family: Family = tuple
        self.links: dict[Process, None] = {}
        self._quiet = quiet
        self._monitors: dict[Monitor, None] | None = None
        self._waiters: list[asyncio.Future[None]] | None = None
        self._timer: Cancellable | None = None
        self._terminate: Terminate | None = None
        self._terminating: TaskDriver | None = None
        self._failure: BaseException | None = None
        self._body: TaskDriver | None = None
        if parent is not None:
            parent.links[self] = None

    def __repr__(self) -> str:
        return f"<Process {self.path} {self.state.value}{f', {self.exit}' if self.exit else ''}>"

    @property
    def alive(self) -> bool:
        """Whether it has not died yet."""
        return self.state is not ProcessState.DEAD

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

    def begin_stop(self, limit: Shutdown) -> None:
        """Ask it to end in order; killed when `limit` has passed. Asking again changes nothing, but for `"brutal"`."""
        if limit == "brutal":
            self.kill()
        elif self.state in (ProcessState.STARTING, ProcessState.RUNNING):
            self._set_timer(None if limit == "infinity" else limit, self._overdue)
            self._enter(ProcessState.STOPPING)
            if self._terminate is None:
                self._cancel_body()
            else:
                self._terminating = TaskDriver(
                    _call_terminate(self._terminate), self, f"{self.path} (terminate)"
                )

    def kill(self, reason: Exit = KILLED) -> None:
        """End it now. No `terminate`, no waiting; it is dead when this returns, and so are those linked to it."""
        if not self.alive:
            return
        self.state = ProcessState.DEAD  # first, so that nothing it still does is heard
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
        self._body = TaskDriver(body, self, self.path)

    def has_started(self, value: Any) -> None:
        """It is ready."""
        if self.state is not ProcessState.STARTING:
            return  # it is being stopped; or it says so twice, which changes nothing
        self.started_at, self.value = self.node.clock.now(), value
        self._set_timer(None)
        self._enter(ProcessState.RUNNING)
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

    def ended(self, driver: TaskDriver, error: BaseException | None) -> None:
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
            if self._failure is None or not isinstance(error, (asyncio.CancelledError, NoneType)):
                self._failure = error  # a failed `terminate` says more than the cancellation after it
        if self._terminating is None:
            self._kill_links()
            self._die(self._exit_after(self._failure))

    def lingers(self, driver: TaskDriver) -> None:
        """A killed coroutine goes on."""
        self.node.lingers(driver)
        self.node.report("lingering", self.path)

    def discarded(self, driver: TaskDriver, error: BaseException | None) -> None:
        """A lingering coroutine was thrown away."""
        self.node.unwound(driver)
        self.node.report("discarded", self.path, detail="it refused to close" if error else "")

    def _exit_after(self, error: BaseException | None) -> Exit:
        stopping = self.state is ProcessState.STOPPING
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
        self._enter(ProcessState.DEAD)
        self._notify_monitors(reason)

    def _notify_monitors(self, reason: Exit) -> None:
        """Its monitors hear of its death."""
        if self._monitors:
            down = Down(self, reason)
            monitors, self._monitors = self._monitors, None
            for monitor in monitors:
                monitor._fire(down)

    def guarded(self, callback: Callable[[T], object], argument: T) -> None:
        """Call a monitor, or `on_death` of a job; what it raises must not disturb the death of the process."""
        try:
            callback(argument)
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

    def _enter(self, state: ProcessState) -> None:
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


async def _call_terminate(terminate: Terminate) -> None:
    waits = terminate()
    if waits is not None:
        await waits


# --- a process without a body ------------------------------------------------------------------------------------------
#
# A process without a body: the work is done elsewhere, by callbacks, and the last of them calls `finish`.
#
# There may be ten thousand of them in a second, so its whole life is two calls, and what is not asked for (monitors,
# waiters, its path as text) is not made. It is seen, stopped, killed and monitored as any other process.


_RUNNING = ProcessState.RUNNING
_NO_LINKS = cast("dict[Process, None]", MappingProxyType({}))


class Job(Process):
    """One piece of work, made by `TaskSupervisor.spawn_job`. A subclass carries what the work needs, and hears of its end."""

    __slots__ = ("_name", "_number")

    def __init__(self, parent: Process, name: str, number: int) -> None:
        # Not `super().__init__`: this is half the cost of a job, and a job skips states: it is running at once.
        self.parent: Process | None = parent
        self.node = parent.node
        self.state = _RUNNING
        self.exit = self.value = None
        self.started_at = 0.0
        self.family = tuple
        self.links = _NO_LINKS  # a process without a body cannot have children
        self._quiet = True
        self._monitors = self._waiters = self._timer = self._terminate = self._terminating = None
        self._failure = self._body = None
        self._name = name
        self._number = number
        parent.links[self] = None

    @property
    def id(self) -> str:  # type: ignore[override]
        """Its name and number."""
        return f"{self._name}-{self._number}"

    @property
    def path(self) -> str:  # type: ignore[override]
        """Where in the tree it is."""
        return f"{self.parent.path}/{self.id}" if self.parent else self.id

    def on_death(self, reason: Exit) -> None:
        """It has ended, whatever the reason; called before any monitor."""

    def _notify_monitors(self, reason: Exit) -> None:
        self.guarded(self.on_death, reason)
        super()._notify_monitors(reason)


# --- what a body is given ----------------------------------------------------------------------------------------------
#
# A process's own view of itself: what its body is given, and all that it can say and do in the tree.
#
# Every method first asks whether the process lives: a body that outlives its process (it swallowed a kill) gets
# `DeadProcess`.


class Context:
    """What a process has in its hands: the way to say that it has started, and to have children of its own."""

    __slots__ = ("process",)

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def path(self) -> str:
        """Where in the tree it is, such as `Application/Subsystem/BridgeHolder`."""
        return self.process.path

    @property
    def node(self) -> Node:
        """What it shares with all of its tree."""
        return self._alive().node

    async def started(self, value: Any = None) -> None:
        """I am ready: the next child may start. `value` is what other processes find in `process.value`."""
        self._alive().has_started(value)

    def on_terminate(self, callback: Terminate) -> None:
        """Run this on an ordered stop, before the body is cancelled; never on a kill. The latest callback counts."""
        self._alive().set_terminate(callback)

    def shows(self, family: Family) -> None:
        """How the tree finds its children."""
        self._alive().family = family

    def spawn(self, spec: ChildSpec) -> Process:
        """Start a child that is linked to this process; `await child.wait_started()` waits until it is ready."""
        child = Process(self.node, spec.id, self.process)
        launch(child, spec)
        return child

    def spawn_task(self, id: str, body: Coroutine[Any, Any, object]) -> Process:
        """Start a linked child that needs no start of its own and is reported only if it ends badly."""
        try:
            child = Process(self.node, id, self.process, quiet=True)
        except DeadProcess:
            body.close()
            raise
        child.has_started(None)
        child.run(body)
        return child

    def _alive(self) -> Process:
        if not self.process.alive:
            raise DeadProcess(
                f"{self.process.path} is dead ({self.process.exit}) and can do nothing any more"
            )
        return self.process


def launch(process: Process, spec: ChildSpec) -> None:
    """Give a process the body that its spec describes."""
    limit = spec.start_limit
    process.run(_body(spec.start, Context(process)), start_limit=None if limit == "infinity" else limit)


async def _body(start: Start, context: Context) -> object:
    # Called in here, so that a start that is no coroutine function is a failed start as any other.
    return await start(context)
