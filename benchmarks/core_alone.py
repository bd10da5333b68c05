"""A minimal worker on Temporal's Core with hard-coded completions of two workflows: the lower bound for any Python worker."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import temporalio.bridge.proto.activity_task
import temporalio.bridge.proto.workflow_activation
import temporalio.bridge.proto.workflow_completion
import temporalio.bridge.worker as bridge
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto import ActivityTaskCompletion
from temporalio.bridge.temporal_sdk_bridge import PollShutdownError  # type: ignore[import-not-found]
from temporalio.runtime import Runtime

WorkflowActivation = temporalio.bridge.proto.workflow_activation.WorkflowActivation
RemoveFromCache = temporalio.bridge.proto.workflow_activation.RemoveFromCache
WorkflowActivationCompletion = temporalio.bridge.proto.workflow_completion.WorkflowActivationCompletion
ActivityTask = temporalio.bridge.proto.activity_task.ActivityTask

_ROUTINE = (
    RemoveFromCache.CACHE_FULL,
    RemoveFromCache.LANG_REQUESTED,
    RemoveFromCache.WORKFLOW_EXECUTION_ENDING,
)


@dataclass
class _Progress:
    """Progress of one `Sequence` run."""

    steps: int
    done: int = 0
    total: int = 0


class Answers:
    """Completions for the activations of `Sequence` and `Idle`."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.runs: dict[str, _Progress | None] = {}

    def answer(self, data: bytes) -> tuple[bytes, bool]:
        """Return the completion of an activation, and whether the activation was an eviction."""
        activation = WorkflowActivation.FromString(data)
        completion = WorkflowActivationCompletion(run_id=activation.run_id)
        completion.successful.SetInParent()
        is_eviction = False
        for job in activation.jobs:
            match job.WhichOneof("variant"):
                case "initialize_workflow":
                    self._initialize(activation.run_id, job.initialize_workflow, completion)
                case "resolve_activity":
                    value = int(json.loads(job.resolve_activity.result.completed.result.data))
                    self._resolve_activity(activation.run_id, value, completion)
                case "remove_from_cache":
                    is_eviction = True
                    self.runs.pop(activation.run_id, None)
                    if job.remove_from_cache.reason not in _ROUTINE:
                        raise RuntimeError(job.remove_from_cache.message)
        return completion.SerializeToString(), is_eviction

    def _initialize(self, run_id: str, job: Any, completion: Any) -> None:
        if job.workflow_type == "Idle":
            self.runs[run_id] = None
            return
        progress = self.runs[run_id] = _Progress(json.loads(job.arguments[0].data))
        self._add_next_command(progress, completion)

    def _resolve_activity(self, run_id: str, value: int, completion: Any) -> None:
        progress = self.runs[run_id]
        assert progress is not None
        progress.done += 1
        progress.total += value
        self._add_next_command(progress, completion)

    def _add_next_command(self, progress: _Progress, completion: Any) -> None:
        command = completion.successful.commands.add()
        if progress.done == progress.steps:
            command.complete_workflow_execution.result.CopyFrom(_payload(progress.total))
            return
        schedule = command.schedule_activity
        schedule.seq = progress.done + 1
        schedule.activity_id = str(progress.done + 1)
        schedule.activity_type = "echo"
        schedule.task_queue = self.queue
        schedule.arguments.add().CopyFrom(_payload(progress.done))
        schedule.start_to_close_timeout.seconds = 30


async def replay(history: bytes, times: int) -> None:
    """Replay a history `times` times on one replay worker."""
    worker, pusher = bridge.Worker.for_replay(Runtime.default()._core_runtime, config("bench", replay=True))
    core: Any = worker._ref
    answers = Answers("bench")
    try:
        for number in range(times):
            await pusher.push_history(f"bench-{number}", history)
            is_eviction = False
            while not is_eviction:
                completion, is_eviction = answers.answer(await core.poll_workflow_activation())
                await core.complete_workflow_activation(completion)
    finally:
        pusher.close()
        worker.initiate_shutdown()
        try:
            while True:
                completion, _ = answers.answer(await core.poll_workflow_activation())
                await core.complete_workflow_activation(completion)
        except PollShutdownError:
            pass
        await worker.finalize_shutdown()


async def serve(client: Any, queue: str, stopped: asyncio.Event, cached: int) -> None:
    """Poll and complete workflow and activity tasks until `stopped` is set."""
    connected = await client.service_client._connected_client()
    worker = bridge.Worker.create(connected, config(queue, cached=cached))
    await worker.validate()
    core: Any = worker._ref
    answers = Answers(queue)
    tasks: set[asyncio.Task[None]] = set()

    async def workflows() -> None:
        try:
            while True:
                data = await core.poll_workflow_activation()
                completion, _ = answers.answer(data)
                task = asyncio.ensure_future(core.complete_workflow_activation(completion))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        except PollShutdownError:
            return

    async def activities() -> None:
        try:
            while True:
                task = ActivityTask.FromString(await core.poll_activity_task())
                if task.HasField("start"):
                    done = ActivityTaskCompletion(task_token=task.task_token)
                    done.result.completed.result.CopyFrom(task.start.input[0])
                    await core.complete_activity_task(done.SerializeToString())
        except PollShutdownError:
            return

    loops = asyncio.gather(workflows(), activities())
    await stopped.wait()
    worker.initiate_shutdown()
    await loops
    await worker.finalize_shutdown()


def config(queue: str, *, replay: bool = False, cached: int = 100) -> bridge.WorkerConfig:
    """Return the Core configuration of the worker."""
    slots = bridge.FixedSizeSlotSupplier(2 if replay else 100)
    pollers = bridge.PollerBehaviorSimpleMaximum(2 if replay else 5)
    return bridge.WorkerConfig(
        namespace="default",
        task_queue=queue,
        identity_override=None,
        nondeterminism_as_workflow_fail=False,
        nondeterminism_as_workflow_fail_for_types=set(),
        max_cached_workflows=2 if replay else cached,
        tuner=bridge.TunerHolder(slots, slots, slots, slots),
        nonsticky_to_sticky_poll_ratio=0.2,
        no_remote_activities=replay,
        disable_payload_error_limit=True,
        task_types=bridge.WorkerTaskTypes(True, not replay, not replay, False),
        sticky_queue_schedule_to_start_timeout_millis=10_000,
        max_heartbeat_throttle_interval_millis=60_000,
        default_heartbeat_throttle_interval_millis=30_000,
        max_activities_per_second=None,
        max_task_queue_activities_per_second=None,
        max_eager_activity_reservations_per_workflow_task=3,
        graceful_shutdown_period_millis=0,
        versioning_strategy=bridge.WorkerVersioningStrategyNone(build_id_no_versioning="bench"),
        workflow_task_poller_behavior=pollers,
        activity_task_poller_behavior=pollers,
        nexus_task_poller_behavior=pollers,
        plugins=[],
        storage_drivers=set(),
    )


def _payload(value: int) -> Payload:
    return Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(value).encode())
