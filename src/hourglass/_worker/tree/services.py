"""The services of one task queue that outlive its Worker: lanes, the cache of its runs, the executor of activities.

They are created when a queue is first served and kept while Workers and holders come and go, so that work in progress
survives. They belong to the control loop.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from hourglass._contract.service import EngineService
from hourglass._evaluator.context import RunSettings
from hourglass._evaluator.specs import Payloads
from hourglass._worker import interpreter
from hourglass._worker.activities.executors import ActivityExecutor, ExecutorLimits
from hourglass._worker.activities.publishing import ProgressSender
from hourglass._worker.activities.reporting import HeartbeatSender, ResultSender
from hourglass._worker.activities.runners import WorkerRunner
from hourglass._worker.activity_metrics import ActivityMetrics
from hourglass._worker.handles.handles import HandleRecord
from hourglass._worker.handles.holder import BridgeHolder, WorkerNotRegistered
from hourglass._worker.health import guarded
from hourglass._worker.health.incidents import Incidents, close_incidents, open_incidents
from hourglass._worker.health.quarantine import Quarantine, digest_of
from hourglass._worker.lanes.cache import CacheLimits, Key, StateCache
from hourglass._worker.lanes.evaluation import LaneContext
from hourglass._worker.lanes.lanes import LaneSet
from hourglass._worker.lanes.watcher import Watcher
from hourglass._worker.targets import resolve
from hourglass._worker.tree.plan import Plan
from hourglass.activity._context import Equipment
from hourglass.errors import HourglassError, TargetError


class QueueServices:
    """The services that a queue's tasks use. `holder` returns the current or last holder, and raises `NotRunning` if
    there has been none.
    """

    def __init__(
        self,
        plan: Plan,
        namespace: str,
        service: EngineService,
        holder: Callable[[], BridgeHolder],
        client: Callable[[], Any] | None,
    ) -> None:
        self.plan = plan
        self.queue = plan.config.task_queue
        self.child_id = child_id(self.queue)
        # The states of the queue's runs outlive its Workers, holders and lanes; keys contain the handle's generation.
        self.cache = StateCache(_limits(plan))
        self._incidents = _incidents(service, namespace)
        self.notes = self._incidents.notes if self._incidents is not None else None
        self.lanes: LaneSet = self._make_lanes(namespace)
        self.sender = ResultSender(service, codec=plan.codec, converter=plan.converter)
        self._holder = holder
        self.executor: ActivityExecutor = self._make_executor(namespace, service, client)

    def _make_lanes(self, namespace: str) -> LaneSet:
        plan, process = self.plan, guarded.current()
        return LaneSet(
            LaneContext(
                plan.resolver.workflow,
                _run_settings(plan, namespace, _stacks_of(weakref.ref(self))),
                verify=plan.verify,
                watcher=Watcher(plan.watch) if plan.watch is not None else None,
                cache=self.cache,
                quarantine=Quarantine(self._incidents),
                notes=self.notes,
            ),
            [f"hourglass-lane-{number}" for number in range(1, plan.lanes + 1)],
            deadlock_timeout=plan.deadlock_timeout,
            on_too_many_stuck=process.replace if process is not None else None,
        )

    def _make_executor(
        self, namespace: str, service: EngineService, client: Callable[[], Any] | None
    ) -> ActivityExecutor:
        plan = self.plan
        limits = ExecutorLimits(
            max_processes=plan.max_processes,
            payload_limit=plan.payload_limit,
            payload_warn=plan.payload_warn,
        )
        return ActivityExecutor(
            Equipment(
                converter=plan.converter,
                client=client,
                payload_limit=plan.payload_limit,
                payload_warn=plan.payload_warn,
                inbound=plan.activity_inbound,
                registry=plan.metrics,
                resources=plan.resources,
                variables=None if plan.program_loop is None else plan.program_loop.variables,
            ),
            HeartbeatSender(
                self._heartbeat, service, self._cancel, codec=plan.codec, converter=plan.converter
            ),
            lambda executor: WorkerRunner(
                executor,
                plan.resolver,
                plan.converter,
                max_threads=plan.config.max_concurrent_activities
                + plan.config.max_concurrent_local_activities,
                limits=limits,
                own=plan.activity_executor,
                program_loop=plan.program_loop,
            ),
            limits=limits,
            metrics=ActivityMetrics(plan.metrics, namespace, self.queue),
            publisher=ProgressSender(service, codec=plan.codec, converter=plan.converter),
        )

    def start(self) -> None:
        """Apply the interpreter options and start the lanes. Must be called on the control loop."""
        interpreter.settings.apply(self, self.plan.interpreter)
        self.lanes.start()

    def stop(self) -> None:
        """Make the lanes and the executor finish their work and end their threads. Does not wait."""
        self.lanes.stop()
        self.executor.stop()
        interpreter.settings.restore(self)
        if self._incidents is not None:
            close_incidents(self._incidents)

    def code_of(self, workflow_type: str) -> str:
        """Return a digest of a workflow's code; "" if this worker does not have the workflow."""
        try:
            return digest_of(self.plan.resolver.workflow(workflow_type))
        except HourglassError:
            return ""

    def _heartbeat(self, token: bytes, details: Payloads) -> None:
        generation = self.executor.generation_of(token)
        if generation is None:
            raise WorkerNotRegistered("this attempt has ended")
        self._holder().heartbeat(self.queue, generation, token, details)

    def _cancel(self, token: bytes, reason: str) -> None:
        self.executor.cancel(token, reason)

    def evicted(self, record: HandleRecord, run_id: str) -> None:
        """Drop a run that the engine has evicted without an activation, because no activation of the run is in
        progress.
        """
        generation = record.generation
        self.lanes.forget(generation, run_id)
        state = self.cache.discard(Key(self.queue, run_id, generation))
        if state is not None:  # the run was ended from outside, or its handle drains
            self.lanes.drop(state)
        record.runs.evicted(run_id)


def child_id(queue: str) -> str:
    """Return a queue's name as a path segment: engines allow slashes in it."""
    return queue.replace("%", "%25").replace("/", "%2F")


def _limits(plan: Plan) -> CacheLimits:
    config = plan.config
    return CacheLimits(
        live=max(1, plan.max_live_workflows // plan.lanes),
        # The engine's maximum; pending evictions may overlap with new runs for a moment.
        states=max(config.max_cached_workflows, config.max_busy_workflows)
        + config.max_concurrent_workflow_tasks,
    )


def _incidents(service: EngineService, namespace: str) -> Incidents | None:
    """Return the record of the runs that hung or killed processes of this target; None if no record can be kept."""
    target = getattr(service, "target", "")
    try:
        return open_incidents(resolve(target, namespace=namespace)) if target else None
    except TargetError:
        return None


def _stacks_of(services: weakref.ref[QueueServices]) -> Callable[[str], str]:
    """Return a function that reports the stacks of a run's activities.

    The function keeps only a weak reference to the services, because a lane's thread may outlive them.
    """

    def stacks(run_id: str) -> str:
        current = services()
        return "" if current is None else current.executor.stacks(run_id)

    return stacks


def _run_settings(plan: Plan, namespace: str, stacks: Callable[[str], str]) -> RunSettings:
    return RunSettings(
        task_queue=plan.config.task_queue,
        namespace=namespace,
        converter=plan.converter,
        failure_exceptions=plan.failure_exceptions,
        patch_activation=plan.patch_activation,
        interceptors=plan.workflow_interceptors,
        metrics=plan.metrics,
        steps=plan.resolver.steps,
        check_local_activity=plan.resolver.check_local_activity,
        activity_stacks=stacks,
    )
