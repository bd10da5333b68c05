"""Specs in Temporal's messages: for each message, what a field of a spec is called there, where that is not its own name.

How a value is written follows from the field's type. A field that has no place in a message says so, with None and the
reason. Whoever adds a field to a spec and no line here cannot import this module: every name is looked up in the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    SignalWithStartWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
)
from temporalio.bridge.proto.workflow_commands import (
    ContinueAsNewWorkflowExecution,
    ScheduleActivity,
    ScheduleLocalActivity,
    StartChildWorkflowExecution,
    WorkflowCommand,
)

from hourglass._engine.specs import ActivitySpec, ChildWorkflowSpec, RetryRule, Spec, StartSpec
from hourglass._temporal.payloads import (
    payload_from,
    payload_map_from,
    put_payload,
    put_payload_map,
    put_retry_rule,
    put_seconds,
    retry_rule_from,
    seconds_from,
)
from hourglass.converter import Payload

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
    """A spec in one kind of message. `names`: the path of a field that is called otherwise there; None: it is not there."""

    def __init__(self, spec: type[S], message: Callable[[], Any], names: Mapping[str, str | None]) -> None:
        self.spec = spec
        hints = get_type_hints(spec)
        self._places: list[_SpecField] = []
        for field in spec.__struct_fields__:
            path = names.get(field, field)
            if path is None:
                continue
            *within, name = path.split(".")
            reduce(getattr, (*within, name), message())  # raises where there is no such field
            self._places.append(_SpecField(field, tuple(within), name, _KINDS.get(hints[field], _PLAIN)))

    @property
    def names(self) -> frozenset[str]:
        """The message's own fields in which the spec stands."""
        return frozenset((*place.within, place.name)[0] for place in self._places)

    @property
    def carried(self) -> frozenset[str]:
        """The fields of the spec that the message carries."""
        return frozenset(place.field for place in self._places)

    def put(self, message: Any, spec: S) -> None:
        """Write what is set."""
        for place in self._places:
            value = getattr(spec, place.field)
            if value:
                place.kind.put(reduce(getattr, place.within, message), place.name, value)

    def get(self, message: Any) -> S:
        """The spec that a message holds."""
        return self.spec(
            **{
                place.field: place.kind.get(reduce(getattr, place.within, message), place.name)
                for place in self._places
            }
        )


# --- activities -------------------------------------------------------------------------------------------------------

REMOTE = SpecIn(
    ActivitySpec,
    ScheduleActivity,
    {
        "priority_key": "priority.priority_key",
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
        "priority_key": None,  # it waits in no queue
        "disable_eager_execution": None,
    },
)


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


# --- starts -----------------------------------------------------------------------------------------------------------

_TIMEOUTS: dict[str, str | None] = {
    "execution_timeout": "workflow_execution_timeout",
    "run_timeout": "workflow_run_timeout",
    "task_timeout": "workflow_task_timeout",
    "search_attributes": "search_attributes.indexed_fields",
    "priority_key": "priority.priority_key",
}
_OF_CLIENTS: dict[str, str | None] = _TIMEOUTS | {
    "task_queue": "task_queue.name",
    "memo": "memo.fields",
    "static_summary": "user_metadata.summary",
    "static_details": "user_metadata.details",
}

START = SpecIn(StartSpec, StartWorkflowExecutionRequest, _OF_CLIENTS)
SIGNAL_WITH_START = SpecIn(StartSpec, SignalWithStartWorkflowExecutionRequest, _OF_CLIENTS)
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
CONTINUED = SpecIn(
    StartSpec,
    ContinueAsNewWorkflowExecution,
    _TIMEOUTS
    | {
        # The next run goes on with what the first was started with: Core's command has no place for these.
        "execution_timeout": None,
        "cron_schedule": None,
        "priority_key": None,
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
    ChildWorkflowSpec, StartChildWorkflowExecution, {"id_reuse_policy": "workflow_id_reuse_policy"}
)
