"""A world for supervision tests: a manual clock, controllable workers, and a check that no task is left.

Time passes only in `World.advance`. `World.settle` runs the loop until no callback without a delay is left.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import heapq
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

from hourglass._supervision import (
    ChildSpec,
    Context,
    Process,
    SupervisionReport,
    Supervisor,
    Tree,
    start_tree,
)

TURNS = 60  # turns of the loop; far more than these tests need


class Boom(Exception):
    """The error that workers crash with."""


class ManualTimer:
    """A timer of `ManualClock`."""

    def __init__(self, due: float, number: int, callback: Callable[[], object]) -> None:
        self.key = (due, number)
        self.callback = callback
        self.cancelled = False

    def __lt__(self, other: ManualTimer) -> bool:
        return self.key < other.key

    def cancel(self) -> None:
        self.cancelled = True


class ManualClock:
    """A clock that moves only on request."""

    def __init__(self) -> None:
        self.time = 0.0
        self._timers: list[ManualTimer] = []
        self._count = 0

    def now(self) -> float:
        return self.time

    def call_later(self, delay: float, callback: Callable[[], object]) -> ManualTimer:
        self._count += 1
        timer = ManualTimer(self.time + delay, self._count, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def pending(self) -> int:
        return sum(not timer.cancelled for timer in self._timers)

    def fire_next(self, until: float) -> bool:
        """Fire the next timer due until then, and return whether there was one."""
        while self._timers and self._timers[0].key[0] <= until:
            timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                self.time = timer.key[0]
                timer.callback()
                return True
        self.time = until
        return False


class World:
    """Workers, their log, their reports and their clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.log: list[str] = []  # "+a": the body of `a` has begun; "-a": it has ended
        self.reports: list[SupervisionReport] = []
        self.refusals: dict[str, int] = {}  # by id: the number of next starts that fail
        self._mail: dict[str, asyncio.Future[object]] = {}
        self._trees: list[Tree] = []

    # --- workers ----------------------------------------------------------------------------------

    def worker(self, id: str, **options: Any) -> ChildSpec:
        """Return the spec of a worker that waits for `crash` and `finish`."""
        return ChildSpec(id, self.body(id), **options)

    def body(self, id: str) -> Callable[[Context], Any]:
        """Return the body of such a worker."""

        async def run(context: Context) -> None:
            self.log.append(f"+{id}")
            try:
                if self.refusals.get(id, 0):
                    self.refusals[id] -= 1
                    raise Boom
                mail = self._mail[context.path] = asyncio.get_running_loop().create_future()
                await context.started(id)
                await mail
            finally:
                self.log.append(f"-{id}")

        return run

    async def crash(self, path: str) -> None:
        """Make a worker raise, and wait for the consequences."""
        self._mail[path].set_exception(Boom())
        await self.settle()

    async def finish(self, path: str) -> None:
        """Make a worker return."""
        self._mail[path].set_result(None)
        await self.settle()

    # --- trees ------------------------------------------------------------------------------------

    async def start(self, *children: ChildSpec, strategy: Any = "one_for_one", **options: Any) -> Tree:
        """Start a tree whose root, `App`, supervises these children."""
        return await self.grow(Supervisor(strategy, children, **options).as_child("App"))

    async def grow(self, root: ChildSpec, **options: Any) -> Tree:
        """Start a tree with this root; it is stopped when the test ends."""
        tree = await start_tree(root, clock=self.clock, sink=self.reports.append, **options)
        self._trees.append(tree)
        return tree

    async def close(self) -> None:
        """Stop all trees."""
        for tree in self._trees:
            await tree.stop()

    # --- time -------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Run everything that needs no time."""
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Advance the clock timer by timer."""
        until = self.clock.time + seconds
        await self.settle()
        while self.clock.fire_next(until):
            await self.settle()

    def take_log(self) -> list[str]:
        """Return the log since the last call."""
        log, self.log = self.log, []
        return log

    def reported(self, kind: str) -> list[str]:
        """Return the paths of all reports of this kind."""
        return [report.path for report in self.reports if report.kind == kind]


async def ignores_cancellation(context: Context) -> None:
    """A body that must be killed."""
    await context.started()
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def never_starts(context: Context) -> None:
    """A body that never reports its start."""
    await asyncio.Event().wait()


def starts_when(ready: asyncio.Event) -> Callable[[Context], Any]:
    """Return a body that reports its start when an event is set."""

    async def body(context: Context) -> None:
        await ready.wait()
        await context.started()
        await asyncio.Event().wait()

    return body


def restarts(tree: Tree, path: str) -> int:
    """Return how often the child at this path was restarted."""
    above, _, id = path.rpartition("/")
    return next(view.restarts for view in tree.find(above).family() if view.id == id)


def processes(tree: Tree) -> dict[str, Process]:
    """Return every living process by its path."""
    return {path: tree.find(path) for path in tree.paths()}


def run_in_world(
    scenario: Callable[[World], Awaitable[None]], new_loop: Callable[[], Any] | None = None
) -> None:
    """Run a scenario in a new world on a new loop; afterwards no task and no timer may be left."""

    async def main() -> None:
        world = World()
        await scenario(world)
        await world.close()
        gc.collect()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left: {left}"
        assert not world.clock.pending(), "timers are left"

    with asyncio.Runner(loop_factory=new_loop, debug=new_loop is None) as runner:
        runner.run(main())


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test, whose first parameter is a world, on asyncio's loop (in debug mode) and on uvloop's."""

    @functools.wraps(test)
    def run(**parameters: Any) -> None:
        for new_loop in (None, uvloop.new_event_loop):
            run_in_world(lambda world: test(world, **parameters), new_loop)

    del run.__wrapped__
    _, *rest = inspect.signature(test).parameters.values()
    run.__signature__ = inspect.Signature(rest)  # type: ignore[attr-defined]
    return run
