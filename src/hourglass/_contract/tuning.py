"""How many tasks a worker takes at once, and how many polls it has out: slot suppliers, tuners and poller behaviours, as data.

A slot is the right to do one task; a poll needs a free one. Fixed numbers mean the same on every engine. What depends on the
machine, or on code of the author's, is Core's: an engine that counts slots itself refuses it (`HandleConfig.refuse_tuning`).
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
"""How many slots a supplier by resources gives at most, where nothing is said."""

_UNKNOWN = 1000  # of a custom supplier: only what is kept ready for attempts follows from it


# --- suppliers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FixedSizeSlotSupplier:
    """So many slots, and never more."""

    num_slots: int

    def __post_init__(self) -> None:
        whole_number(self.num_slots, "num_slots", 1, 2**31 - 1)


@dataclass(frozen=True)
class ResourceBasedTunerConfig:
    """What part of the machine's memory and processors may be in use before no more slots are given: from 0 to 1."""

    target_memory_usage: float
    target_cpu_usage: float

    def __post_init__(self) -> None:
        for name in ("target_memory_usage", "target_cpu_usage"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise UsageError(f"{name} is a number from 0 to 1, not {value!r}")


@dataclass(frozen=True)
class ResourceBasedSlotConfig:
    """Bounds of a supplier by resources.

    `minimum_slots` are given whatever is in use (5 for workflows, else 1), `maximum_slots` (500) never exceeded, and between
    two slots beyond the minimum `ramp_throttle` passes (nothing for workflows, else 50 ms), for what a task uses is seen late.
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
    """As many slots as the machine bears. All of one worker have the same `tuner_config`."""

    slot_config: ResourceBasedSlotConfig
    tuner_config: ResourceBasedTunerConfig


class SlotPermit:
    """The right to use a slot. Derive from it to keep something of your own with it."""


class SlotReserveContext(Protocol):
    """Who asks for a slot."""

    slot_type: SlotKind
    task_queue: str
    worker_identity: str
    worker_build_id: str
    worker_deployment_version: WorkerDeploymentVersion | None
    is_sticky: bool
    """Whether it is for a poll of the worker's own queue, of runs that it knows."""


class WorkflowSlotInfo(Protocol):
    """A workflow task uses the slot."""

    workflow_type: str
    is_sticky: bool


class ActivitySlotInfo(Protocol):
    """An activity uses the slot."""

    activity_type: str


class LocalActivitySlotInfo(Protocol):
    """A local activity uses the slot."""

    activity_type: str


class NexusSlotInfo(Protocol):
    """A Nexus operation uses the slot."""

    service: str
    operation: str


SlotInfo: TypeAlias = WorkflowSlotInfo | ActivitySlotInfo | LocalActivitySlotInfo | NexusSlotInfo


class SlotMarkUsedContext(Protocol):
    """A task came for a slot that was reserved."""

    slot_info: SlotInfo
    permit: SlotPermit


class SlotReleaseContext(Protocol):
    """A slot is free again; `slot_info` is None if no task ever used it."""

    slot_info: SlotInfo | None
    permit: SlotPermit


class CustomSlotSupplier(ABC):
    """Slots by a rule of your own.

    `reserve_slot` is awaited on an event loop of its own, which no other code of ours uses. The other three are called by
    Core in its threads, many at once: they must be quick, and never wait. What they raise is logged; after an exception of
    `reserve_slot` it is asked again.
    """

    @abstractmethod
    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """Wait until a slot is free, and give it. Called before each poll; may be cancelled."""

    @abstractmethod
    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """A slot, if one is free now: for a task that comes with an answer, and not from a poll."""

    @abstractmethod
    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """A task came for a slot: there may be a long time between the two."""

    @abstractmethod
    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """A slot is not needed any more: its task is done, or there never was one."""


SlotSupplier: TypeAlias = FixedSizeSlotSupplier | ResourceBasedSlotSupplier | CustomSlotSupplier


def most_slots(supplier: SlotSupplier) -> int:
    """How many slots a supplier may give at once; for one of the author's, a guess."""
    match supplier:
        case FixedSizeSlotSupplier():
            return supplier.num_slots
        case ResourceBasedSlotSupplier():
            return supplier.slot_config.maximum_slots or MOST_SLOTS
        case _:
            return _UNKNOWN


# --- tuners -------------------------------------------------------------------------------------------------


_HUNDRED = FixedSizeSlotSupplier(100)


@dataclass(frozen=True, kw_only=True)
class WorkerTuner:
    """A supplier for each kind of slot of a worker. Made by one of its three class methods."""

    workflow_supplier: SlotSupplier = _HUNDRED
    activity_supplier: SlotSupplier = _HUNDRED
    local_activity_supplier: SlotSupplier = _HUNDRED
    nexus_supplier: SlotSupplier = _HUNDRED

    def __post_init__(self) -> None:
        usages = set()
        for name, each in self._suppliers().items():
            if not isinstance(each, (FixedSizeSlotSupplier, ResourceBasedSlotSupplier, CustomSlotSupplier)):
                raise UsageError(f"{name} must be a slot supplier, not {type(each).__name__}")
            if isinstance(each, ResourceBasedSlotSupplier):
                usages.add(each.tuner_config)
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
        """Fixed numbers, 100 each where nothing is said."""
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
        """As many slots as the machine bears, of each kind."""
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
        """A supplier of any kind for each."""
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
        """Whether it is numbers and nothing else, which every engine understands."""
        return all(isinstance(each, FixedSizeSlotSupplier) for each in self._suppliers().values())


# --- polls --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PollerBehaviorSimpleMaximum:
    """So many polls at once, if there are slots for them."""

    maximum: int = 5

    def __post_init__(self) -> None:
        whole_number(self.maximum, "maximum", 1, 2**31 - 1)


@dataclass(frozen=True)
class PollerBehaviorAutoscaling:
    """As many polls as the server says are useful, within bounds."""

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


def poller_behavior(said: object, maximum: int, name: str) -> PollerBehavior:
    """How many polls a worker has out: as said, or so many."""
    if said is None:
        return PollerBehaviorSimpleMaximum(maximum)
    if isinstance(said, (PollerBehaviorSimpleMaximum, PollerBehaviorAutoscaling)):
        return said
    raise UsageError(f"{name} must be a PollerBehavior, not {type(said).__name__}")
