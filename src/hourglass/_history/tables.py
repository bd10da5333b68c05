"""The name and shape of each field of each event in Temporal's JSON, and the conversion of structs with these tables.

A field has Temporal's name in camelCase and the shape of its type, unless `_FIELDS` defines otherwise. For example, a
float is written as a duration and an enum as its name. The fields of a struct in `_INLINE` are written as fields of the
event that contains the struct. The `Table` of each kind is created on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Any, NamedTuple, TypeAlias, get_args

import msgspec

from hourglass._evaluator.specs import (
    SPECS,
    WORKER_ONLY_FIELDS,
    ActivitySpec,
    AutoUpgradeVersioningOverride,
    ChildWorkflowSpec,
    ContinueAsNewVersioningBehavior,
    IdReusePolicy,
    OneTimeVersioningOverride,
    ParentClosePolicy,
    PinnedVersioningOverride,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass._history import events as h
from hourglass._history.shapes import (
    DETAILS,
    FIRST,
    FLAG,
    HEADER,
    INDEXED,
    INT32,
    INT64,
    MAYBE_SECONDS,
    MOMENT,
    NAME,
    NANOSECONDS,
    NUMBER,
    PAYLOAD,
    PAYLOADS,
    QUEUE,
    SECONDS,
    SOME_SECONDS,
    TEXT,
    Json,
    Shape,
    camel,
    enum_from,
    enum_of,
    list_of,
    number,
    read_payload,
    read_text,
    snake,
    write_payload,
)
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
from hourglass.errors import RetryState, TimeoutType

_DEEPEST = 200  # the maximum number of nested causes that are read
_INFOS: dict[type[FailureInfo], str] = {
    ApplicationFailure: "applicationFailureInfo",
    TimeoutFailure: "timeoutFailureInfo",
    CanceledFailure: "canceledFailureInfo",
    TerminatedFailure: "terminatedFailureInfo",
    ServerFailure: "serverFailureInfo",
    ResetFailure: "resetWorkflowFailureInfo",
    ActivityFailure: "activityFailureInfo",
    ChildWorkflowFailure: "childWorkflowExecutionFailureInfo",
}
_INFO_KINDS = {key: kind for kind, key in _INFOS.items()}
_INFO_KINDS |= {snake(key): kind for key, kind in _INFO_KINDS.items()}


def write_failure(failure: Failure) -> Json:
    """Convert a failure and its causes to JSON."""
    document: Json = {}
    if failure.message:
        document["message"] = failure.message
    if failure.source:
        document["source"] = failure.source
    if failure.stack_trace:
        document["stackTrace"] = failure.stack_trace
    if failure.encoded_attributes is not None:
        document["encodedAttributes"] = write_payload(failure.encoded_attributes)
    if failure.cause is not None:
        document["cause"] = write_failure(failure.cause)
    if failure.info is not None:
        document[_INFOS[type(failure.info)]] = table(type(failure.info)).write(failure.info)
    return document


def read_failure(value: Any, depth: int = 0) -> Failure:
    """Convert a failure and its causes from JSON. For a failure of an unknown kind, only the common fields are read."""
    if not isinstance(value, dict):
        return Failure()
    info: FailureInfo | None = None
    for key, member in value.items():
        kind = _INFO_KINDS.get(key)
        if kind is not None and member is not None:
            info = table(kind).read(member)
    encoded = value.get("encodedAttributes", value.get("encoded_attributes"))
    cause = value.get("cause")
    return Failure(
        message=read_text(value.get("message")),
        info=info,
        cause=read_failure(cause, depth + 1) if isinstance(cause, dict) and depth < _DEEPEST else None,
        stack_trace=read_text(value.get("stackTrace", value.get("stack_trace"))),
        source=read_text(value.get("source")),
        encoded_attributes=None if encoded is None else read_payload(encoded),
    )


_FAILURE = Shape(write_failure, read_failure, Failure())
_MAYBE_FAILURE = Shape(write_failure, read_failure, None)


def _write_override(override: VersioningOverride) -> Json:
    if isinstance(override, AutoUpgradeVersioningOverride):
        return {"autoUpgrade": True}
    if isinstance(override, OneTimeVersioningOverride):
        target = table(WorkerDeploymentVersion).write(override.target_version)
        return {"oneTime": {"targetDeploymentVersion": target}}
    version = table(WorkerDeploymentVersion).write(override.version)
    return {"pinned": {"behavior": "PINNED_OVERRIDE_BEHAVIOR_PINNED", "version": version}}


def _read_override(value: Any) -> VersioningOverride | None:
    if not isinstance(value, dict):
        return None
    pinned = value.get("pinned")
    if isinstance(pinned, dict):
        return PinnedVersioningOverride(table(WorkerDeploymentVersion).read(pinned.get("version")))
    once = value.get("oneTime", value.get("one_time"))
    if isinstance(once, dict):
        target = once.get("targetDeploymentVersion", once.get("target_deployment_version"))
        return OneTimeVersioningOverride(table(WorkerDeploymentVersion).read(target))
    upgrades = value.get("autoUpgrade", value.get("auto_upgrade"))
    return AutoUpgradeVersioningOverride() if upgrades else None


def _struct(kind: type[msgspec.Struct], *, optional: bool) -> Shape:
    made = table(kind)
    return Shape(made.write, made.read, None if optional else made.read({}))


# fmt: off
_CAUSES = (
    "UNSPECIFIED", "UNHANDLED_COMMAND", "BAD_SCHEDULE_ACTIVITY_ATTRIBUTES",
    "BAD_REQUEST_CANCEL_ACTIVITY_ATTRIBUTES", "BAD_START_TIMER_ATTRIBUTES", "BAD_CANCEL_TIMER_ATTRIBUTES",
    "BAD_RECORD_MARKER_ATTRIBUTES", "BAD_COMPLETE_WORKFLOW_EXECUTION_ATTRIBUTES",
    "BAD_FAIL_WORKFLOW_EXECUTION_ATTRIBUTES", "BAD_CANCEL_WORKFLOW_EXECUTION_ATTRIBUTES",
    "BAD_REQUEST_CANCEL_EXTERNAL_WORKFLOW_EXECUTION_ATTRIBUTES", "BAD_CONTINUE_AS_NEW_ATTRIBUTES",
    "START_TIMER_DUPLICATE_ID", "RESET_STICKY_TASK_QUEUE", "WORKFLOW_WORKER_UNHANDLED_FAILURE",
    "BAD_SIGNAL_WORKFLOW_EXECUTION_ATTRIBUTES", "BAD_START_CHILD_EXECUTION_ATTRIBUTES",
    "FORCE_CLOSE_COMMAND", "FAILOVER_CLOSE_COMMAND", "BAD_SIGNAL_INPUT_SIZE", "RESET_WORKFLOW",
    "BAD_BINARY", "SCHEDULE_ACTIVITY_DUPLICATE_ID", "BAD_SEARCH_ATTRIBUTES", "NON_DETERMINISTIC_ERROR",
    "BAD_MODIFY_WORKFLOW_PROPERTIES_ATTRIBUTES", "PENDING_CHILD_WORKFLOWS_LIMIT_EXCEEDED",
    "PENDING_ACTIVITIES_LIMIT_EXCEEDED", "PENDING_SIGNALS_LIMIT_EXCEEDED",
    "PENDING_REQUEST_CANCEL_LIMIT_EXCEEDED", "BAD_UPDATE_WORKFLOW_EXECUTION_MESSAGE", "UNHANDLED_UPDATE",
    "BAD_SCHEDULE_NEXUS_OPERATION_ATTRIBUTES", "PENDING_NEXUS_OPERATIONS_LIMIT_EXCEEDED",
    "BAD_REQUEST_CANCEL_NEXUS_OPERATION_ATTRIBUTES", "FEATURE_DISABLED", "GRPC_MESSAGE_TOO_LARGE",
    "PAYLOADS_TOO_LARGE", "EXTERNAL_STORAGE_FAILURE", "WORKFLOW_PAUSE_REQUESTED_BEFORE_TASK_STARTED",
    "REQUEST_TOO_LARGE",
)
# fmt: on
TASK_FAILURE_CAUSES = dict(enumerate(_CAUSES))
"""Temporal's names for the causes of a failed workflow task, by number."""

_INLINE: frozenset[type[msgspec.Struct]] = frozenset(SPECS)
"""Structs whose fields are written as fields of the event that contains the struct."""

_TYPES: dict[Any, Shape] = {
    str: TEXT,
    bool: FLAG,
    int: INT64,
    float: SECONDS,
    Payload: FIRST,
    tuple[Payload, ...]: PAYLOADS,
    tuple[int, ...]: list_of(number),  # type: ignore[arg-type]
    tuple[str, ...]: list_of(str),
    dict[str, Payload]: HEADER,
    dict[str, tuple[Payload, ...]]: DETAILS,
    VersioningOverride: Shape(_write_override, _read_override, None),
    RetryState: enum_of(RetryState, "RETRY_STATE_"),
    TimeoutType: enum_of(TimeoutType, "TIMEOUT_TYPE_"),
    ParentClosePolicy: enum_of(ParentClosePolicy, "PARENT_CLOSE_POLICY_"),
    IdReusePolicy: enum_of(IdReusePolicy, "WORKFLOW_ID_REUSE_POLICY_"),
    VersioningBehavior: enum_of(VersioningBehavior, "VERSIONING_BEHAVIOR_"),
    ContinueAsNewVersioningBehavior: enum_of(
        ContinueAsNewVersioningBehavior, "CONTINUE_AS_NEW_VERSIONING_BEHAVIOR_"
    ),
    h.Initiator: enum_of(h.Initiator, "CONTINUE_AS_NEW_INITIATOR_"),
    h.StartChildFailedCause: enum_of(h.StartChildFailedCause, "START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_"),
}
"""The shape of a field, by its type."""

_Field: TypeAlias = str | Shape | tuple[str, Shape]

_FIELDS: dict[str | tuple[type[Any], str], _Field] = {
    # the requests of a workflow, such as activities and children
    "activity_type": NAME,
    "workflow_type": NAME,
    "task_queue": QUEUE,
    "arguments": "input",
    "headers": "header",
    "search_attributes": INDEXED,
    "task_completed_event_id": "workflowTaskCompletedEventId",
    "execution_timeout": ("workflowExecutionTimeout", SOME_SECONDS),
    "run_timeout": "workflowRunTimeout",
    "task_timeout": "workflowTaskTimeout",
    "id_reuse_policy": "workflowIdReusePolicy",
    "priority_key": ("priority.priorityKey", INT32),
    "fairness_key": "priority.fairnessKey",
    "fairness_weight": ("priority.fairnessWeight", NUMBER),
    "attempt": INT32,
    "duration_ns": ("startToFireTimeout", NANOSECONDS),
    "child_only": "childWorkflowOnly",
    "summary": ("/userMetadata.summary", PAYLOAD),
    # runs
    "run_id": "workflowExecution.runId",
    "new_run_id": "newExecutionRunId",
    "original_run_id": "originalExecutionRunId",
    "first_run_id": "firstExecutionRunId",
    "continued_run_id": "continuedExecutionRunId",
    "parent_namespace": "parentWorkflowNamespace",
    "parent_workflow_id": "parentWorkflowExecution.workflowId",
    "parent_run_id": "parentWorkflowExecution.runId",
    "root_workflow_id": "rootWorkflowExecution.workflowId",
    "root_run_id": "rootWorkflowExecution.runId",
    "external_workflow_id": "externalWorkflowExecution.workflowId",
    "external_run_id": "externalWorkflowExecution.runId",
    "update_id": "meta.updateId",
    # retry policies and failures
    "backoff_coefficient": NUMBER,
    "maximum_interval": SOME_SECONDS,
    "maximum_attempts": INT32,
    "next_retry_delay": MAYBE_SECONDS,
    "category": enum_from("APPLICATION_ERROR_CATEGORY_", {0: "UNSPECIFIED", 1: "BENIGN"}, int),
    (TimeoutFailure, "type"): "timeoutType",
    # the first event of a run, and the last
    (h.WorkflowExecutionStarted, "run_timeout"): ("workflowRunTimeout", SOME_SECONDS),
    "expiration_ns": ("workflowExecutionExpirationTime", MOMENT),
    "first_task_backoff": "firstWorkflowTaskBackoff",
    "static_summary": ("/userMetadata.summary", PAYLOAD),
    "static_details": ("/userMetadata.details", PAYLOAD),
    "declined_version": "declinedTargetVersionUpgrade.deploymentVersion",
    (h.WorkflowExecutionContinuedAsNew, "task_timeout"): "workflowTaskTimeout",
    # tasks
    (h.WorkflowTaskScheduled, "task_timeout"): "startToCloseTimeout",
    "history_size": "historySizeBytes",
    "target_version_changed": "targetWorkerDeploymentVersionChanged",
    (h.WorkflowTaskCompleted, "sdk_name"): "sdkMetadata.sdkName",
    (h.WorkflowTaskCompleted, "core_flags"): "sdkMetadata.coreUsedFlags",
    (h.WorkflowTaskCompleted, "flags"): "sdkMetadata.langUsedFlags",
    (h.WorkflowTaskCompleted, "version"): "deploymentVersion",
    (h.WorkflowTaskCompleted, "behavior"): "versioningBehavior",
    (h.WorkflowTaskFailed, "cause"): enum_from("WORKFLOW_TASK_FAILED_CAUSE_", TASK_FAILURE_CAUSES, int),
    (h.WorkflowTaskFailed, "new_run_id"): "newRunId",
    # others
    (h.NexusOperationCompleted, "result"): PAYLOAD,
    (h.NexusOperationScheduled, "argument"): ("input", PAYLOAD),
    "cancel_requested_event_id": "latestCancelRequestedEventId",
    (h.SignalExternalWorkflowExecutionFailed, "cause"): enum_of(
        h.ExternalFailedCause, "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE_"
    ),
    (h.RequestCancelExternalWorkflowExecutionFailed, "cause"): enum_of(
        h.ExternalFailedCause, "CANCEL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE_"
    ),
    (h.WorkflowExecutionCancelRequested, "reason"): "cause",
    (h.WorkflowPropertiesModified, "memo"): "upsertedMemo",
    # updates
    (h.UpdateRequest, "identity"): "meta.identity",
    (h.UpdateRequest, "name"): "input.name",
    (h.UpdateRequest, "arguments"): "input.args",
    (h.UpdateRequest, "headers"): "input.header",
    (h.WorkflowExecutionUpdateAccepted, "update_id"): "protocolInstanceId",
    (h.WorkflowExecutionUpdateAccepted, "sequencing_event_id"): "acceptedRequestSequencingEventId",
    (h.WorkflowExecutionUpdateAccepted, "request"): "acceptedRequest",
    (h.WorkflowExecutionUpdateRejected, "update_id"): "protocolInstanceId",
    (h.WorkflowExecutionUpdateRejected, "request"): "rejectedRequest",
    (h.WorkflowExecutionUpdateCompleted, "identity"): "meta.identity",
    (h.WorkflowExecutionUpdateCompleted, "result"): "outcome.success",
    (h.WorkflowExecutionUpdateCompleted, "failure"): ("outcome.failure", _MAYBE_FAILURE),
}
"""Names and shapes that do not follow from a field's own name and type. The key is the field's name, or its struct and
name.

A dot leads into a nested object. A leading slash leads out of the attributes, to the event itself.
"""

_NOT_WRITTEN = frozenset(
    {
        (h.ActivityTaskStarted, "began_ns"),  # the timestamp of the event itself
        *((ActivitySpec, name) for name in WORKER_ONLY_FIELDS),
        (ChildWorkflowSpec, "cancellation_type"),
        (h.WorkflowExecutionContinuedAsNew, "execution_timeout"),
        (h.WorkflowExecutionContinuedAsNew, "retry_policy"),
        (h.WorkflowExecutionContinuedAsNew, "cron_schedule"),
        (h.WorkflowExecutionContinuedAsNew, "priority_key"),
        (h.WorkflowExecutionContinuedAsNew, "fairness_key"),
        (h.WorkflowExecutionContinuedAsNew, "fairness_weight"),
        (h.WorkflowExecutionContinuedAsNew, "static_summary"),
        (h.WorkflowExecutionContinuedAsNew, "static_details"),
        (h.WorkflowExecutionContinuedAsNew, "versioning"),  # used only inside a server
    }
)
"""Fields that Temporal's events do not have, because only the worker needs them or because they are part of the next
run's first event.
"""

_DEFAULTS: dict[tuple[type[Any], str] | str, Any] = {
    "attempt": 1,
    (h.LocalActivityMarkerRecorded, "attempt"): 0,
    (h.WorkflowExecutionCompleted, "result"): h.NO_RESULT,
}
"""Values of missing fields that differ from protobuf's defaults, because early servers omitted these fields."""


class _Row(NamedTuple):
    """A field: its path in the struct, its keys in JSON, and its shape."""

    attribute: str
    key: str
    inner: str
    shape: Shape


class Table:
    """The conversion of a kind of struct to and from JSON."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind
        self._inline: list[tuple[str, type[Any]]] = []
        rows = list(self._rows(kind, ""))
        own = [row for row in rows if not row.key.startswith("/")]
        self._get = _getter([row.attribute for row in own])
        self._write = [(row.key, row.inner, row.shape.write, row.shape.always) for row in own]
        self._metadata = [
            (attrgetter(row.attribute), row.inner, row.shape.write) for row in rows if row not in own
        ]
        self._known: dict[str, Any] = {}
        for row in own:
            _put(self._known, row)
        self._outer: dict[str, Any] = {}
        for row in rows:
            if row not in own:
                _put(self._outer, row._replace(key=row.key[1:]))
        self._unset = {row.attribute: _unset(kind, row) for row in rows}

    def _rows(self, kind: type[Any], prefix: str) -> Iterable[_Row]:
        names = kind.__struct_fields__
        for field in msgspec.structs.fields(kind):
            if {(kind, field.name), (self._kind, field.name)} & _NOT_WRITTEN:
                continue
            bare, optional = _without_none(field.type)
            if bare in _INLINE:
                self._inline.append((f"{prefix}{field.name}", bare))
                yield from self._rows(bare, f"{prefix}{field.name}.")
                continue
            named = _FIELDS.get((kind, field.name), _FIELDS.get(field.name, ""))
            exception = _FIELDS.get((self._kind, field.name), named)
            path, shape = (
                ("", exception)
                if isinstance(exception, Shape)
                else (exception, None)
                if isinstance(exception, str)
                else exception
            )
            if field.name == "workflow_id" and "run_id" in names:
                path = "workflowExecution.workflowId"
            key, _, inner = (path or camel(field.name)).partition(".")
            yield _Row(f"{prefix}{field.name}", key, inner, shape or _shape(bare, optional))

    def write(self, value: Any) -> Json:
        """Convert a struct to JSON."""
        document: Json = {}
        for (key, inner, write, always), field_value in zip(self._write, self._get(value), strict=True):
            if field_value or (always and field_value is not None):
                if inner:
                    document.setdefault(key, {})[inner] = write(field_value)
                else:
                    document[key] = write(field_value)
        return document

    def write_metadata(self, value: Any) -> Json:
        """Convert the fields of an event that are outside its attributes (its summary and details) to JSON."""
        return {key: write(text) for get, key, write in self._metadata if (text := get(value)) is not None}

    def read(self, document: Any, metadata: Any = None) -> Any:
        """Convert a struct from JSON."""
        fields = self._unset.copy()
        if isinstance(document, dict):
            _read(document, self._known, fields)
        if metadata is not None and self._outer:
            _read({"userMetadata": metadata}, self._outer, fields)
        for name, kind in reversed(self._inline):
            inner = {key: fields.pop(f"{name}.{key}") for key in _field_names(fields, name)}
            fields[name] = kind(**inner)
        return self._kind(**fields)


def _unset(kind: type[Any], row: _Row) -> Any:
    name = row.attribute.rpartition(".")[2]
    return _DEFAULTS.get((kind, name), _DEFAULTS.get(name, row.shape.unset))


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns these attributes of a struct as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _field_names(fields: Mapping[str, Any], name: str) -> list[str]:
    return [
        key[len(name) + 1 :]
        for key in fields
        if key.startswith(f"{name}.") and "." not in key[len(name) + 1 :]
    ]


def _put(readers: dict[str, Any], row: _Row) -> None:
    """Add the readers of a field, under the field's names in JSON and in protobuf."""
    for key in {row.key, snake(row.key)}:
        if not row.inner:
            readers[key] = (row.attribute, row.shape.read)
            continue
        inside = readers.setdefault(key, {})
        inside[row.inner] = inside[snake(row.inner)] = (row.attribute, row.shape.read)


def _read(document: Mapping[str, Any], readers: Mapping[str, Any], fields: dict[str, Any]) -> None:
    for key, value in document.items():
        entry = readers.get(key)
        if entry is None or value is None:
            continue
        if type(entry) is tuple:
            if (
                read := entry[1](value)
            ) is not None:  # an empty list of payloads counts as no payload, so the field stays unset
                fields[entry[0]] = read
        elif isinstance(value, dict):
            _read(value, entry, fields)


def _shape(kind: Any, optional: bool) -> Shape:
    if kind is Failure:
        return _MAYBE_FAILURE if optional else _FAILURE
    shape = _TYPES.get(kind)
    return _struct(kind, optional=optional) if shape is None else shape


def _without_none(kind: Any) -> tuple[Any, bool]:
    if not isinstance(kind, UnionType):
        return kind, False
    types = [member for member in get_args(kind) if member is not type(None)]
    bare = types[0]
    for member in types[1:]:
        bare = bare | member
    return bare, len(types) < len(get_args(kind))


@cache
def table(kind: type[Any]) -> Table:
    """Return the table of a kind of struct. Cached."""
    return Table(kind)
