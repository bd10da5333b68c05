"""What an author may say of an activity, of a start of a workflow, and of a child: each said once, as checked data.

A spec is made where the author's keywords are checked, and is handed on from there as it is: options, commands, history
events, requests and tasks hold it, none repeats its fields. An engine that completes it (with its own queue, with
Temporal's defaults) makes another spec. A spec says how; which activity or workflow (id, type) and with what
(arguments, headers) stands beside it, so that all calls of one activity share one spec.

Must not know: commands, events, engines, Temporal's names for these fields. To add an option: a field here, the
keyword for authors, and a line in the tables of names (`_temporal.protos`, the history's codec); the test that walks
all fields of all specs over both engines (`tests/architecture/test_specs.py`) finds what is forgotten.

Durations are seconds; 0 or empty means unset.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec

from hourglass._engine.versions import VersioningOverride
from hourglass.converter import Payload

Payloads: TypeAlias = tuple[Payload, ...]


class ActivityCancellationType(IntEnum):
    """What cancelling an activity means for the workflow that waits for it (Temporal's numbers)."""

    TRY_CANCEL = 0
    WAIT_CANCELLATION_COMPLETED = 1
    ABANDON = 2


class ChildCancellationType(IntEnum):
    """What cancelling a child workflow means for the parent that waits for it (Core's numbers)."""

    ABANDON = 0
    TRY_CANCEL = 1
    WAIT_CANCELLATION_COMPLETED = 2
    WAIT_CANCELLATION_REQUESTED = 3


class ParentClosePolicy(IntEnum):
    """What happens to a child when its parent closes (Temporal's numbers)."""

    UNSPECIFIED = 0
    TERMINATE = 1
    ABANDON = 2
    REQUEST_CANCEL = 3


class IdReusePolicy(IntEnum):
    """Whether the id of a closed workflow may be used again (Temporal's numbers)."""

    UNSPECIFIED = 0
    ALLOW_DUPLICATE = 1
    ALLOW_DUPLICATE_FAILED_ONLY = 2
    REJECT_DUPLICATE = 3
    TERMINATE_IF_RUNNING = 4


class RetryRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A retry policy as data: seconds, and 0 for "no limit"."""

    initial_interval: float = 1.0
    backoff_coefficient: float = 2.0
    maximum_interval: float = 0.0
    maximum_attempts: int = 0
    non_retryable_error_types: tuple[str, ...] = ()


class Spec(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """What an author may say of one thing."""


class ActivitySpec(Spec, frozen=True, kw_only=True, cache_hash=True):
    """An activity, remote or local. An empty task queue means the run's own; no retry policy means Temporal's usual one.

    Hashable: what an engine makes of a spec is kept by the spec.
    """

    task_queue: str = ""
    schedule_to_close_timeout: float = 0.0
    schedule_to_start_timeout: float = 0.0
    start_to_close_timeout: float = 0.0
    heartbeat_timeout: float = 0.0
    retry_policy: RetryRule | None = None
    cancellation_type: ActivityCancellationType = ActivityCancellationType.TRY_CANCEL
    priority_key: int = 0
    fairness_key: str = ""
    fairness_weight: float = 0.0
    disable_eager_execution: bool = False
    """Of remote activities: whether the worker that asked must not take the first attempt at once."""
    local_retry_threshold: float = 0.0
    """Of local activities: the longest pause before an attempt that the worker itself waits through."""


class StartSpec(Spec, frozen=True, kw_only=True):
    """The start of a workflow: by a client or a schedule, as a child, or as the next run of the same workflow.

    For a child an empty task queue means the parent's; for the next run what is unset means the same as before.
    """

    task_queue: str = ""
    execution_timeout: float = 0.0
    run_timeout: float = 0.0
    task_timeout: float = 0.0
    retry_policy: RetryRule | None = None
    cron_schedule: str = ""
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}
    priority_key: int = 0
    fairness_key: str = ""
    fairness_weight: float = 0.0
    static_summary: Payload | None = None
    static_details: Payload | None = None


class ChildWorkflowSpec(Spec, frozen=True, kw_only=True):
    """What is said of a child beside its start."""

    parent_close_policy: ParentClosePolicy = ParentClosePolicy.TERMINATE
    id_reuse_policy: IdReusePolicy = IdReusePolicy.ALLOW_DUPLICATE
    cancellation_type: ChildCancellationType = ChildCancellationType.WAIT_CANCELLATION_COMPLETED
    versioning_override: VersioningOverride | None = None


SPECS: tuple[type[Spec], ...] = (ActivitySpec, StartSpec, ChildWorkflowSpec)
