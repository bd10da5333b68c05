"""A task queue of an environment: the worker's dispatch, run on the test's thread.

A queue has the parts that a worker process has for a task queue: a handle with its record, evaluations, an activity
executor, and the dispatch with its jobs. The code that completes activations, reports results, requests evictions and
withholds the results of local activities is the worker's. These parts differ:

- An item that the handle delivers becomes a step of the driver, and the step passes the item to the dispatch.
- The driver evaluates activations immediately instead of passing them to lanes, because lanes are threads and
  a test has only one.
- Jobs have no supervisor process, because no job can be killed between two steps.
- The result of an attempt that ran on another thread reaches the engine in a separate step.

A crash drops the state that a worker loses with its process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

from hourglass._contract.handle import ActivityItem, ActivityResult, ActivityTask, HandleConfig
from hourglass._contract.service import Connection
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._evaluator.commands import Completion, Succeeded
from hourglass._evaluator.events import Activation
from hourglass._evaluator.specs import Payloads
from hourglass._supervision import Job, Process, ProcessState, Reports, TaskSupervisor
from hourglass._supervision.node import GRACE, Node
from hourglass._worker.activities.attempts import Attempt, Report
from hourglass._worker.activities.executors import ActivityExecutor
from hourglass._worker.activities.publishing import ProgressSender
from hourglass._worker.activities.reporting import ResultSender
from hourglass._worker.handles.handles import HandleRecord, HandleTables
from hourglass._worker.handles.holder import BridgeHolder
from hourglass._worker.handles.life import HandleSignal
from hourglass._worker.lanes.cache import Key
from hourglass._worker.lanes.evaluation import Evaluations, Verdict
from hourglass._worker.tree.dispatch import Dispatch
from hourglass.errors import InternalError
from hourglass.testing._activities import (
    HEARTBEAT_INTERVAL,
    EnvironmentActivities,
    EnvironmentMailbox,
    EnvironmentRunner,
    PlannedFault,
)
from hourglass.testing._quiet_loop import QuietLoop
from hourglass.testing._steps import Step

if TYPE_CHECKING:
    from hourglass.testing._driver import EnvironmentDriver

J = TypeVar("J", bound=Job)

IDENTITY = "test-worker"

_UNLIMITED = 1_000_000  # no task waits for a slot


class EnvironmentExecutor(ActivityExecutor):
    """The worker's executor, but results may be reported in a later step or not at all."""

    runner: EnvironmentRunner
    steps: EnvironmentDriver
    loop: QuietLoop

    def begin(self, task: ActivityTask, report: Report, generation: int = 0) -> Attempt:
        """Start an attempt. If it runs on another thread, its result becomes a step; otherwise the result is reported
        immediately. A result that a fault loses is never reported.
        """
        return super().begin(task, partial(self._executed, report), generation)

    def _executed(self, report: Report, result: ActivityResult) -> None:
        running = self.runner.ended(result)

        def report_result() -> None:
            if running is None or not running.fault.result_lost:
                self.loop.call(report, result)

        if running is not None and running.is_elsewhere:
            self.steps.add(Step("ended", running.name, report_result))
        else:
            report_result()


class EnvironmentJobs(TaskSupervisor):
    """The jobs of a dispatch, under a process that is always running."""

    def __init__(self) -> None:
        super().__init__()
        self._process = Process(Node(None, Reports(), grace=GRACE), "Environment", None)
        self._process.state = ProcessState.RUNNING
        self._count = 0

    def spawn_job(self, kind: type[J], name: str = "job") -> J:
        """Create a job."""
        self._count += 1
        return kind(self._process, name, self._count)


class ServedQueue:
    """A task queue. Implements `TaskServices` and `ActivationLanes`. Must be used on the environment's thread."""

    notes = None

    def __init__(
        self,
        name: str,
        connection: Connection,
        loop: QuietLoop,
        make_evaluations: Callable[[str], Evaluations],
        stage: EnvironmentActivities,
        driver: EnvironmentDriver,
    ) -> None:
        """Create the queue. Called on the event loop."""
        self.queue = name
        self._connection = connection
        self._loop = loop
        self._make_evaluations = make_evaluations
        self._driver = driver
        self.runner = EnvironmentRunner(stage, driver)
        self.executor = EnvironmentExecutor(
            stage.equipment,
            self._heartbeat,
            lambda _: self.runner,
            heartbeat_interval=HEARTBEAT_INTERVAL,
            publisher=ProgressSender(connection, converter=stage.equipment.converter),
            mailbox=EnvironmentMailbox(loop),
            timers=stage.timers,
            is_quiet=True,
        )
        self.executor.runner, self.executor.steps, self.executor.loop = self.runner, driver, loop
        self.sender = ResultSender(connection, converter=stage.equipment.converter)

    async def open(self) -> None:
        """Open a handle and create the state of a worker process. Called on the event loop."""
        self.evaluations = self._make_evaluations(self.queue)
        config = HandleConfig(
            task_queue=self.queue,
            identity=IDENTITY,
            max_cached_workflows=_UNLIMITED,
            max_concurrent_workflow_tasks=_UNLIMITED,
            max_concurrent_activities=_UNLIMITED,
            max_concurrent_local_activities=_UNLIMITED,
        )
        tables, jobs = HandleTables(), EnvironmentJobs()
        self._dispatch = Dispatch(tables, jobs, jobs)
        self._dispatch.holder = BridgeHolder(_reject_connection, shared=self._connection, tables=tables)
        handle = await self._connection.open_handle(config)
        assert isinstance(handle, EngineHandle)  # the engine of an environment runs in this thread
        self.handle = handle
        self.record = record = tables.enter(config, handle, self._connection)
        record.apply_signal(HandleSignal.OPENED)
        record.activations.attach(self._arrived)
        record.activities.attach(self._arrived)

    @property
    def lanes(self) -> ServedQueue:
        """The queue itself, which takes the place of the lanes."""
        return self

    def begin(self, item: Activation | ActivityItem, fault: PlannedFault | None = None) -> None:
        """Pass an item to the dispatch, with the planned fault if there is one."""
        if isinstance(item, Activation):
            self._dispatch.activation(self, self.record, item)
            return
        if fault is not None:
            self.runner.plan(item.token, fault)
        self._dispatch.activity(self, self.record, item)

    def submit(
        self, activation: Activation, reply: Callable[[Verdict], object], *, generation: int = 0
    ) -> None:
        """Let the driver evaluate an activation."""
        self._driver.evaluate(self, activation, partial(self._loop.call, reply), generation)

    def attempt_ended(self, run_id: str, activity_id: str) -> None:
        """Do nothing, because no run is withheld until its local activities end."""

    def code_of(self, workflow_type: str) -> str:
        """Return "", because there are no notes about running code."""
        return ""

    def evicted(self, record: HandleRecord, run_id: str) -> None:
        """Drop a run that the engine evicted without an activation."""
        entry = self.evaluations.context.cache.discard(Key(self.queue, run_id, record.generation))
        if entry is not None:
            self.evaluations.drop(entry)
        record.runs.evicted(run_id)

    def crash(self) -> None:
        """Drop the state that a worker loses with its process, and reopen the queue."""
        self._drop()
        self._loop.do(self.open())

    def close(self) -> None:
        """Drop all fibers on their own thread, and close the handle."""
        self._drop()
        self.executor.stop()

    def _arrived(self, item: Activation | ActivityItem) -> None:
        self._driver.arrived(self, item)

    def _heartbeat(self, token: bytes, details: Payloads) -> None:
        self.handle.heartbeat(token, details)

    def _drop(self) -> None:
        for attempt in list(self.executor.attempts.values()):
            self.executor.abandon(attempt)
        self.runner.abandon()
        self.evaluations.close()
        self.record.detach()
        self._loop.do(self.handle.finalize())


async def _reject_connection() -> NoReturn:
    raise InternalError("an environment has only one connection")


def queues_of(completion: Completion) -> list[str]:
    """Return the task queues that the commands of a completion name."""
    if not isinstance(completion, Succeeded):
        return []
    names: list[str] = []
    for command in completion.commands:
        name = getattr(getattr(command, "spec", None), "task_queue", "")
        if name and isinstance(name, str):
            names.append(name)
    return names
