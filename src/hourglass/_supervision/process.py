"""A process: an asyncio task with an identity, a state, a recorded exit, monitors, and links to its children.

Must not know: strategies, restarts. Invariants:

- The state only moves forward: starting -> running -> stopping -> dead. States may be skipped. The exit is
  recorded once.
- After its death, every method of its context raises `DeadProcess`.
- When a process dies for any reason, its linked children are killed first, the youngest child first.
- An ordered stop calls the `terminate` callback, then cancels the body, and kills both after the timeout. A
  kill does not call `terminate`.
- Monitors are called immediately at the death, once, in the order of their registration.
- A process may have no body (see `Job`). It is stopped and killed like any other; its monitors must clean up
  its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType, NoneType
from typing import Any, Literal, TypeAlias, cast

from hourglass._supervision.driver import TaskDriver
from hourglass._supervision.exits import KILLED, NORMAL, SHUTDOWN, DeadProcess, Exit, StartFailed, crash
from hourglass._supervision.node import Cancellable, Node, logger
from hourglass._supervision.spec import ChildSpec, Shutdown, Start

# The state of a process, and its representation in a drawing or a status page of the tree. Data only.


class ProcessState(Enum):
    """The state of a process."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DEAD = "dead"


ChildState: TypeAlias = Literal["starting", "running", "stopping", "waiting", "ended"]


@dataclass(frozen=True, slots=True)
class ChildView:
    """A child as its supervisor sees it. A child without a process has ended or waits for its restart."""

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


@dataclass(frozen=True, slots=True)
class Down:
    """The event that a monitored process has died."""

    process: Process
    exit: Exit


OnDown: TypeAlias = Callable[[Down], object]
Terminate: TypeAlias = Callable[[], Awaitable[object] | None]
Family: TypeAlias = Callable[[], Iterable[ChildView]]


class Monitor:
    """A registration for the death of a process. It can be cancelled."""

    __slots__ = ("_callback", "_process")

    def __init__(self, process: Process, callback: OnDown) -> None:
        self._process = process
        self._callback = callback

    def cancel(self) -> None:
        if self._process._monitors is not None:
            self._process._monitors.pop(self, None)

    def _fire(self, down: Down) -> None:
        try:
            self._callback(down)
        except Exception:  # it must not disturb the death of the process
            down.process.log_failed_monitor()


class Process:
    """A process of a tree. Created by `Context.spawn`, `Context.spawn_task` and `start_tree`."""

    # There may be thousands of processes, one per piece of work, so rarely used attributes are created on
    # demand.
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
        self.value: Any = None  # the value that the process passed to `started`
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
        return self.state is not ProcessState.DEAD

    @property
    def was_started(self) -> bool:
        """Whether the process has ever reported its start."""
        return self.started_at is not None

    @property
    def seen(self) -> ChildState:
        """The state of the process for views of the tree."""
        return SEEN[self.state]

    def monitor(self, callback: OnDown) -> Monitor:
        """Call a function at the death of the process, or immediately if the process is already dead."""
        monitor = Monitor(self, callback)
        if self.exit is not None:
            monitor._fire(Down(self, self.exit))
        else:
            self._monitors = self._monitors or {}
            self._monitors[monitor] = None
        return monitor

    async def wait_started(self) -> Any:
        """Wait for the start, and return the value passed to `started`. Raise `StartFailed` if the process ends
        first.
        """
        while not self.was_started and self.exit is None:
            await self._change()
        if not self.was_started:
            error = self.exit.error if self.exit else None
            raise StartFailed(f"{self.path} did not start: {self.exit}") from error
        return self.value

    async def wait_dead(self) -> Exit:
        """Wait for the death, and return the exit."""
        while self.exit is None:
            await self._change()
        return self.exit

    def begin_stop(self, limit: Shutdown) -> None:
        """Begin an ordered stop, and kill the process after `limit`. Repeated calls have no effect, except with
        `"brutal"`.
        """
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
        """Kill the process immediately, without calling `terminate`. The process and its linked children are
        dead when this method returns.
        """
        if not self.alive:
            return
        self.state = (
            ProcessState.DEAD
        )  # set first, so that calls that the coroutine makes from now on are rejected
        self._kill_links()
        for driver in (self._terminating, self._body):
            if driver is not None:
                self.node.unwinds(driver)
                driver.kill()
        self._die(reason)

    def run(self, body: Coroutine[Any, Any, object], *, start_limit: float | None = None) -> None:
        self._set_timer(start_limit, self._start_overdue)
        self._body = TaskDriver(body, self, self.path)

    def has_started(self, value: Any) -> None:
        if self.state is not ProcessState.STARTING:
            return  # the process is being stopped, or this is a repeated call
        self.started_at, self.value = self.node.clock.now(), value
        self._set_timer(None)
        self._enter(ProcessState.RUNNING)
        if not self._quiet:
            self.node.report("started", self.path)

    def finish(self, error: BaseException | None = None) -> None:
        """End a process without a body, with `error` if its work failed. Has no effect if the process is
        already dead.
        """
        if self.alive and self._body is None:
            self._kill_links()
            self._die(self._exit_after(error))

    def set_terminate(self, callback: Terminate) -> None:
        """Set the callback that an ordered stop calls before it cancels the body. A later callback replaces an
        earlier one.
        """
        self._terminate = callback

    def ended(self, driver: TaskDriver, error: BaseException | None) -> None:
        """Handle the end of one of the process's coroutines: the body or the terminate callback."""
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
                # a failed `terminate` is more informative than the cancellation after it
                self._failure = error
        if self._terminating is None:
            self._kill_links()
            self._die(self._exit_after(self._failure))

    def lingers(self, driver: TaskDriver) -> None:
        """Handle a killed coroutine that does not end."""
        self.node.lingers(driver)
        self.node.report("lingering", self.path)

    def discarded(self, driver: TaskDriver, error: BaseException | None) -> None:
        """Handle a lingering coroutine that was closed."""
        self.node.unwound(driver)
        self.node.report("discarded", self.path, detail="it could not be closed" if error else "")

    def _exit_after(self, error: BaseException | None) -> Exit:
        stopping = self.state is ProcessState.STOPPING
        match error:
            case None if stopping:
                return SHUTDOWN
            case None if not self.was_started:
                return crash(StartFailed(f"{self.path} ended before it reported its start"))
            case None:
                return NORMAL
            case asyncio.CancelledError() if stopping or self.parent is None:
                return (
                    SHUTDOWN  # a root has no supervisor, so only the owner of the loop can have cancelled it
                )
            case _:
                return crash(error)

    def _die(self, reason: Exit) -> None:
        if self._timer is not None:
            self._set_timer(None)
        if self._body is not None or self._terminate is not None:
            self._terminating = self._body = self._terminate = None
        self.exit = reason
        if self.parent is not None:
            self.parent.links.pop(self, None)
        if reason is not NORMAL or not self._quiet:
            self._report_death(reason)
        self.state = ProcessState.DEAD
        if self._waiters:
            self._wake_waiters()
        self._notify_monitors(reason)

    def _notify_monitors(self, reason: Exit) -> None:
        if self._monitors:
            down = Down(self, reason)
            monitors, self._monitors = self._monitors, None
            for monitor in monitors:
                monitor._fire(down)

    def log_failed_monitor(self) -> None:
        """Log the exception of a monitor, or of a job's `on_failure` method."""
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
            self.finish()  # there is no coroutine to unwind

    def _overdue(self) -> None:
        self.node.report("overdue", self.path)
        self.kill()

    def _start_overdue(self) -> None:
        self.kill(crash(StartFailed(f"{self.path} did not start within its start timeout")))

    def _set_timer(self, delay: float | None, callback: Callable[[], object] | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay is not None and callback is not None:
            self._timer = self.node.clock.call_later(delay, callback)

    def _enter(self, state: ProcessState) -> None:
        self.state = state
        if self._waiters:
            self._wake_waiters()

    def _wake_waiters(self) -> None:
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


# A process without a body. Callbacks elsewhere do its work, and the last callback calls `finish`.
#
# Up to ten thousand jobs may be created per second, so a job needs only two calls, and optional attributes
# (monitors, waiters, the path) are only created on demand. A job is inspected, stopped, killed and monitored
# like any other process.


_RUNNING = ProcessState.RUNNING
_NO_LINKS = cast("dict[Process, None]", MappingProxyType({}))


class Job(Process):
    """One piece of work, created by `TaskSupervisor.spawn_job`. A subclass adds the data of the work, and
    overrides `on_failure`.
    """

    __slots__ = ("_name", "_number")

    # The same for all jobs: a job is running immediately, has no body, and cannot have children.
    started_at = 0.0
    value = None
    family = tuple
    links = _NO_LINKS
    _quiet = True
    _body = _terminate = _terminating = _failure = None

    def __init__(self, parent: Process, name: str, number: int) -> None:
        # `super().__init__` is not called, because it would double the cost of a job.
        self.parent: Process | None = parent
        self.node = parent.node
        self.state = _RUNNING
        self.exit = self._monitors = self._waiters = self._timer = None
        self._name = name
        self._number = number
        parent.links[self] = None

    @property
    def id(self) -> str:  # type: ignore[override]
        return f"{self._name}-{self._number}"

    @property
    def path(self) -> str:  # type: ignore[override]
        return f"{self.parent.path}/{self.id}" if self.parent else self.id

    def finish(self, error: BaseException | None = None) -> None:
        """End the job, with `error` if its work failed. Has no effect if the job is already dead."""
        if error is not None or self.state is not _RUNNING or self._monitors or self._waiters:
            super().finish(error)
        else:  # the usual case: a job without monitors and waiters
            self.exit, self.state = NORMAL, ProcessState.DEAD
            if self.parent is not None:
                self.parent.links.pop(self, None)

    def on_failure(self, reason: Exit) -> None:
        """Handle the end of a job that has not finished normally. Called before all monitors."""

    def _notify_monitors(self, reason: Exit) -> None:
        if reason is not NORMAL:
            try:
                self.on_failure(reason)
            except Exception:
                self.log_failed_monitor()
        if self._monitors:
            super()._notify_monitors(reason)


# The context of a process: the argument of its body, with all operations of the process in the tree.
#
# Every method first checks that the process is alive. In a body that outlives its process (because it swallowed
# a kill), methods raise `DeadProcess`.


class Context:
    """The operations that a process's body can use: report the start, set callbacks, and start children."""

    __slots__ = ("process",)

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def path(self) -> str:
        """The path of the process in the tree, for example `Application/Subsystem/BridgeHolder`."""
        return self.process.path

    @property
    def node(self) -> Node:
        """The state shared by all processes of the tree."""
        return self._alive().node

    async def started(self, value: Any = None) -> None:
        """Report that the process is ready, so that the next child may start. Other processes find `value` in
        `process.value`.
        """
        self._alive().has_started(value)

    def on_terminate(self, callback: Terminate) -> None:
        """Set the callback that an ordered stop calls before it cancels the body. A kill does not call it. A
        later callback replaces an earlier one.
        """
        self._alive().set_terminate(callback)

    def shows(self, family: Family) -> None:
        """Set the function that returns this process's children, for views of the tree."""
        self._alive().family = family

    def spawn(self, spec: ChildSpec) -> Process:
        """Start a child that is linked to this process; `await child.wait_started()` waits until it is ready."""
        child = Process(self.node, spec.id, self.process)
        launch(child, spec)
        return child

    def spawn_task(self, id: str, body: Coroutine[Any, Any, object]) -> Process:
        """Start a linked child without a start phase. It is reported only if it ends abnormally."""
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
                f"the process {self.process.path} is dead ({self.process.exit}) and can no longer be used"
            )
        return self.process


def launch(process: Process, spec: ChildSpec) -> None:
    """Start the body described by a spec."""
    limit = spec.start_limit
    process.run(_body(spec.start, Context(process)), start_limit=None if limit == "infinity" else limit)


async def _body(start: Start, context: Context) -> object:
    # Called inside the body, so that a `start` that is not a coroutine function is an ordinary failed start.
    return await start(context)
