"""The number of concurrent tasks and polls of a worker: slot suppliers, tuners and poller behaviours, as data.

A slot is the right to execute one task, and a poll needs a free slot. Fixed numbers have the same meaning on every
engine. Suppliers that depend on the machine or on the author's code are supported only by Core. An engine that counts
slots itself rejects them (`HandleConfig.reject_tuning`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from hourglass._evaluator.options import Duration, seconds, whole_number
from hourglass._evaluator.specs import WorkerDeploymentVersion
from hourglass.errors import UsageError

SlotKind: TypeAlias = Literal["workflow", "activity", "local-activity", "nexus"]

MOST_SLOTS = 500
"""The default maximum number of slots of a resource-based supplier."""

_UNKNOWN = 1000  # assumed for a custom supplier; affects only the resources prepared for attempts


@dataclass(frozen=True)
class FixedSizeSlotSupplier:
    """A fixed number of slots."""

    num_slots: int

    def __post_init__(self) -> None:
        whole_number(self.num_slots, "num_slots", 1, 2**31 - 1)


@dataclass(frozen=True)
class ResourceBasedTunerConfig:
    """The fraction of the machine's memory and CPU time, from 0 to 1, above which no more slots are granted."""

    target_memory_usage: float
    target_cpu_usage: float

    def __post_init__(self) -> None:
        for name in ("target_memory_usage", "target_cpu_usage"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise UsageError(f"{name} must be a number from 0 to 1, not {value!r}")


@dataclass(frozen=True)
class ResourceBasedSlotConfig:
    """The bounds of a resource-based supplier.

    `minimum_slots` (5 for workflows, otherwise 1) are always granted. `maximum_slots` (500) are never exceeded. Beyond
    the minimum, slots are granted at intervals of at least `ramp_throttle` (0 for workflows, otherwise 50 ms), because
    the resource usage of a new task is measured with a delay.
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
            raise UsageError(
                f"minimum_slots ({least}) must not be greater than maximum_slots ({most or MOST_SLOTS})"
            )
        if self.ramp_throttle is not None:
            seconds(self.ramp_throttle, "ramp_throttle")


@dataclass(frozen=True)
class ResourceBasedSlotSupplier:
    """A number of slots that depends on the resources of the machine. All suppliers of a worker must have the same
    `tuner_config`.
    """

    slot_config: ResourceBasedSlotConfig
    tuner_config: ResourceBasedTunerConfig


class SlotPermit:
    """The right to use a slot. Subclass it to attach your own data."""


class SlotReserveContext(Protocol):
    """The worker and the task queue for which a slot is requested."""

    slot_type: SlotKind
    task_queue: str
    worker_identity: str
    worker_build_id: str
    worker_deployment_version: WorkerDeploymentVersion | None
    is_sticky: bool
    """Whether the slot is for a poll of the worker's sticky queue, which contains tasks of cached runs."""


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
    """A released slot. `slot_info` is None if no task used the slot."""

    slot_info: SlotInfo | None
    permit: SlotPermit


class CustomSlotSupplier(ABC):
    """A slot supplier with a custom rule.

    `reserve_slot` is awaited on a separate event loop. Core calls the other three methods in its own threads,
    concurrently. They must be quick and must not block. Exceptions are logged. If `reserve_slot` raises an exception, it
    is called again.
    """

    @abstractmethod
    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """Wait until a slot is free and return a permit. Called before each poll. The call may be cancelled."""

    @abstractmethod
    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """Return a permit if a slot is free now, otherwise None. Called for tasks that arrive with a response instead of
        a poll.
        """

    @abstractmethod
    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Record that a task uses a slot, which may have been reserved long before."""

    @abstractmethod
    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Release a slot because its task is completed or because no task used the slot."""


SlotSupplier: TypeAlias = FixedSizeSlotSupplier | ResourceBasedSlotSupplier | CustomSlotSupplier


def most_slots(supplier: SlotSupplier) -> int:
    """Return the maximum number of concurrent slots of a supplier. For a custom supplier, the number is an estimate."""
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
    """The slot suppliers of a worker, one for each kind of task. Use one of the three class methods to create a tuner."""

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
            raise UsageError("all resource-based slot suppliers of a worker must have the same tuner_config")

    @classmethod
    def create_fixed(
        cls,
        *,
        workflow_slots: int | None = None,
        activity_slots: int | None = None,
        local_activity_slots: int | None = None,
        nexus_slots: int | None = None,
    ) -> WorkerTuner:
        """Return a tuner with fixed numbers of slots. Each default is 100."""
        numbers = (workflow_slots, activity_slots, local_activity_slots, nexus_slots)
        return cls._of([_HUNDRED if number is None else FixedSizeSlotSupplier(number) for number in numbers])

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
        """Return a tuner that grants slots of each kind while the machine has enough resources."""
        usage = ResourceBasedTunerConfig(target_memory_usage, target_cpu_usage)
        configs = (workflow_config, activity_config, local_activity_config, nexus_config)
        return cls._of(
            [ResourceBasedSlotSupplier(config or ResourceBasedSlotConfig(), usage) for config in configs]
        )

    @classmethod
    def _of(cls, suppliers: Sequence[SlotSupplier]) -> WorkerTuner:
        return cls(**dict(zip(cls.__dataclass_fields__, suppliers, strict=True)))

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
        """Whether all suppliers have fixed numbers of slots, which every engine supports."""
        return all(isinstance(supplier, FixedSizeSlotSupplier) for supplier in self._suppliers().values())


@dataclass(frozen=True)
class PollerBehaviorSimpleMaximum:
    """A fixed maximum number of concurrent polls. Each poll needs a free slot."""

    maximum: int = 5

    def __post_init__(self) -> None:
        whole_number(self.maximum, "maximum", 1, 2**31 - 1)


@dataclass(frozen=True)
class PollerBehaviorAutoscaling:
    """A number of concurrent polls that follows the server's recommendation, within bounds."""

    minimum: int = 1
    maximum: int = 100
    initial: int = 5

    def __post_init__(self) -> None:
        for name in ("minimum", "maximum", "initial"):
            whole_number(getattr(self, name), name, 1, 2**31 - 1)
        if not self.minimum <= self.initial <= self.maximum:
            raise UsageError(
                f"the number of pollers needs minimum <= initial <= maximum, not minimum={self.minimum}, "
                f"initial={self.initial}, maximum={self.maximum}"
            )


PollerBehavior: TypeAlias = PollerBehaviorSimpleMaximum | PollerBehaviorAutoscaling


def poller_behavior(behavior: object, maximum: int, name: str) -> PollerBehavior:
    """Return the configured poller behaviour of a worker, or by default a fixed maximum number of polls."""
    if behavior is None:
        return PollerBehaviorSimpleMaximum(maximum)
    if isinstance(behavior, (PollerBehaviorSimpleMaximum, PollerBehaviorAutoscaling)):
        return behavior
    raise UsageError(f"{name} must be a PollerBehavior, not {type(behavior).__name__}")
