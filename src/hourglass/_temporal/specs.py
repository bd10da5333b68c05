"""Conversion of specs of activities, starts and children to Temporal's messages and back. Pure, and on the hot
path.

Each kind of message has a table that maps a spec's fields to the message's fields where the names differ. The
type of a field determines how its value is written. A spec field that the message does not have is mapped to
None, and a comment states the reason. Every name is looked up in the message, so the import of this module
fails if a spec field has no place in the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cached_property, lru_cache, reduce
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import msgspec
from temporalio.api.activity.v1 import ActivityExecutionInfo, ActivityOptions
from temporalio.api.common.v1 import RetryPolicy
from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import StartActivityExecutionRequest, StartWorkflowExecutionRequest
from temporalio.bridge.proto.activity_task import Start as ActivityStart
from temporalio.bridge.proto.workflow_activation import InitializeWorkflow
from temporalio.bridge.proto.workflow_commands import (
    ContinueAsNewWorkflowExecution,
    ScheduleActivity,
    ScheduleLocalActivity,
    StartChildWorkflowExecution,
    WorkflowCommand,
)

from hourglass._contract.progress import without_carrier
from hourglass._evaluator.specs import (
    WORKER_ONLY_FIELDS,
    ActivitySpec,
    ChildWorkflowSpec,
    RetryRule,
    StartSpec,
    VersioningOverride,
)
from hourglass._temporal.protos import (
    override_from,
    payload_from,
    payload_map_from,
    payloads_from,
    put_override,
    put_payload,
    put_payload_map,
    put_payloads,
    put_seconds,
    seconds_from,
)
from hourglass._temporal.version import has, installed
from hourglass.converter import Payload
from hourglass.errors import RetryState, TimeoutType, UsageError

S = TypeVar("S", bound=msgspec.Struct)
E = TypeVar("E", bound=IntEnum)


class _Kind(NamedTuple):
    """The functions that write values of one type to a message field, and read them from it."""

    put: Callable[[Any, str, Any], None]
    get: Callable[[Any, str], Any]


def _if_present(read: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    return lambda message, name: read(getattr(message, name)) if message.HasField(name) else None


def _member(kind: type[E]) -> Callable[[Any, str], E]:
    """Return a reader of an enum. An unknown number comes from a newer server and must not fail the task."""

    def get(message: Any, name: str) -> E:
        try:
            return kind(getattr(message, name))
        except ValueError:
            return kind(0)

    return get


_PLAIN = _Kind(lambda message, name, value: setattr(message, name, value), getattr)
_KINDS: dict[Any, _Kind] = {
    float: _Kind(
        lambda message, name, value: put_seconds(getattr(message, name), value),
        lambda message, name: seconds_from(getattr(message, name)),
    ),
    float | None: _Kind(
        lambda message, name, value: put_seconds(getattr(message, name), value), _if_present(seconds_from)
    ),
    TimeoutType: _Kind(_PLAIN.put, _member(TimeoutType)),
    RetryState: _Kind(_PLAIN.put, _member(RetryState)),
    tuple[Payload, ...]: _Kind(
        lambda message, name, value: put_payloads(getattr(message, name), value),
        # Heartbeat details may contain published progress that the author did not write.
        lambda message, name: without_carrier(payloads_from(getattr(message, name))),
    ),
    tuple[str, ...]: _Kind(
        lambda message, name, value: getattr(message, name).extend(value),
        lambda message, name: tuple(getattr(message, name)),
    ),
    Payload | None: _Kind(
        lambda message, name, value: put_payload(getattr(message, name), value), _if_present(payload_from)
    ),
    VersioningOverride | None: _Kind(
        lambda message, name, value: put_override(getattr(message, name), value),
        lambda message, name: override_from(getattr(message, name)),
    ),
    dict[str, Payload]: _Kind(
        lambda message, name, value: put_payload_map(getattr(message, name), value),
        lambda message, name: payload_map_from(getattr(message, name)),
    ),
}


class _SpecField(NamedTuple):
    """The place of a spec's field in a message: its name, inside the messages `within`."""

    field: str
    within: tuple[str, ...]
    name: str
    kind: _Kind
    is_optional: bool
    """Whether None means that the field is unset, so that 0 must be written."""


class SpecIn(Generic[S]):
    """The fields of one kind of message that contain a spec, or another struct.

    `names` maps a spec's field to its path in the message if they differ, or to None if the message does not
    have it. `since` names the release of temporalio that added a field.
    """

    def __init__(
        self,
        spec: type[S],
        message: Callable[[], Any],
        names: Mapping[str, str | None],
        since: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    ) -> None:
        self.spec = spec
        hints = get_type_hints(spec)
        self._places: list[_SpecField] = []
        self._absent: dict[str, tuple[int, int]] = {}
        for field in spec.__struct_fields__:
            path = names.get(field, field)
            if path is None:
                continue
            if field in since and not has(since[field]):
                self._absent[field] = since[field]
                continue
            *within, name = path.split(".")
            try:
                default = reduce(getattr, (*within, name), message())
            except AttributeError:
                raise TypeError(
                    f"{getattr(message, '__name__', message)} has no field for {spec.__name__}.{field}: add the name of "
                    f"the message's field, or None and the reason, to the table in {__name__}"
                ) from None
            is_plain = isinstance(default, float)  # all other floats of specs are durations
            kind = _PLAIN if is_plain else _KINDS.get(hints[field], _PLAIN)
            is_optional = hints[field] == float | None
            self._places.append(_SpecField(field, tuple(within), name, kind, is_optional))

    @cached_property
    def _raw(self) -> Callable[[Any], tuple[Any, ...]]:
        return attrgetter(*(".".join((*place.within, place.name)) for place in self._places))

    @property
    def names(self) -> frozenset[str]:
        """The fields of the message that contain the spec."""
        return frozenset((*place.within, place.name)[0] for place in self._places)

    @property
    def carried(self) -> frozenset[str]:
        """The fields of the spec that the message contains."""
        return frozenset(place.field for place in self._places)

    def put(self, message: Any, spec: S) -> None:
        """Write the fields of a spec that are set. Raise `UsageError` for a field that the installed temporalio
        does not have.
        """
        for field, (major, minor) in self._absent.items():
            if getattr(spec, field):
                raise UsageError(f"{field} needs temporalio {major}.{minor} or newer, not {installed()}")
        for place in self._places:
            value = getattr(spec, place.field)
            if value or (value is not None and place.is_optional):
                place.kind.put(reduce(getattr, place.within, message), place.name, value)

    def key(self, message: Any) -> tuple[object, ...]:
        """Return the undecoded fields as a hashable key, which is equal for messages with equal specs. Must
        only be used for specs without payloads.
        """
        return tuple(
            [
                value.SerializeToString() if hasattr(value, "SerializeToString") else value
                for value in self._raw(message)
            ]
        )

    def get(self, message: Any) -> S:
        """Decode the spec."""
        return self.spec(
            **{
                place.field: place.kind.get(
                    reduce(getattr, place.within, message) if place.within else message, place.name
                )
                for place in self._places
            }
        )


_RETRY = SpecIn(RetryRule, RetryPolicy, {})


def _put_retry(message: Any, name: str, rule: RetryRule) -> None:
    policy = getattr(message, name)
    policy.SetInParent()  # a policy without values is still a policy
    _RETRY.put(policy, rule)


_KINDS[RetryRule | None] = _Kind(_put_retry, _if_present(_RETRY.get))

_PRIORITY: dict[str, str | None] = {
    name: f"priority.{name}" for name in ("priority_key", "fairness_key", "fairness_weight")
}


REMOTE = SpecIn(
    ActivitySpec,
    ScheduleActivity,
    {
        **_PRIORITY,
        "disable_eager_execution": "do_not_eagerly_execute",
        "local_retry_threshold": None,  # only for local activities
    },
)
LOCAL = SpecIn(
    ActivitySpec,
    ScheduleLocalActivity,
    {
        "task_queue": None,  # a local activity runs on the worker that schedules it
        "heartbeat_timeout": None,  # Core runs in the same process and needs no heartbeats
        **dict.fromkeys(_PRIORITY),  # a local activity is not queued
        "disable_eager_execution": None,
    },
)
TASK = SpecIn(
    ActivitySpec,
    ActivityStart,
    {
        **_PRIORITY,
        "task_queue": None,  # the worker's own; Core does not send it
        "schedule_to_start_timeout": None,  # no longer relevant when the attempt starts
        **dict.fromkeys(WORKER_ONLY_FIELDS),
    },
)

_task_specs: dict[tuple[object, ...], ActivitySpec] = {}


def spec_of_task(start: Any, task_queue: str) -> ActivitySpec:
    """Return the spec of Core's activity task. Equal specs, such as those of an activity's attempts, share one
    object.
    """
    key = (task_queue, start.HasField("retry_policy"), *TASK.key(start))
    spec = _task_specs.get(key)
    if spec is None:
        if len(_task_specs) >= 256:
            _task_specs.clear()
        spec = msgspec.structs.replace(TASK.get(start), task_queue=task_queue)
        _task_specs[key] = spec
    return spec


_STANDALONE: dict[str, str | None] = {
    **_PRIORITY,
    "task_queue": "task_queue.name",
    **dict.fromkeys(WORKER_ONLY_FIELDS),
}
ACTIVITY_START = SpecIn(ActivitySpec, StartActivityExecutionRequest, _STANDALONE)
ACTIVITY_OPTIONS = SpecIn(ActivitySpec, ActivityOptions, _STANDALONE)
ACTIVITY_INFO = SpecIn(ActivitySpec, ActivityExecutionInfo, _STANDALONE | {"task_queue": "task_queue"})
"""The places of a spec in starts of standalone activities, in activity options, and in activity descriptions."""


@lru_cache(maxsize=1024)
def remote_bytes(spec: ActivitySpec, task_queue: str) -> bytes:
    """Serialize a spec as part of Core's command, for a worker of this queue. All calls of an activity share
    the result.
    """
    message = ScheduleActivity(task_queue=task_queue)
    REMOTE.put(message, spec)
    return message.SerializeToString()


@lru_cache(maxsize=1024)
def local_bytes(spec: ActivitySpec) -> bytes:
    """Serialize a spec as part of Core's command for a local activity."""
    message = ScheduleLocalActivity()
    LOCAL.put(message, spec)
    return message.SerializeToString()


_TIMEOUTS: dict[str, str | None] = {
    "execution_timeout": "workflow_execution_timeout",
    "run_timeout": "workflow_run_timeout",
    "task_timeout": "workflow_task_timeout",
    "search_attributes": "search_attributes.indexed_fields",
    **_PRIORITY,
}
_CLIENT_START: dict[str, str | None] = _TIMEOUTS | {
    "task_queue": "task_queue.name",
    "memo": "memo.fields",
    "static_summary": "user_metadata.summary",
    "static_details": "user_metadata.details",
}

START = SpecIn(StartSpec, StartWorkflowExecutionRequest, _CLIENT_START)
SCHEDULED = SpecIn(
    StartSpec,
    NewWorkflowExecutionInfo,
    _CLIENT_START
    | {"cron_schedule": None},  # servers reject one in a schedule; a value from another SDK is preserved
)
CHILD_START = SpecIn(
    StartSpec,
    StartChildWorkflowExecution,
    _TIMEOUTS | {"static_summary": None, "static_details": None},  # see `NOTES`
)
STARTED = SpecIn(
    StartSpec,
    InitializeWorkflow,
    _TIMEOUTS
    | {
        "memo": "memo.fields",
        "task_queue": None,  # the worker's own; Core does not send it
        "static_summary": None,  # known to the server only
        "static_details": None,
    },
)
CONTINUED = SpecIn(
    StartSpec,
    ContinueAsNewWorkflowExecution,
    _TIMEOUTS
    | {
        # The next run inherits these from the first: Core's command has no fields for them.
        "execution_timeout": None,
        "cron_schedule": None,
        **dict.fromkeys(_PRIORITY),
        "static_summary": None,
        "static_details": None,
    },
)
NOTES = SpecIn(
    StartSpec,
    WorkflowCommand,
    dict.fromkeys(StartSpec.__struct_fields__)
    | {"static_summary": "user_metadata.summary", "static_details": "user_metadata.details"},
)
"""The summary and details of a child. They are not part of Core's command that starts the child."""

CHILD = SpecIn(
    ChildWorkflowSpec,
    StartChildWorkflowExecution,
    {"id_reuse_policy": "workflow_id_reuse_policy"},
    since={"versioning_override": (1, 35)},
)
