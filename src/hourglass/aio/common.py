"""The supported names of `temporalio.common`: policies, search attribute keys, priorities, versions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hourglass._contract.workflows import IdConflictPolicy as ActivityIDConflictPolicy
from hourglass._contract.workflows import IdConflictPolicy as WorkflowIDConflictPolicy
from hourglass._contract.workflows import QueryRejectCondition
from hourglass._evaluator.options import Priority, RetryPolicy
from hourglass._evaluator.specs import (
    AutoUpgradeVersioningOverride,
    OneTimeVersioningOverride,
    PinnedVersioningOverride,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass._evaluator.specs import IdReusePolicy as ActivityIDReusePolicy
from hourglass._evaluator.specs import IdReusePolicy as WorkflowIDReusePolicy
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
    """Search attributes with values, for a workflow start: `TypedSearchAttributes([SearchAttributePair(KEY, value)])`."""

    def __init__(self, search_attributes: Iterable[SearchAttributePair[Any]]) -> None:
        super().__init__(pair.key.value_set(pair.value) for pair in search_attributes)
