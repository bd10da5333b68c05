"""Slots, pollers and rates of a worker on each engine, and rejected options."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from hourglass import activity, workflow
from hourglass.client import Client
from hourglass.errors import UsageError
from hourglass.testing import DevServer
from hourglass.worker import (
    CustomSlotSupplier,
    FixedSizeSlotSupplier,
    PollerBehaviorAutoscaling,
    PollerBehaviorSimpleMaximum,
    ResourceBasedSlotConfig,
    ResourceBasedSlotSupplier,
    ResourceBasedTunerConfig,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    Worker,
    WorkerTuner,
)

LIMIT = 60


@activity.defn(start_to_close_timeout=LIMIT)
def double(number: int) -> int:
    return 2 * number


@workflow.defn
def doubles(number: int) -> int:
    return double(number) + double.local(number)


HALF = ResourceBasedTunerConfig(0.5, 0.5)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: FixedSizeSlotSupplier(0), "num_slots"),
        (lambda: ResourceBasedTunerConfig(1.5, 0.5), "target_memory_usage must be a number from 0 to 1"),
        (lambda: ResourceBasedSlotConfig(minimum_slots=9, maximum_slots=3), "greater than maximum_slots"),
        (lambda: PollerBehaviorAutoscaling(minimum=5, maximum=3), "minimum <= initial <= maximum"),
        (lambda: PollerBehaviorSimpleMaximum(0), "maximum"),
        (
            lambda: WorkerTuner.create_composite(activity_supplier=5),
            "activity_supplier must be a slot supplier",
        ),
        (
            lambda: WorkerTuner.create_composite(
                activity_supplier=ResourceBasedSlotSupplier(ResourceBasedSlotConfig(), HALF),
                workflow_supplier=ResourceBasedSlotSupplier(
                    ResourceBasedSlotConfig(), ResourceBasedTunerConfig(0.9, 0.5)
                ),
            ),
            "same tuner_config",
        ),
    ],
)
def test_invalid_slot_supplier_and_poller_options_are_rejected(make: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        make()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"tuner": 5}, "must be a WorkerTuner"),
        (
            {"tuner": WorkerTuner.create_fixed(), "max_concurrent_activities": 7},
            "tuner and max_concurrent_activities both",
        ),
        ({"nonsticky_to_sticky_poll_ratio": 0}, "nonsticky_to_sticky_poll_ratio"),
        ({"max_task_queue_activities_per_second": 0.0}, "must be above 0"),
        ({"max_activities_per_second": -1.0}, "must be above 0"),
        ({"max_eager_activity_reservations_per_workflow_task": -1}, "must not be negative"),
        ({"workflow_task_poller_behavior": 5}, "must be a PollerBehavior"),
        ({"workflows": (), "no_remote_activities": True}, "must execute remote activities"),
    ],
)
def test_invalid_slot_and_rate_options_of_a_worker_are_rejected(options: dict[str, Any], why: str) -> None:
    with Client.connect("local:") as client, pytest.raises(UsageError, match=why):
        Worker(client, **{"workflows": [doubles], "activities": [double], **options})


@pytest.mark.parametrize("target", ["local:", "local:{}/runs.db"])
def test_embedded_engine_rejects_tuners_and_queue_rates_but_accepts_fixed_slots(
    target: str, tmp_path: Any
) -> None:
    unsupported = [
        (
            {"tuner": WorkerTuner.create_resource_based(target_memory_usage=0.8, target_cpu_usage=0.9)},
            "create_fixed",
        ),
        ({"max_task_queue_activities_per_second": 5.0}, "hourglass.limits.throttle"),
    ]
    with Client.connect(target.format(tmp_path)) as client:
        for options, way_out in unsupported:
            with pytest.raises(UsageError, match=way_out):
                Worker(client, workflows=[doubles], activities=[double], **options).start()
        with Worker(
            client,
            workflows=[doubles],
            activities=[double],
            tuner=WorkerTuner.create_fixed(workflow_slots=2, activity_slots=3),
            workflow_task_poller_behavior=PollerBehaviorAutoscaling(),
            activity_task_poller_behavior=PollerBehaviorSimpleMaximum(2),
            nonsticky_to_sticky_poll_ratio=0.5,
            disable_eager_activity_execution=True,
        ) as worker:
            assert worker.statistics().activity_slots == 3
            assert client.execute_workflow(doubles, 2) == 8


@pytest.mark.parametrize("where", ["memory", pytest.param("server", marks=pytest.mark.server)])
def test_worker_without_remote_activities_runs_local_activities_only(
    where: str, request: pytest.FixtureRequest
) -> None:
    server: DevServer | None = request.getfixturevalue("quick_server") if where == "server" else None
    with Client.connect(server.target if server else "local:") as client:
        first = Worker(
            client,
            "remote",
            workflows=[doubles],
            activities=[double],
            no_remote_activities=True,
            identity="first",
        )
        with first:
            run = client.start_workflow(doubles, 3, task_queue="remote")
            while not any(pending.activity_type == "double" for pending in run.describe().pending_activities):
                pass
            assert client.describe_task_queue("remote").activity_pollers == ()
        with Worker(client, "remote", workflows=[doubles], activities=[double]):
            assert run.result(timeout=LIMIT) == 12


class CountingSupplier(CustomSlotSupplier):
    """A supplier of a fixed number of slots that raises on its first use."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.lock = threading.Lock()
        self.free = threading.Semaphore(most)
        self.raised = False
        self.kinds: set[str] = set()
        self.used: list[str] = []
        self.released = 0
        self.threads: set[str] = set()

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:

        self.threads.add(threading.current_thread().name)
        self.kinds.add(f"{ctx.slot_type} {ctx.task_queue}")
        if not self.raised:
            self.raised = True
            raise OSError("not yet")
        while not self.free.acquire(blocking=False):  # noqa: ASYNC110 - released by other threads
            await asyncio.sleep(0.01)
        return SlotPermit()

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        return SlotPermit() if self.free.acquire(blocking=False) else None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        self.used.append(str(getattr(ctx.slot_info, "activity_type", "")))

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        self.free.release()
        with self.lock:
            self.released += 1


@pytest.mark.server
def test_custom_slot_supplier_is_used_and_its_errors_are_logged(
    quick_server: DevServer, caplog: pytest.LogCaptureFixture
) -> None:
    supplier = CountingSupplier(2)
    tuner = WorkerTuner.create_composite(
        activity_supplier=supplier,
        workflow_supplier=ResourceBasedSlotSupplier(
            ResourceBasedSlotConfig(), ResourceBasedTunerConfig(0.99, 1.0)
        ),
        local_activity_supplier=FixedSizeSlotSupplier(3),
    )
    with (
        Client.connect(quick_server.target) as client,
        Worker(
            client,
            "slots",
            workflows=[doubles],
            activities=[double],
            tuner=tuner,
            disable_eager_activity_execution=True,
            max_task_queue_activities_per_second=1000.0,
        ),
    ):
        runs = [client.start_workflow(doubles, number, task_queue="slots") for number in range(5)]
        assert [run.result(timeout=LIMIT) for run in runs] == [0, 4, 8, 12, 16]
    assert supplier.used == ["double"] * 5
    assert supplier.released >= 5
    assert supplier.kinds == {"activity slots"}
    assert supplier.threads == {"hourglass-slots"}
    assert "the slot supplier CountingSupplier raised an exception in reserve_slot" in caplog.text


@pytest.mark.server
def test_worker_with_autoscaling_pollers_and_resource_based_slots_runs_workflows(
    quick_server: DevServer,
) -> None:
    with (
        Client.connect(quick_server.target) as client,
        Worker(
            client,
            "scaled",
            workflows=[doubles],
            activities=[double],
            tuner=WorkerTuner.create_resource_based(
                target_memory_usage=0.99,
                target_cpu_usage=1.0,
                activity_config=ResourceBasedSlotConfig(minimum_slots=2, ramp_throttle=0.001),
            ),
            workflow_task_poller_behavior=PollerBehaviorAutoscaling(minimum=1, maximum=20, initial=2),
            activity_task_poller_behavior=PollerBehaviorAutoscaling(minimum=1, maximum=20, initial=2),
            nonsticky_to_sticky_poll_ratio=0.5,
        ) as worker,
    ):
        assert worker.statistics().activity_slots == 500
        assert client.execute_workflow(doubles, 4, task_queue="scaled") == 16
