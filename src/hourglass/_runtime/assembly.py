"""Puts the parts of a worker together on the control loop: handle, lanes, executor, and the queue worker over them.

The one place that knows them all. A supervision tree will build the same parts; none of them knows another's
maker.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hourglass._bridge.handle import Handle
from hourglass._bridge.service import Connection
from hourglass._engine.context import RunSettings
from hourglass._runtime.cache import CacheLimits
from hourglass._runtime.codec_edge import CodecHandle
from hourglass._runtime.evaluation import Counts, Evaluations
from hourglass._runtime.executors import ActivityExecutor
from hourglass._runtime.lanes import Lane, Lanes
from hourglass._runtime.plan import Plan
from hourglass._runtime.queue_worker import QueueWorker
from hourglass._runtime.watcher import Watcher


@dataclass(frozen=True)
class Parts:
    """A worker that runs: what its face needs to reach."""

    worker: QueueWorker
    lanes: Lanes

    def counts(self) -> list[Counts]:
        """What each lane has done so far."""
        return self.lanes.counts()


async def assemble(plan: Plan, connection: Connection) -> Parts:
    """Open a handle and start a worker on it. On the control loop."""
    opened = await connection.open_handle(plan.config)
    handle: Handle = opened if plan.codec is None else CodecHandle(opened, plan.codec, plan.converter)
    config = plan.config
    executor = ActivityExecutor(
        plan.resolver,
        plan.converter,
        handle.heartbeat,
        max_threads=config.max_concurrent_activities + config.max_concurrent_local_activities,
    )
    lanes = Lanes([_lane(plan, number, connection.namespace) for number in range(1, plan.lanes + 1)])
    worker = QueueWorker(
        handle,
        lanes,
        executor,
        name=f"worker on {config.task_queue!r}",
        graceful_timeout=plan.graceful_timeout,
    )
    worker.start()
    return Parts(worker, lanes)


def _lane(plan: Plan, number: int, namespace: str) -> Lane:
    config = plan.config
    settings = RunSettings(
        task_queue=config.task_queue,
        namespace=namespace,
        converter=plan.converter,
        failure_exceptions=plan.failure_exceptions,
    )
    # The engine keeps at most so many; evictions that are on their way may stand beside new runs for a
    # moment.
    states = config.max_cached_workflows + config.max_concurrent_workflow_tasks
    evaluations = Evaluations(
        plan.resolver.workflow,
        settings,
        limits=CacheLimits(live=max(1, plan.max_live_workflows // plan.lanes), states=states),
        verify=plan.verify,
        watcher=Watcher(plan.watch) if plan.watch is not None else None,
    )
    return Lane(f"hourglass-lane-{number}", evaluations, asyncio.get_running_loop())
