"""The number of concurrent tasks and polls of a worker: slot suppliers, tuners and poller behaviours, as data.

A slot is the right to execute one task; a poll needs a free slot. Fixed numbers mean the same on every engine. Suppliers that
depend on the machine or on the author's code work with Core only: an engine that counts slots itself rejects them
(`HandleConfig.refuse_tuning`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from hourglass._evaluator.options import Duration, seconds, whole_number
from hourglass._evaluator.specs import WorkerDeploymentVersion
from hourglass.errors import UsageError

SlotKind: TypeAlias = Literal["workflow", "activity", "local-activity", "nexus"]

MOST_SLOTS = 500
"""The default maximum number of slots of a resource-based supplier."""

_UNKNOWN = 1000  # assumed for a custom supplier; only prepared resources for attempts depend on it


@dataclass(frozen=True)
class FixedSizeSlotSupplier:
    """A fixed number of slots."""

    num_slots: int

    def __post_init__(self) -> None:
        whole_number(self.num_slots, "num_slots", 1, 2**31 - 1)


@dataclass(frozen=True)
class ResourceBasedTunerConfig:
    """The share of the machine's memory and processors, from 0 to 1, above which no more slots are granted."""

    target_memory_usage: float
    target_cpu_usage: float

    def __post_init__(self) -> None:
        for name in ("target_memory_usage", "target_cpu_usage"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise UsageError(f"{name} is a number from 0 to 1, not {value!r}")


@dataclass(frozen=True)
class ResourceBasedSlotConfig:
    """The bounds of a resource-based supplier.

    `minimum_slots` are always granted (5 for workflows, else 1), `maximum_slots` (500) never exceeded. Beyond the minimum, slots
    are at least `ramp_throttle` apart (0 for workflows, else 50 ms), because the usage of a task is measured late.
    """

    minimum_slots: int | None = None
    maximum_slots: int | None = None
    ramp_throttle: Duration | None = None

    def __post_init__(self) -> None:
        least, most = self.minimum_slots, self.maximum_slots
        if least is not None:
            whole_number(least, "minimum_slots", 1, 2**31 - 1)
        if most is not None:
            whole_number(most, "maximum_slots", 1, 2**31 - 1)
        if (least or 1) > (most or MOST_SLOTS):
            raise UsageError(f"minimum_slots, {least}, is more than maximum_slots, {most or MOST_SLOTS}")
        if self.ramp_throttle is not None:
            seconds(self.ramp_throttle, "ramp_throttle")


@dataclass(frozen=True)
class ResourceBasedSlotSupplier:
    """Slots limited by the resources of the machine. All suppliers of one worker have the same `tuner_config`."""

    slot_config: ResourceBasedSlotConfig
    tuner_config: ResourceBasedTunerConfig


class SlotPermit:
    """The right to use a slot. Subclass it to keep your own data with it."""


class SlotReserveContext(Protocol):
    """The worker and the queue for which a slot is requested."""

    slot_type: SlotKind
    task_queue: str
    worker_identity: str
    worker_build_id: str
    worker_deployment_version: WorkerDeploymentVersion | None
    is_sticky: bool
    """Whether it is for a poll of the worker's sticky queue, for cached runs."""


class WorkflowSlotInfo(Protocol):
    """A workflow task that uses a slot."""

    workflow_type: str
    is_sticky: bool


class ActivitySlotInfo(Protocol):
    """An activity that uses a slot."""

    activity_type: str


class LocalActivitySlotInfo(Protocol):
    """A local activity that uses a slot."""

    activity_type: str


class NexusSlotInfo(Protocol):
    """A Nexus operation that uses a slot."""

    service: str
    operation: str


SlotInfo: TypeAlias = WorkflowSlotInfo | ActivitySlotInfo | LocalActivitySlotInfo | NexusSlotInfo


class SlotMarkUsedContext(Protocol):
    """A reserved slot that a task now uses."""

    slot_info: SlotInfo
    permit: SlotPermit


class SlotReleaseContext(Protocol):
    """A released slot; `slot_info` is None if no task used it."""

    slot_info: SlotInfo | None
    permit: SlotPermit


class CustomSlotSupplier(ABC):
    """A slot supplier with your own rule.

    `reserve_slot` is awaited on an event loop of its own. Core calls the other three methods in its threads, concurrently: they
    must be quick and must not wait. Their exceptions are logged; after an exception of `reserve_slot` it is called again.
    """

    @abstractmethod
    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """Wait until a slot is free and return a permit for it. Called before each poll; may be cancelled."""

    @abstractmethod
    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """Return a permit if a slot is free now: for a task that arrives with an answer instead of a poll."""

    @abstractmethod
    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Note that a task uses a slot, possibly reserved long before."""

    @abstractmethod
    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Release a slot: its task is done, or no task used it."""


SlotSupplier: TypeAlias = FixedSizeSlotSupplier | ResourceBasedSlotSupplier | CustomSlotSupplier


def most_slots(supplier: SlotSupplier) -> int:
    """Return the maximum number of concurrent slots of a supplier; an estimate for a custom one."""
    match supplier:
        case FixedSizeSlotSupplier():
            return supplier.num_slots
        case ResourceBasedSlotSupplier():
            return supplier.slot_config.maximum_slots or MOST_SLOTS
        case _:
            return _UNKNOWN


_HUNDRED = FixedSizeSlotSupplier(100)


@dataclass(frozen=True, kw_only=True)
class WorkerTuner:
    """The slot suppliers of a worker, one for each kind of task. Create it with one of the three class methods."""

    workflow_supplier: SlotSupplier = _HUNDRED
    activity_supplier: SlotSupplier = _HUNDRED
    local_activity_supplier: SlotSupplier = _HUNDRED
    nexus_supplier: SlotSupplier = _HUNDRED

    def __post_init__(self) -> None:
        usages = set()
        for name, supplier in self._suppliers().items():
            if not isinstance(
                supplier, (FixedSizeSlotSupplier, ResourceBasedSlotSupplier, CustomSlotSupplier)
            ):
                raise UsageError(f"{name} must be a slot supplier, not {type(supplier).__name__}")
            if isinstance(supplier, ResourceBasedSlotSupplier):
                usages.add(supplier.tuner_config)
        if len(usages) > 1:
            raise UsageError("all resource-based suppliers of a worker have the same tuner_config")

    @classmethod
    def create_fixed(
        cls,
        *,
        workflow_slots: int | None = None,
        activity_slots: int | None = None,
        local_activity_slots: int | None = None,
        nexus_slots: int | None = None,
    ) -> WorkerTuner:
        """Return a tuner with fixed numbers, each 100 by default."""
        return cls(
            workflow_supplier=FixedSizeSlotSupplier(100 if workflow_slots is None else workflow_slots),
            activity_supplier=FixedSizeSlotSupplier(100 if activity_slots is None else activity_slots),
            local_activity_supplier=FixedSizeSlotSupplier(
                100 if local_activity_slots is None else local_activity_slots
            ),
            nexus_supplier=FixedSizeSlotSupplier(100 if nexus_slots is None else nexus_slots),
        )

    @classmethod
    def create_resource_based(
        cls,
        *,
        target_memory_usage: float,
        target_cpu_usage: float,
        workflow_config: ResourceBasedSlotConfig | None = None,
        activity_config: ResourceBasedSlotConfig | None = None,
        local_activity_config: ResourceBasedSlotConfig | None = None,
        nexus_config: ResourceBasedSlotConfig | None = None,
    ) -> WorkerTuner:
        """Return a tuner that grants as many slots of each kind as the machine has resources for."""
        usage = ResourceBasedTunerConfig(target_memory_usage, target_cpu_usage)

        def supplier(config: ResourceBasedSlotConfig | None) -> ResourceBasedSlotSupplier:
            return ResourceBasedSlotSupplier(config or ResourceBasedSlotConfig(), usage)

        return cls(
            workflow_supplier=supplier(workflow_config),
            activity_supplier=supplier(activity_config),
            local_activity_supplier=supplier(local_activity_config),
            nexus_supplier=supplier(nexus_config),
        )

    @classmethod
    def create_composite(
        cls,
        *,
        workflow_supplier: SlotSupplier = _HUNDRED,
        activity_supplier: SlotSupplier = _HUNDRED,
        local_activity_supplier: SlotSupplier = _HUNDRED,
        nexus_supplier: SlotSupplier = _HUNDRED,
    ) -> WorkerTuner:
        """Return a tuner with a separate supplier for each kind of task."""
        return cls(
            workflow_supplier=workflow_supplier,
            activity_supplier=activity_supplier,
            local_activity_supplier=local_activity_supplier,
            nexus_supplier=nexus_supplier,
        )

    def _suppliers(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @property
    def is_fixed(self) -> bool:
        """Whether all suppliers have fixed numbers: every engine supports these."""
        return all(isinstance(supplier, FixedSizeSlotSupplier) for supplier in self._suppliers().values())


@dataclass(frozen=True)
class PollerBehaviorSimpleMaximum:
    """A fixed maximum number of concurrent polls, if slots are free."""

    maximum: int = 5

    def __post_init__(self) -> None:
        whole_number(self.maximum, "maximum", 1, 2**31 - 1)


@dataclass(frozen=True)
class PollerBehaviorAutoscaling:
    """The number of concurrent polls that the server recommends, within bounds."""

    minimum: int = 1
    maximum: int = 100
    initial: int = 5

    def __post_init__(self) -> None:
        for name in ("minimum", "maximum", "initial"):
            whole_number(getattr(self, name), name, 1, 2**31 - 1)
        if not self.minimum <= self.initial <= self.maximum:
            raise UsageError(
                f"pollers are scaled from minimum to maximum, and initial is between them, not {self.minimum}, "
                f"{self.maximum} and {self.initial}"
            )


PollerBehavior: TypeAlias = PollerBehaviorSimpleMaximum | PollerBehaviorAutoscaling


def poller_behavior(behavior: object, maximum: int, name: str) -> PollerBehavior:
    """Return the poller behaviour of a worker: the configured one, or a fixed number of polls."""
    if behavior is None:
        return PollerBehaviorSimpleMaximum(maximum)
    if isinstance(behavior, (PollerBehaviorSimpleMaximum, PollerBehaviorAutoscaling)):
        return behavior
    raise UsageError(f"{name} must be a PollerBehavior, not {type(behavior).__name__}")
