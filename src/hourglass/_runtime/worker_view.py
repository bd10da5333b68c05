"""What can be seen of a worker from outside: its figures, and the tree that it is part of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from hourglass._runtime.application import Application
from hourglass._runtime.portal import Portal
from hourglass._runtime.services import QueueServices
from hourglass._runtime.worker_life import State
from hourglass._supervision import Tree

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class WorkerStatistics:
    """A look at a worker. `parked` names each run whose code raised a bug, and what kind of bug, where. `restarts` counts
    those in the whole tree, which the workers of one client share.
    """

    task_queue: str
    state: State
    cached_workflows: int = 0
    live_workflows: int = 0
    parked: dict[str, str] = field(default_factory=dict)
    activations: int = 0
    failed_tasks: int = 0
    cache_misses: int = 0
    open_activations: int = 0
    running_activities: int = 0
    stuck_lanes: int = 0
    restarts: int = 0


def worker_statistics(
    task_queue: str, state: State, app: Application | None, services: Sequence[QueueServices]
) -> WorkerStatistics:
    """From any thread: everything that may change meanwhile is copied in one step."""
    if app is None or not services:
        return WorkerStatistics(task_queue=task_queue, state=state)
    counts = [each for one in services for each in one.lanes.counts()]
    queues = {one.queue for one in services}
    handles = [each for each in list(app.tables.records.values()) if each.queue in queues]
    return WorkerStatistics(
        task_queue=task_queue,
        state=state,
        cached_workflows=sum(each.cached for each in counts),
        live_workflows=sum(each.live for each in counts),
        parked={run: reason for each in counts for run, reason in list(each.parked.items())},
        activations=sum(each.activations for each in counts),
        failed_tasks=sum(each.failed_tasks for each in counts),
        cache_misses=sum(each.misses for each in counts),
        open_activations=sum(len(each.runs.open) for each in handles),
        running_activities=sum(each.executor.running for each in services),
        stuck_lanes=sum(each.lanes.stuck for each in services),
        restarts=app.restarts,
    )


class WorkerTree:
    """The supervision tree of a worker: who is there, in which state, and a way to kill any of them."""

    def __init__(self, portal: Portal, tree: Callable[[], Tree]) -> None:
        self._portal = portal
        self._tree = tree

    def paths(self) -> list[str]:
        """The path of every process that lives, such as `Application/Subsystem/BridgeHolder`."""
        return self._portal.call(self._ask(lambda tree: tree.paths()))

    def render(self) -> str:
        """The tree as a drawing, with states and restarts."""
        return self._portal.call(self._ask(lambda tree: tree.render()))

    def kill(self, path: str) -> None:
        """Kill the process at a path, brutally, with all below it. The worker is to survive it: that is what it is for."""
        self._portal.call(self._ask(lambda tree: tree.kill(path)))

    async def _ask(self, question: Callable[[Tree], T]) -> T:
        return question(self._tree())
