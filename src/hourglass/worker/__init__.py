"""`Worker`: runs the workflows and activities of one task queue.

    with Client.connect("local:") as client, Worker(client, workflows=[checkout], activities=[charge]):
        ...

or, as a separate program, `Worker(client, modules=["app"]).run()`, which ends on Ctrl-C or SIGTERM.

    _plan     the worker's options, validated and converted to a plan
    _worker   the worker: its options, its start and shutdown, and the change of its client
"""

from __future__ import annotations

from hourglass._contract.engine_status import WorkerProcess
from hourglass._contract.tuning import (
    ActivitySlotInfo,
    CustomSlotSupplier,
    FixedSizeSlotSupplier,
    LocalActivitySlotInfo,
    NexusSlotInfo,
    PollerBehavior,
    PollerBehaviorAutoscaling,
    PollerBehaviorSimpleMaximum,
    ResourceBasedSlotConfig,
    ResourceBasedSlotSupplier,
    ResourceBasedTunerConfig,
    SlotInfo,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    SlotSupplier,
    WorkerTuner,
    WorkflowSlotInfo,
)
from hourglass._evaluator.specs import VersioningBehavior, WorkerDeploymentVersion
from hourglass._worker.tree.plan import WorkerDeploymentConfig
from hourglass._worker.tree.worker_view import WorkerStatistics, WorkerTree
from hourglass.client._interception import Interceptor
from hourglass.client._plugins import WorkerConfig
from hourglass.worker._worker import Worker
from hourglass.workflow._facts import PatchActivationInput

__all__ = [
    "ActivitySlotInfo",
    "CustomSlotSupplier",
    "FixedSizeSlotSupplier",
    "Interceptor",
    "LocalActivitySlotInfo",
    "NexusSlotInfo",
    "PatchActivationInput",
    "PollerBehavior",
    "PollerBehaviorAutoscaling",
    "PollerBehaviorSimpleMaximum",
    "ResourceBasedSlotConfig",
    "ResourceBasedSlotSupplier",
    "ResourceBasedTunerConfig",
    "SlotInfo",
    "SlotMarkUsedContext",
    "SlotPermit",
    "SlotReleaseContext",
    "SlotReserveContext",
    "SlotSupplier",
    "VersioningBehavior",
    "Worker",
    "WorkerConfig",
    "WorkerDeploymentConfig",
    "WorkerDeploymentVersion",
    "WorkerProcess",
    "WorkerStatistics",
    "WorkerTree",
    "WorkerTuner",
    "WorkflowSlotInfo",
]
