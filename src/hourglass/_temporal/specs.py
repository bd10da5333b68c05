"""What an author may say of activities, starts and children, in Temporal's messages, both ways. Pure, and on the hot path.

There is a table for each message: what a field of a spec is called there, where that is not its own name. How a value is written
follows from the field's type. A field that has no place in a message says so, with None and the reason. A field that is
added to a spec without a line here keeps this module from being imported: every name is looked up in the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import msgspec
from temporalio.api.activity.v1 import ActivityExecutionInfo, ActivityOptions
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

from hourglass._evaluator.specs import (
    THE_WORKERS,
    ActivitySpec,
    ChildWorkflowSpec,
    RetryRule,
    Spec,
    StartSpec,
    VersioningOverride,
)
from hourglass._temporal.protos import (
    override_from,
    payload_from,
    payload_map_from,
    put_override,
    put_payload,
    put_payload_map,
    put_retry_rule,
    put_seconds,
    retry_rule_from,
    seconds_from,
)
from hourglass._temporal.version import has, installed
from hourglass.converter import Payload
from hourglass.errors import UsageError

S = TypeVar("S", bound=Spec)


class _Kind(NamedTuple):
    """How values of one type are written to the field of a message, and read from it."""

    put: Callable[[Any, str, Any], None]
    get: Callable[[Any, str], Any]


def _if_there(read: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    return lambda message, name: read(getattr(message, name)) if message.HasField(name) else None


_PLAIN = _Kind(lambda message, name, value: setattr(message, name, value), getattr)
_KINDS: dict[Any, _Kind] = {
    float: _Kind(
        lambda message, name, value: put_seconds(getattr(message, name), value),
        lambda message, name: seconds_from(getattr(message, name)),
    ),
    RetryRule | None: _Kind(
        lambda message, name, value: put_retry_rule(getattr(message, name), value), _if_there(retry_rule_from)
    ),
    Payload | None: _Kind(
        lambda message, name, value: put_payload(getattr(message, name), value), _if_there(payload_from)
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
    """Where a field of a spec stands in a message."""

    field: str
    within: tuple[str, ...]
    name: str
    kind: _Kind


class SpecIn(Generic[S]):
    """A spec in one kind of message. `names`: the path of a field that is called otherwise there; None: it is not there.
    `since`: of a field that messages of older releases of temporalio do not have, the release that brought it.
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
                found = reduce(getattr, (*within, name), message())
            except AttributeError:
                raise TypeError(
                    f"{spec.__name__}.{field} has no place in {getattr(message, '__name__', message)}: its table in {__name__} "
                    "wants the field's name there, or None and the reason"
                ) from None
            plain = isinstance(found, float)  # all other floats of ours are durations
            kind = _PLAIN if plain else _KINDS.get(hints[field], _PLAIN)
            self._places.append(_SpecField(field, tuple(within), name, kind))
        self._raw = attrgetter(*(".".join((*place.within, place.name)) for place in self._places))

    @property
    def names(self) -> frozenset[str]:
        """The message's own fields in which the spec stands."""
        return frozenset((*place.within, place.name)[0] for place in self._places)

    @property
    def carried(self) -> frozenset[str]:
        """The fields of the spec that the message carries."""
        return frozenset(place.field for place in self._places)

    def put(self, message: Any, spec: S) -> None:
        """Write what is set. Raises `UsageError` for what the installed temporalio cannot carry."""
        for field, (major, minor) in self._absent.items():
            if getattr(spec, field):
                raise UsageError(f"{field} needs temporalio {major}.{minor} or newer, not {installed()}")
        for place in self._places:
            value = getattr(spec, place.field)
            if value:
                place.kind.put(reduce(getattr, place.within, message), place.name, value)

    def key(self, message: Any) -> tuple[object, ...]:
        """What a message says of the spec, unread: the same for messages that say the same. Of specs without payloads."""
        return tuple(
            [
                each.SerializeToString() if hasattr(each, "SerializeToString") else each
                for each in self._raw(message)
            ]
        )

    def get(self, message: Any) -> S:
        """The spec that a message holds."""
        return self.spec(
            **{
                place.field: place.kind.get(
                    reduce(getattr, place.within, message) if place.within else message, place.name
                )
                for place in self._places
            }
        )


_PRIORITY: dict[str, str | None] = {
    name: f"priority.{name}" for name in ("priority_key", "fairness_key", "fairness_weight")
}


# --- activities ------------------------------------------------------------------------------------------------------

REMOTE = SpecIn(
    ActivitySpec,
    ScheduleActivity,
    {
        **_PRIORITY,
        "disable_eager_execution": "do_not_eagerly_execute",
        "local_retry_threshold": None,  # of local activities
    },
)
LOCAL = SpecIn(
    ActivitySpec,
    ScheduleLocalActivity,
    {
        "task_queue": None,  # it runs on the worker that asks for it
        "heartbeat_timeout": None,  # Core sees itself whether it lives
        **dict.fromkeys(_PRIORITY),  # it waits in no queue
        "disable_eager_execution": None,
    },
)
TASK = SpecIn(
    ActivitySpec,
    ActivityStart,
    {
        **_PRIORITY,
        "task_queue": None,  # the worker's own: Core does not tell
        "schedule_to_start_timeout": None,  # over when the attempt begins
        **dict.fromkeys(THE_WORKERS),
    },
)

_task_specs: dict[tuple[object, ...], ActivitySpec] = {}


def spec_of_task(start: Any, task_queue: str) -> ActivitySpec:
    """The spec of Core's activity task; one object for all attempts that say the same, as those of one activity do."""
    key = (task_queue, start.HasField("retry_policy"), *TASK.key(start))
    found = _task_specs.get(key)
    if found is None:
        if len(_task_specs) >= 256:
            _task_specs.clear()
        found = msgspec.structs.replace(TASK.get(start), task_queue=task_queue)
        _task_specs[key] = found
    return found


_ALONE: dict[str, str | None] = {
    **_PRIORITY,
    "task_queue": "task_queue.name",
    **dict.fromkeys(THE_WORKERS),
}
ACTIVITY_START = SpecIn(ActivitySpec, StartActivityExecutionRequest, _ALONE)
ACTIVITY_OPTIONS = SpecIn(ActivitySpec, ActivityOptions, _ALONE)
ACTIVITY_INFO = SpecIn(ActivitySpec, ActivityExecutionInfo, _ALONE | {"task_queue": "task_queue"})
"""Activities that a client starts, the options of any, and what a description says of them."""


@lru_cache(maxsize=1024)
def remote_bytes(spec: ActivitySpec, task_queue: str) -> bytes:
    """A spec, serialized as a part of Core's command, for a worker of this queue: all calls of an activity share it."""
    message = ScheduleActivity(task_queue=task_queue)
    REMOTE.put(message, spec)
    return message.SerializeToString()


@lru_cache(maxsize=1024)
def local_bytes(spec: ActivitySpec) -> bytes:
    """The same for a local activity."""
    message = ScheduleLocalActivity()
    LOCAL.put(message, spec)
    return message.SerializeToString()


# --- starts ----------------------------------------------------------------------------------------------------------

_TIMEOUTS: dict[str, str | None] = {
    "execution_timeout": "workflow_execution_timeout",
    "run_timeout": "workflow_run_timeout",
    "task_timeout": "workflow_task_timeout",
    "search_attributes": "search_attributes.indexed_fields",
    **_PRIORITY,
}
_OF_CLIENTS: dict[str, str | None] = _TIMEOUTS | {
    "task_queue": "task_queue.name",
    "memo": "memo.fields",
    "static_summary": "user_metadata.summary",
    "static_details": "user_metadata.details",
}

START = SpecIn(StartSpec, StartWorkflowExecutionRequest, _OF_CLIENTS)
SCHEDULED = SpecIn(
    StartSpec,
    NewWorkflowExecutionInfo,
    _OF_CLIENTS
    | {"cron_schedule": None},  # a server refuses one in a schedule; what another SDK wrote is kept as it is
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
        "task_queue": None,  # the worker's own: Core does not tell
        "static_summary": None,  # a server's alone
        "static_details": None,
    },
)
CONTINUED = SpecIn(
    StartSpec,
    ContinueAsNewWorkflowExecution,
    _TIMEOUTS
    | {
        # The next run goes on with what the first was started with: Core's command has no place for these.
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
"""The notes of a child, which stand beside Core's command for it."""

CHILD = SpecIn(
    ChildWorkflowSpec,
    StartChildWorkflowExecution,
    {"id_reuse_policy": "workflow_id_reuse_policy"},
    since={"versioning_override": (1, 35)},
)
