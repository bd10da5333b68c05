"""Lanes under test: workflows that hang in several ways, a clock that tests advance, and the verdicts by run."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import greenlet

from hourglass import activity
from hourglass._evaluator.commands import CompleteRun, Completion, Succeeded, TaskFailed
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.events import Activation, ActivityCompleted
from hourglass._worker.health.quarantine import Quarantine
from hourglass._worker.lanes.evaluation import LaneContext, Verdict
from hourglass._worker.lanes.hang_detector import CHECK_INTERVAL
from hourglass._worker.lanes.lane import Lane, LaneJob
from hourglass._worker.lanes.lanes import LaneSet
from hourglass._worker.resolver import Resolver
from hourglass.converter import ApplicationFailure, default_converter

from ..scripted import on, payloads, settled, start, workflow

INTERVAL = 0.5  # a quarter of the default timeout


class Stage:
    """State shared between tests and workflows."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun: set[str] = set()
        self.hang = True
        self.threads: dict[str, list[str]] = {}
        self.ended: list[str] = []

    def enter(self, name: str) -> None:
        self.begun.add(name)
        self.threads.setdefault(name, []).append(threading.current_thread().name)


stage = Stage()


@activity.defn
def step(number: int) -> int:
    return number


@workflow
def adds(name: str) -> int:
    """The sum of two steps."""
    try:
        stage.enter(name)
        return step(1) + step(2)
    finally:
        stage.ended.append(name)


def shows_the_loop(text: str) -> bool:
    """Whether a stack ends in the loop of `spins`. Python up to 3.13 interrupts a loop at its head, 3.14 in its body."""
    return "while stage.hang:" in text or "in spins\n    pass\n" in text


@workflow
def spins(name: str) -> int:
    """A step, then an endless loop that can be interrupted."""
    first = step(1)
    stage.enter(name)
    while stage.hang:
        pass
    return first + step(2)


@workflow
def blocks(name: str) -> int:
    """A step, then a wait in C that cannot be interrupted."""
    first = step(1)
    stage.enter(name)
    if stage.hang:
        stage.go.wait()
    return first + step(2)


@workflow
def swallows_exceptions(name: str) -> int:
    """A step, then a loop that swallows every exception."""
    first = step(1)
    stage.enter(name)
    while stage.hang and not stage.go.is_set():
        try:
            while stage.hang and not stage.go.is_set():
                pass
        except BaseException:
            pass
    return first + step(2)


@workflow
def issues_commands_endlessly(name: str) -> int:
    """Swallows every exception and schedules steps endlessly once it has hung."""
    first = step(1)
    stage.enter(name)
    stage.go.wait()
    while True:
        try:
            step(99)
        except BaseException:
            pass
    return first


@workflow
def hangs_while_unwound(name: str) -> int:
    try:
        return step(1)
    finally:
        stage.enter(name)
        while stage.hang:
            pass


WORKFLOWS = [adds, spins, blocks, swallows_exceptions, issues_commands_endlessly, hangs_while_unwound]


class Clock:
    """Monotonic time that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class LaneWorld:
    """Lanes and all their verdicts."""

    def __init__(
        self, count: int, workflows: list[Any], context: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self.clock = Clock()
        self.resolver = Resolver(workflows=workflows)
        self.verdicts: list[tuple[str, Verdict]] = []
        self.replaced: list[tuple[str, str]] = []
        settings = RunSettings(task_queue="q")
        self.lanes = LaneSet(
            LaneContext(
                self.resolver.workflow,
                settings,
                **{"quarantine": Quarantine(clock=self.clock), **context},
            ),
            [f"lane-{n}" for n in range(count)],
            clock=self.clock,
            **options,
        )
        self._replace = self.lanes._replace
        self.lanes._replace = self._note_replaced  # type: ignore[method-assign]

    def current_run(self, lane: str) -> str | None:
        """The run that a lane evaluates."""
        work = self.lanes._places[lane].lane.busy
        return work.activation.run_id if isinstance(work, LaneJob) else None

    def _note_replaced(self, lane: Lane, kind: str, reason: str, *more: Any, **at: Any) -> Lane | None:
        successor = self._replace(lane, kind, reason, *more, **at)
        if successor is not None:
            self.replaced.append((lane.name, f"{kind}: {reason}"))
        return successor

    def submit(self, activation: Activation, **options: Any) -> None:
        self.lanes.submit(
            activation, lambda verdict: self.verdicts.append((activation.run_id, verdict)), **options
        )

    def answers(self, run_id: str) -> list[Completion]:
        return [verdict.completion for name, verdict in self.verdicts if name == run_id]

    async def evaluate(self, activation: Activation, **options: Any) -> Completion:
        """Submit an activation and return its completion."""
        before = len(self.answers(activation.run_id))
        self.submit(activation, **options)
        await settled(lambda: len(self.answers(activation.run_id)) > before)
        return self.answers(activation.run_id)[-1]

    async def begun(self, name: str) -> None:
        """Wait until a workflow is where it hangs."""
        await settled(lambda: name in stage.begun)

    def advance(self, seconds: float) -> None:
        """Advance the clock in steps of a quarter of the deadlock timeout, checking the lanes after each."""
        for _ in range(int(seconds / INTERVAL)):
            self.clock.now += INTERVAL
            self.lanes.check()

    def advance_finely(self, seconds: float = 0.1) -> None:
        """Advance the clock in steps of the hang detector's interval, checking the lanes after each."""
        for _ in range(round(seconds / CHECK_INTERVAL)):
            self.clock.now += CHECK_INTERVAL
            self.lanes.check()

    async def block(self, run_id: str) -> None:
        """Occupy a lane with code that does not return."""
        await self.evaluate(start(run_id, "blocks", run_id))
        self.submit(on(run_id, done(1)))
        await self.begun(run_id)

    async def hang_run(self, run_id: str, workflow: str, **facts: Any) -> TaskFailed:
        """Start a run that hangs in its second activation, and let the hang be detected."""
        await self.evaluate(start(run_id, workflow, run_id, **facts))
        return await self.hang(run_id, on(run_id, done(1)))

    async def hang(self, name: str, activation: Activation) -> TaskFailed:
        """Submit an activation, wait until the run `name` hangs, and let the hang be detected."""
        stage.begun.discard(name)
        self.submit(activation)
        await self.begun(name)
        self.advance(3)
        completion = self.answers(activation.run_id)[-1]
        assert isinstance(completion, TaskFailed)
        return completion


@asynccontextmanager
async def lanes(
    *,
    count: int = 1,
    workflows: list[Any] | None = None,
    context: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[LaneWorld]:
    """Start lanes; afterwards every thread must have ended."""
    stage.__init__()  # type: ignore[misc]
    world = LaneWorld(count, workflows or WORKFLOWS, context or {}, options)
    world.lanes.start()
    try:
        yield world
    finally:
        stage.go.set()
        stage.hang = False
        world.lanes.stop()
        ended = await asyncio.to_thread(world.lanes.join, 10)
    assert ended


def done(seq: int, value: Any = 0) -> ActivityCompleted:
    return ActivityCompleted(seq, default_converter.encode(value))


def completed(run_id: str, value: Any) -> Succeeded:
    return Succeeded(run_id, (CompleteRun(payloads(value)[0]),))


def failure_kind(completion: Completion) -> str:
    """The type of a task failure, "" if the task succeeded."""
    if isinstance(completion, Succeeded):
        return ""
    assert isinstance(completion.failure.info, ApplicationFailure)
    return completion.failure.info.type


def living_fibers() -> int:
    gc.collect()
    return sum(
        isinstance(item, greenlet.greenlet) and bool(item) and item.parent is not None
        for item in gc.get_objects()
    )


def lane_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lane-")]
