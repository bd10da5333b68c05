"""Supervisors with children that come and go.

A `DynamicSupervisor` has children with ids, and restarts each child individually (one_for_one), limited by a
restart intensity. A `TaskSupervisor` has thousands of independent jobs.

An instance of either class is the body of a process, and also the address of its current run: its methods act
on the live run, and raise `NotRunning` if there is none. A new run starts without children. Children have no
order. They are stopped concurrently, and starts do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Generic, TypeAlias, TypeVar

from hourglass._supervision.exits import Exit, NoSuchChild, NotRunning, SpecError, StartFailed
from hourglass._supervision.policy import Escalate, History, Intensity, NoRestart, RestartChildren, decide
from hourglass._supervision.process import ChildView, Context, Down, Job, Process, ProcessState
from hourglass._supervision.spec import ChildSpec, Shutdown, check_id, check_spec
from hourglass._supervision.supervisor import ChildSlot, intensity_exceeded, stop_uncancellably

_Message: TypeAlias = Down | ChildSlot  # a child has died; or the delay before a child's restart is over
R = TypeVar("R", bound="_DynamicRun | _TaskRun")
J = TypeVar("J", bound=Job)


class _Addressed(Generic[R]):
    """A supervisor object that is the address of its current run."""

    _run: R | None = None

    def _new_run(self, context: Context) -> R:
        raise NotImplementedError

    async def __call__(self, context: Context) -> None:
        """Supervise until stopped."""
        former = self._run
        if former is not None and former.context.process.alive:
            raise SpecError(
                f"{context.path} cannot run: the supervisor is already running as {former.context.path}"
            )
        self._run = self._new_run(context)
        await self._run.main()

    def as_child(self, id: str) -> ChildSpec:
        """Return the spec of this supervisor as a child of another."""
        return ChildSpec(id, self, type="supervisor")

    def children(self) -> tuple[ChildView, ...]:
        """Return the current children, oldest first, or an empty tuple if the supervisor is not running."""
        return tuple(self._run.views()) if self._run is not None and self._run.context.process.alive else ()


class DynamicSupervisor(_Addressed["_DynamicRun"]):
    """A supervisor with children that are started and ended while it runs."""

    def __init__(self, *, max_restarts: int = 3, window: float = 5.0) -> None:
        self.intensity = Intensity(max_restarts, window)

    def _new_run(self, context: Context) -> _DynamicRun:
        return _DynamicRun(self.intensity, context)

    async def start_child(self, spec: ChildSpec) -> Process:
        """Start a child and wait until it has started. If the start fails, remove the child and raise
        `StartFailed`.

        Cancelling this call does not stop the child, because it belongs to the supervisor.
        """
        return await _living(self._run, "start a child").start_child(check_spec(spec))

    async def terminate_child(self, id: str) -> None:
        """Stop a child in order, within its timeout, and remove it."""
        await _living(self._run, "stop a child").terminate_child(id)


class _DynamicRun:
    """One run of a dynamic supervisor."""

    def __init__(self, intensity: Intensity, context: Context) -> None:
        self.context = context
        self._node = context.node
        self._intensity = intensity
        self._children: dict[str, ChildSlot] = {}
        self._history: History = ()
        self._inbox: asyncio.Queue[_Message] = asyncio.Queue()

    async def main(self) -> None:
        self.context.shows(self.views)
        try:
            await self.context.started()
            while True:
                match await self._inbox.get():
                    case Down(process, reason):
                        self._on_down(process, reason)
                    case child:
                        # The child may have been removed while it waited.
                        if self._children.get(child.spec.id) is child:
                            self._start_again(child, None)
        finally:
            for child in self._children.values():
                child.stop_waiting()
            stopping: list[tuple[Process, Shutdown]] = [
                (child.process, child.spec.shutdown_limit)
                for child in self._children.values()
                if child.process
            ]
            for process, limit in stopping:
                process.begin_stop(limit)
            for process, limit in stopping:
                await stop_uncancellably(process, limit)

    def views(self) -> Iterable[ChildView]:
        return [child.view() for child in self._children.values()]

    async def start_child(self, spec: ChildSpec) -> Process:
        if spec.id in self._children:
            raise SpecError(f"{self.context.path} already has a child {spec.id!r}")
        child = self._children[spec.id] = ChildSlot(spec)
        process = self._spawn(child)
        try:
            await process.wait_started()
        except StartFailed:
            self._forget(child)
            raise
        return process

    async def terminate_child(self, id: str) -> None:
        child = self._children.get(id)
        if child is None:
            raise NoSuchChild(f"{self.context.path} has no child {id!r}")
        child.stop_waiting()
        if child.process is not None:
            child.process.begin_stop(child.spec.shutdown_limit)
            await child.process.wait_dead()
        self._forget(child)

    def _spawn(self, child: ChildSlot) -> Process:
        process = self.context.spawn(child.spec)
        child.fill(process)
        process.monitor(self._inbox.put_nowait)
        return process

    def _on_down(self, process: Process, reason: Exit) -> None:
        child = self._children.get(process.id)
        if child is None or not child.is_filled_by(process):
            return
        if not process.was_started and not child.restarts:
            self._forget(child)  # the caller handles a failed first start
            return
        self._recover(child, reason)

    def _recover(self, child: ChildSlot, reason: Exit) -> None:
        now = self._node.clock.now()
        verdict = decide(
            "one_for_one",
            (child.spec.restart,),
            0,
            reason,
            self._history,
            now,
            intensity=self._intensity,
            counted=child.spec.backoff is None,
        )
        match verdict:
            case NoRestart():
                self._forget(child)
            case Escalate():
                raise intensity_exceeded(self.context, child, reason, self._intensity)
            case RestartChildren(history=history):
                self._history = history
                child.empty()
                delay = child.next_delay(now)
                if not delay:
                    self._start_again(child, reason)
                    return
                child.wait(self._node.clock, delay, lambda: self._inbox.put_nowait(child))
                self._node.report("delayed", self._path(child), reason, f"for {delay:g} s")

    def _start_again(self, child: ChildSlot, reason: Exit | None) -> None:
        child.restarts += 1
        self._node.report("restarting", self._path(child), reason, f"restart {child.restarts}")
        self._spawn(child)

    def _forget(self, child: ChildSlot) -> None:
        """Remove the child, unless its id has been reused."""
        if self._children.get(child.spec.id) is child:
            del self._children[child.spec.id]

    def _path(self, child: ChildSlot) -> str:
        return f"{self.context.path}/{child.spec.id}"


class TaskSupervisor(_Addressed["_TaskRun"]):
    """A supervisor of jobs. Jobs are never restarted, end independently, and are stopped together."""

    def _new_run(self, context: Context) -> _TaskRun:
        return _TaskRun(context)

    def spawn_job(self, kind: type[J], name: str = "job") -> J:
        """Create a job: a process without a coroutine. Callbacks do its work, and it ends when they call its
        `finish`.

        A job costs a fraction of an asyncio task. The callbacks must check that the process is still alive. A
        subclass passed as `kind` is notified by `on_failure` if the job does not finish normally.
        """
        run = self._run
        if run is None or run.process.state is not ProcessState.RUNNING:
            run = _living(run, "spawn a job")
        if name not in run.names:
            check_id(name)
            run.names.add(name)
        run.count += 1
        return kind(run.process, name, run.count)

    def jobs(self) -> tuple[Process, ...]:
        """Return the current jobs, oldest first."""
        return tuple(self._run.process.links) if self._run is not None else ()


class _TaskRun:
    """One run of a task supervisor. It has no list of jobs, because the jobs are links of its process and
    remove themselves when they end.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self.process = context.process
        self.count = 0
        self.names: set[str] = set()  # names of jobs, validated once

    async def main(self) -> None:
        self.context.shows(self.views)
        try:
            await self.context.started()
            await asyncio.get_running_loop().create_future()  # wait until stopped
        finally:
            for job in tuple(self.process.links):
                job.begin_stop("infinity")  # a job ends immediately

    def views(self) -> Iterable[ChildView]:
        return [ChildView(job.id, job.seen, 0, job) for job in self.process.links]


def _living(run: R | None, purpose: str) -> R:
    if run is None:
        raise NotRunning(f"cannot {purpose}: the supervisor has not been started")
    process = run.context.process
    if process.state is not ProcessState.RUNNING:
        raise NotRunning(f"cannot {purpose}: the process {process.path} is {process.state.value}")
    return run
