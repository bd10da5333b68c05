"""What `temporalio.common` has, as far as it is here: policies, keys of search attributes, priorities, versions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from hourglass._contract.workflows import IdConflictPolicy as ActivityIDConflictPolicy
from hourglass._contract.workflows import IdConflictPolicy as WorkflowIDConflictPolicy
from hourglass._contract.workflows import QueryRejectCondition
from hourglass._engine.options import RetryPolicy
from hourglass._engine.specs import (
    AutoUpgradeVersioningOverride,
    OneTimeVersioningOverride,
    PinnedVersioningOverride,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass._engine.specs import IdReusePolicy as ActivityIDReusePolicy
from hourglass._engine.specs import IdReusePolicy as WorkflowIDReusePolicy
from hourglass.converter import HeaderCodecBehavior, SearchAttributeKey
from hourglass.converter import RawPayload as RawValue
from hourglass.converter._search_attributes import SearchAttributeUpdate
from hourglass.metrics import MetricMeter

T = TypeVar("T")

__all__ = [
    "ActivityIDConflictPolicy",
    "ActivityIDReusePolicy",
    "AutoUpgradeVersioningOverride",
    "HeaderCodecBehavior",
    "MetricMeter",
    "OneTimeVersioningOverride",
    "PinnedVersioningOverride",
    "Priority",
    "QueryRejectCondition",
    "RawValue",
    "RetryPolicy",
    "SearchAttributeKey",
    "SearchAttributePair",
    "TypedSearchAttributes",
    "VersioningBehavior",
    "VersioningOverride",
    "WorkerDeploymentVersion",
    "WorkflowIDConflictPolicy",
    "WorkflowIDReusePolicy",
]


@dataclass(frozen=True)
class SearchAttributePair(Generic[T]):
    """A search attribute and its value."""

    key: SearchAttributeKey[T]
    value: T


class TypedSearchAttributes(list[SearchAttributeUpdate]):
    """Search attributes with their values, to be given to a start: `TypedSearchAttributes([SearchAttributePair(KEY, value)])`."""

    def __init__(self, pairs: Iterable[SearchAttributePair[Any]]) -> None:
        super().__init__(pair.key.value_set(pair.value) for pair in pairs)


@dataclass(frozen=True)
class Priority:
    """How urgent a workflow or an activity is (1 is most), and whose share of its queue it is counted to; None is what its
    caller has.
    """

    default: ClassVar[Priority]

    priority_key: int | None = None
    fairness_key: str | None = None
    fairness_weight: float | None = None


Priority.default = Priority()
