"""Our values in Temporal's messages, both ways: payloads, durations, times, retry policies, failures, and specs. Pure, and on
the hot path.

Reading an unset message field yields defaults without creating it, so presence is asked only where it means
something. Writing goes straight into the message that will be sent: copies cost more than the fields
themselves.

Failures have one small function per kind, both ways. A kind that we do not know (Nexus) arrives with `info=None` and
keeps its message, stack and cause.

Of specs there is a table for each message: what a field is called there, where that is not its own name. How a value is written
follows from the field's type. A field that has no place in a message says so, with None and the reason. A field that is
added to a spec without a line here keeps this module from being imported: every name is looked up in the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import lru_cache, reduce
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar, get_type_hints

import msgspec
from temporalio.api.activity.v1 import ActivityOptions
from temporalio.api.common.v1 import Payloads as PayloadsMessage
from temporalio.api.workflow.v1 import NewWorkflowExecutionInfo
from temporalio.api.workflowservice.v1 import (
    SignalWithStartWorkflowExecutionRequest,
    StartActivityExecutionRequest,
    StartWorkflowExecutionRequest,
)
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
from hourglass._engine.specs import ActivitySpec, ChildWorkflowSpec, Payloads, RetryRule, Spec, StartSpec
from hourglass._engine.versions import (
    AutoUpgradeVersioningOverride,
    OneTimeVersioningOverride,
    PinnedVersioningOverride,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass._temporal.version import has, installed
from hourglass.converter import (
    ActivityFailure,
    ApplicationFailure,
    CanceledFailure,
    ChildWorkflowFailure,
    Failure,
    FailureInfo,
    Payload,
    ResetFailure,
    ServerFailure,
    TerminatedFailure,
    TimeoutFailure,
)
from hourglass.errors import RetryState, TimeoutType, UsageError

# --- payloads, durations, times, retry policies ----------------------------------------------------------------------


_KNOWN: dict[bytes, str] = {
    name.encode(): name
    for name in ("json/plain", "binary/null", "binary/plain", "json/protobuf", "binary/protobuf")
}
_BYTES: dict[str, bytes] = {name: raw for raw, name in _KNOWN.items()}

NANOS = 1_000_000_000
NO_PAYLOADS: dict[str, Payload] = {}  # shared by all that have none; data is never changed


def payload_from(message: Any) -> Payload:
    """A payload as data."""
    metadata = message.metadata
    raw = metadata.get("encoding", b"")
    encoding = _KNOWN.get(raw)
    if encoding is None:
        encoding = raw.decode("utf-8", "surrogateescape")
    if len(metadata) == (1 if raw else 0):
        return Payload(message.data, encoding)
    rest = {key: value for key, value in metadata.items() if key != "encoding"}
    return Payload(message.data, encoding, rest or None)


def payloads_from(messages: Iterable[Any]) -> Payloads:
    """Payloads as data, in order."""
    found = []
    for message in messages:
        found.append(payload_from(message))
    return tuple(found)


def payloads_from_bytes(data: bytes) -> Payloads:
    """An encoded Payloads message as data. Raises `ValueError`."""
    try:
        return payloads_from(PayloadsMessage.FromString(data).payloads)
    except Exception:
        raise ValueError("these bytes are no payloads") from None


def payload_map_from(messages: Mapping[str, Any]) -> dict[str, Payload]:
    """Named payloads as data."""
    return {key: payload_from(messages[key]) for key in messages} if messages else NO_PAYLOADS


def put_payload(message: Any, payload: Payload) -> None:
    """Write a payload into an empty message."""
    message.data = payload.data
    encoding = payload.encoding
    if encoding:
        raw = _BYTES.get(encoding)
        message.metadata["encoding"] = encoding.encode("utf-8", "surrogateescape") if raw is None else raw
    if payload.metadata:
        for key, value in payload.metadata.items():
            message.metadata[key] = value


def put_payloads(messages: Any, payloads: Payloads) -> None:
    """Append payloads to a repeated field."""
    for payload in payloads:
        put_payload(messages.add(), payload)


def put_payload_map(messages: Any, payloads: Mapping[str, Payload]) -> None:
    """Add named payloads to a map field."""
    for key, payload in payloads.items():
        put_payload(messages[key], payload)


def seconds_from(duration: Any) -> float:
    """A duration in seconds; 0 where it is unset."""
    nanos = duration.nanos
    return float(duration.seconds + nanos / NANOS if nanos else duration.seconds)


def put_seconds(duration: Any, seconds: float) -> None:
    """Write a duration, also that of 0."""
    whole = int(seconds)
    if whole == seconds:  # nearly all are
        duration.seconds = whole
    else:
        put_nanos(duration, round(seconds * NANOS))


def put_nanos(message: Any, nanos: int) -> None:
    """Write nanoseconds into a duration or a timestamp."""
    message.seconds, message.nanos = divmod(nanos, NANOS)


def nanos_from(timestamp: Any) -> int:
    """A time in nanoseconds since the epoch; 0 where it is unset."""
    return int(timestamp.seconds * NANOS + timestamp.nanos)


def retry_rule_from(policy: Any) -> RetryRule:
    """A retry policy as data."""
    return RetryRule(
        initial_interval=seconds_from(policy.initial_interval),
        backoff_coefficient=policy.backoff_coefficient,
        maximum_interval=seconds_from(policy.maximum_interval),
        maximum_attempts=policy.maximum_attempts,
        non_retryable_error_types=tuple(policy.non_retryable_error_types),
    )


def put_retry_rule(policy: Any, rule: RetryRule) -> None:
    """Write a retry policy."""
    put_seconds(policy.initial_interval, rule.initial_interval)
    policy.backoff_coefficient = rule.backoff_coefficient
    if rule.maximum_interval:
        put_seconds(policy.maximum_interval, rule.maximum_interval)
    policy.maximum_attempts = rule.maximum_attempts
    if rule.non_retryable_error_types:
        policy.non_retryable_error_types.extend(rule.non_retryable_error_types)


# --- versions --------------------------------------------------------------------------------------------------------

_PIN = 1  # PINNED_OVERRIDE_BEHAVIOR_PINNED


def put_override(message: Any, override: VersioningOverride) -> None:
    """Write an override, in its own words and, where they have any, in those of servers before 1.29."""
    match override:
        case PinnedVersioningOverride(version):
            message.behavior = int(VersioningBehavior.PINNED)
            message.pinned_version = version.to_canonical_string()
            _put_version(message.pinned.version, version)
            message.pinned.behavior = _PIN
        case OneTimeVersioningOverride(version):
            _put_version(message.one_time.target_deployment_version, version)
        case _:
            message.behavior = int(VersioningBehavior.AUTO_UPGRADE)
            message.auto_upgrade = True


def _put_version(message: Any, version: WorkerDeploymentVersion) -> None:
    message.deployment_name = version.deployment_name
    message.build_id = version.build_id


def override_from(message: Any) -> VersioningOverride | None:
    """An override as data; None where there is none."""
    match message.WhichOneof("override"):
        case "pinned":
            return PinnedVersioningOverride(_version_from(message.pinned.version))
        case "one_time":
            return OneTimeVersioningOverride(_version_from(message.one_time.target_deployment_version))
        case "auto_upgrade":
            return AutoUpgradeVersioningOverride()
        case _:
            return None


def _version_from(message: Any) -> WorkerDeploymentVersion:
    return WorkerDeploymentVersion(message.deployment_name, message.build_id)


# --- failures --------------------------------------------------------------------------------------------------------


E = TypeVar("E", bound=IntEnum)


def failure_from(message: Any) -> Failure:
    """A failure as data, with its causes."""
    kind = message.WhichOneof("failure_info")
    read = _READ.get(kind)
    return Failure(
        message=message.message,
        info=None if read is None else read(getattr(message, kind)),
        cause=failure_from(message.cause) if message.HasField("cause") else None,
        stack_trace=message.stack_trace,
        source=message.source,
        encoded_attributes=(
            payload_from(message.encoded_attributes) if message.HasField("encoded_attributes") else None
        ),
    )


def put_failure(message: Any, failure: Failure) -> None:
    """Write a failure, with its causes, into an empty message."""
    message.SetInParent()
    message.message = failure.message
    message.stack_trace = failure.stack_trace
    message.source = failure.source
    if failure.encoded_attributes is not None:
        put_payload(message.encoded_attributes, failure.encoded_attributes)
    if failure.info is not None:
        kind, write = _WRITE[type(failure.info)]
        info = getattr(message, kind)
        info.SetInParent()
        write(info, failure.info)
    if failure.cause is not None:
        put_failure(message.cause, failure.cause)


def _member(kind: type[E], number: int) -> E:
    # A number newer than us is no reason to fail a task.
    try:
        return kind(number)
    except ValueError:
        return kind(0)


# --- failures: reading -----------------------------------------------------------------------------------------------


def _application(info: Any) -> ApplicationFailure:
    return ApplicationFailure(
        type=info.type,
        non_retryable=info.non_retryable,
        details=payloads_from(info.details.payloads),
        next_retry_delay=seconds_from(info.next_retry_delay) if info.HasField("next_retry_delay") else None,
        category=info.category,
    )


def _timeout(info: Any) -> TimeoutFailure:
    return TimeoutFailure(
        type=_member(TimeoutType, info.timeout_type),
        last_heartbeat_details=without_carrier(payloads_from(info.last_heartbeat_details.payloads)),
    )


def _canceled(info: Any) -> CanceledFailure:
    return CanceledFailure(payloads_from(info.details.payloads))


def _terminated(info: Any) -> TerminatedFailure:
    return TerminatedFailure()


def _server(info: Any) -> ServerFailure:
    return ServerFailure(info.non_retryable)


def _reset(info: Any) -> ResetFailure:
    return ResetFailure(without_carrier(payloads_from(info.last_heartbeat_details.payloads)))


def _activity(info: Any) -> ActivityFailure:
    return ActivityFailure(
        activity_type=info.activity_type.name,
        activity_id=info.activity_id,
        identity=info.identity,
        scheduled_event_id=info.scheduled_event_id,
        started_event_id=info.started_event_id,
        retry_state=_member(RetryState, info.retry_state),
    )


def _child(info: Any) -> ChildWorkflowFailure:
    return ChildWorkflowFailure(
        namespace=info.namespace,
        workflow_id=info.workflow_execution.workflow_id,
        run_id=info.workflow_execution.run_id,
        workflow_type=info.workflow_type.name,
        initiated_event_id=info.initiated_event_id,
        started_event_id=info.started_event_id,
        retry_state=_member(RetryState, info.retry_state),
    )


_READ: dict[str | None, Callable[[Any], FailureInfo]] = {
    "application_failure_info": _application,
    "timeout_failure_info": _timeout,
    "canceled_failure_info": _canceled,
    "terminated_failure_info": _terminated,
    "server_failure_info": _server,
    "reset_workflow_failure_info": _reset,
    "activity_failure_info": _activity,
    "child_workflow_execution_failure_info": _child,
}


# --- failures: writing -----------------------------------------------------------------------------------------------


def _put_application(info: Any, failure: ApplicationFailure) -> None:
    info.type = failure.type
    info.non_retryable = failure.non_retryable
    if failure.details:
        put_payloads(info.details.payloads, failure.details)
    if failure.next_retry_delay is not None:
        put_seconds(info.next_retry_delay, failure.next_retry_delay)
    info.category = failure.category


def _put_timeout(info: Any, failure: TimeoutFailure) -> None:
    info.timeout_type = int(failure.type)
    if failure.last_heartbeat_details:
        put_payloads(info.last_heartbeat_details.payloads, failure.last_heartbeat_details)


def _put_canceled(info: Any, failure: CanceledFailure) -> None:
    if failure.details:
        put_payloads(info.details.payloads, failure.details)


def _put_terminated(info: Any, failure: TerminatedFailure) -> None:
    pass


def _put_server(info: Any, failure: ServerFailure) -> None:
    info.non_retryable = failure.non_retryable


def _put_reset(info: Any, failure: ResetFailure) -> None:
    if failure.last_heartbeat_details:
        put_payloads(info.last_heartbeat_details.payloads, failure.last_heartbeat_details)


def _put_activity(info: Any, failure: ActivityFailure) -> None:
    info.activity_type.name = failure.activity_type
    info.activity_id = failure.activity_id
    info.identity = failure.identity
    info.scheduled_event_id = failure.scheduled_event_id
    info.started_event_id = failure.started_event_id
    info.retry_state = int(failure.retry_state)


def _put_child(info: Any, failure: ChildWorkflowFailure) -> None:
    info.namespace = failure.namespace
    info.workflow_execution.workflow_id = failure.workflow_id
    info.workflow_execution.run_id = failure.run_id
    info.workflow_type.name = failure.workflow_type
    info.initiated_event_id = failure.initiated_event_id
    info.started_event_id = failure.started_event_id
    info.retry_state = int(failure.retry_state)


_WRITE: dict[type[Any], tuple[str, Callable[[Any, Any], None]]] = {
    ApplicationFailure: ("application_failure_info", _put_application),
    TimeoutFailure: ("timeout_failure_info", _put_timeout),
    CanceledFailure: ("canceled_failure_info", _put_canceled),
    TerminatedFailure: ("terminated_failure_info", _put_terminated),
    ServerFailure: ("server_failure_info", _put_server),
    ResetFailure: ("reset_workflow_failure_info", _put_reset),
    ActivityFailure: ("activity_failure_info", _put_activity),
    ChildWorkflowFailure: ("child_workflow_execution_failure_info", _put_child),
}


# --- specs -----------------------------------------------------------------------------------------------------------


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
            found = reduce(getattr, (*within, name), message())  # raises where there is no such field
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

# --- activities -------------------------------------------------------------------------------------------------------

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
        # What the worker that asked for it does with it:
        "cancellation_type": None,
        "disable_eager_execution": None,
        "local_retry_threshold": None,
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
    "cancellation_type": None,  # of workflows, which wait
    "disable_eager_execution": None,
    "local_retry_threshold": None,
}
ACTIVITY_START = SpecIn(ActivitySpec, StartActivityExecutionRequest, _ALONE)
ACTIVITY_OPTIONS = SpecIn(ActivitySpec, ActivityOptions, _ALONE)
"""Activities that a client starts, and the options of any."""


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
    **_PRIORITY,
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
