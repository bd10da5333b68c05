"""A supervisor of fixed children: started in order, stopped in reverse, restarted by policy.

A `Supervisor` is a description and also the body of a process. Use it as the `start` of a child spec, or call
it with the context of a process that has other work to do first. Each run has its own state. `policy` makes the
decisions, and this module carries them out.

- The next child starts when the previous child has reported its start. If a child fails during the first start,
  the previous children are stopped in reverse order, and the supervisor fails.
- Exits are handled one at a time, in the order of their occurrence. A restart whose start fails is a failure of
  that child.
- When the run ends, except by a kill, its children are stopped in reverse order, each within its timeout.
  Repeated cancellation does not shorten this. A kill also kills the children, through their links.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hourglass._supervision.exits import Exit, IntensityExceeded, StartFailed, crash
from hourglass._supervision.node import Cancellable, MonotonicClock
from hourglass._supervision.policy import (
    Escalate,
    History,
    Intensity,
    NoRestart,
    RestartChildren,
    decide,
    delay_before,
)
from hourglass._supervision.process import ChildState, ChildView, Context, Down, Process
from hourglass._supervision.spec import (
    ChildSpec,
    RestartKind,
    Shutdown,
    Strategy,
    check_children,
    check_strategy,
)

# A supervisor's state for one child: its spec, its current process, its restarts and its backoff.


class ChildSlot:
    """The position of a child in a supervisor, occupied by one process after another."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.process: Process | None = None
        self.restarts = 0
        self._up_since: float | None = None
        self._failures = 0
        self._timer: Cancellable | None = None

    def fill(self, process: Process) -> None:
        self.stop_waiting()
        self.process = process

    def empty(self) -> None:
        """Remove the process after its death."""
        self._up_since = self.process.started_at if self.process is not None else None
        self.process = None

    def is_filled_by(self, process: Process) -> bool:
        return self.process is process

    def next_delay(self, now: float) -> float:
        """Return the delay before the next restart, and count this failure."""
        backoff = self.spec.backoff
        if backoff is None:
            return 0.0
        if self._up_since is not None and now - self._up_since >= backoff[1]:
            self._failures = 0
        delay = delay_before(backoff, self._failures)
        self._failures += 1
        return delay

    def wait(self, clock: MonotonicClock, delay: float, callback: Callable[[], object]) -> None:
        """Schedule a callback after the delay."""
        self.stop_waiting()
        self._timer = clock.call_later(delay, callback)

    def stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def view(self) -> ChildView:
        """Return the child for views of the tree."""
        spec, process = self.spec, self.process
        if process is None or not process.alive:
            vacant: ChildState = "ended" if self._timer is None else "waiting"
            return ChildView(spec.id, vacant, self.restarts, None)
        return ChildView(spec.id, process.seen, self.restarts, process)


class Supervisor:
    """An ordered list of children, with a strategy for their failures."""

    def __init__(
        self,
        strategy: Strategy,
        children: Sequence[ChildSpec],
        *,
        max_restarts: int = 3,
        window: float = 5.0,
    ) -> None:
        self.strategy: Strategy = check_strategy(strategy)
        self.children = check_children(children)
        self.intensity = Intensity(max_restarts, window)

    async def __call__(self, context: Context) -> None:
        """Supervise until stopped."""
        await _Run(self, context).main()

    def as_child(self, id: str, *, backoff: tuple[float, float] | None = None) -> ChildSpec:
        """Return the spec of this supervisor as a child of another, or as the root of a tree."""
        return ChildSpec(id, self, type="supervisor", backoff=backoff)


@dataclass(frozen=True, eq=False, slots=True)
class _Due:
    """A message that the delay before a restart is over."""

    failed: int
    start: tuple[int, ...]


_Message: TypeAlias = Down | _Due
_Failure: TypeAlias = tuple[int, Exit]


class _Run:
    """One run of a supervisor."""

    def __init__(self, plan: Supervisor, context: Context) -> None:
        self._plan = plan
        self._context = context
        self._node = context.node
        self._children = [ChildSlot(spec) for spec in plan.children]
        self._kinds: list[RestartKind] = [spec.restart for spec in plan.children]
        self._history: History = ()
        self._inbox: asyncio.Queue[_Message] = asyncio.Queue()
        self._due: dict[int, _Due] = {}

    async def main(self) -> None:
        self._context.shows(lambda: [child.view() for child in self._children])
        try:
            for child in self._children:
                await self._start(child)
            await self._context.started()
            while True:
                await self._handle(await self._inbox.get())
        finally:
            for child in reversed(self._children):
                child.stop_waiting()
                await stop_uncancellably(child.process, child.spec.shutdown_limit)

    async def _handle(self, message: _Message) -> None:
        failure: _Failure | None = None
        match message:
            case Down(process, reason):
                index = self._place_of(process)
                failure = (index, reason) if index is not None else None
            case _Due(failed, start):
                # Another restart may have included these children in the meantime.
                if self._due.get(failed) is message:
                    del self._due[failed]
                    failure = await self._start_again(start)
        while failure is not None:
            failure = await self._recover(*failure)

    def _place_of(self, process: Process) -> int | None:
        """Return the index of the child with this current process, or None."""
        return next((n for n, child in enumerate(self._children) if child.is_filled_by(process)), None)

    async def _recover(self, failed: int, reason: Exit) -> _Failure | None:
        """Carry out the policy's decision. Return the next failure if a restart fails."""
        child = self._children[failed]
        child.empty()
        now = self._node.clock.now()
        verdict = decide(
            self._plan.strategy,
            self._kinds,
            failed,
            reason,
            self._history,
            now,
            intensity=self._plan.intensity,
            counted=child.spec.backoff is None,
        )
        match verdict:
            case NoRestart():
                return None
            case Escalate():
                raise intensity_exceeded(self._context, child, reason, self._plan.intensity)
            case RestartChildren(stop, start, history):
                self._history = history
                await self._stop_siblings(stop)
                return await self._start_later(failed, start, child.next_delay(now), reason)

    async def _stop_siblings(self, indices: tuple[int, ...]) -> None:
        for index in indices:
            child = self._children[index]
            self._cancel_due(index)
            if child.process is not None:
                child.process.begin_stop(child.spec.shutdown_limit)
                await child.process.wait_dead()
                child.empty()

    async def _start_later(
        self, failed: int, start: tuple[int, ...], delay: float, reason: Exit
    ) -> _Failure | None:
        self._cancel_due(failed)
        if not delay:
            return await self._start_again(start, reason)
        child = self._children[failed]
        due = self._due[failed] = _Due(failed, start)
        child.wait(self._node.clock, delay, lambda: self._inbox.put_nowait(due))
        self._node.report("delayed", self._path(child), reason, f"for {delay:g} s")
        return None

    async def _start_again(self, indices: tuple[int, ...], reason: Exit | None = None) -> _Failure | None:
        for index in indices:
            child = self._children[index]
            child.restarts += 1
            self._node.report("restarting", self._path(child), reason, f"restart {child.restarts}")
            try:
                await self._start(child)
            except StartFailed as error:
                # The remaining children are started together with this child. For every strategy, the decision
                # on this failure includes them.
                return index, crash(error.__cause__ or error)
        return None

    async def _start(self, child: ChildSlot) -> None:
        process = self._context.spawn(child.spec)
        child.fill(process)
        await process.wait_started()
        # The monitor is only registered now, because the line above already reports a failed start.
        process.monitor(self._inbox.put_nowait)

    def _cancel_due(self, index: int) -> None:
        self._due.pop(index, None)
        self._children[index].stop_waiting()

    def _path(self, child: ChildSlot) -> str:
        return f"{self._context.path}/{child.spec.id}"


def intensity_exceeded(
    context: Context, child: ChildSlot, reason: Exit, intensity: Intensity
) -> IntensityExceeded:
    """Report that a supervisor fails, and return its error."""
    limit = f"more than {intensity.max_restarts} restarts in {intensity.window:g} s"
    context.process.node.report(
        "gave_up",
        context.path,
        reason,
        f"restart intensity exceeded with {limit}; last child {child.spec.id!r}",
    )
    error = IntensityExceeded(
        f"{context.path} exceeded its restart intensity with {limit}; last child {child.spec.id!r} ({reason})"
    )
    error.__cause__ = reason.error
    return error


async def stop_uncancellably(process: Process | None, limit: Shutdown) -> None:
    """Stop a process in order, even if the caller is cancelled meanwhile, also repeatedly: the timeout limits
    the wait.
    """
    if process is None:
        return
    process.begin_stop(limit)
    while process.alive:
        try:
            await process.wait_dead()
        except asyncio.CancelledError:
            continue
