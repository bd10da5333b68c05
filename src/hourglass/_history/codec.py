"""Events to and from Temporal's JSON form: the one that `temporal workflow show`, its web UI and every SDK's replayer
read and write. One table for all kinds of events.

Must not know: runs, engines, decisions, protobuf. A field of an event has Temporal's name in camelCase and the shape
that its type says (a float is a duration, an enum its name, …), unless `_FIELDS` says otherwise; a field that holds one
of `_INLINE` stands in JSON as that struct's own fields. From this a `Table` is made for each kind when it is first met.
Protobuf's JSON rules hold: 64-bit integers as text, bytes in base64, durations as "1.5s", times as RFC 3339, enums by
name, defaults left out. What Core itself writes (`PATCH_MARKER`, `LOCAL_MARKER`, flags) is written so that Core replays
what the embedded engine wrote.

Reading is lenient, because a picture of most is better than none: fields that are not known, are missing or have
another shape read as unset, payloads that the web UI has decoded as JSON, names of enums in both spellings
(`EVENT_TYPE_TIMER_FIRED`, `TimerFired`). Who needs to know that a history is well-formed asks `_temporal.histories`.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode, urlsafe_b64decode
from binascii import Error as BadBase64
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import cache
from operator import attrgetter
from types import UnionType
from typing import Any, NamedTuple, TypeAlias, get_args

import msgspec

from hourglass._engine.commands import EventGroupMarker
from hourglass._engine.specs import SPECS, ActivitySpec, ChildWorkflowSpec, IdReusePolicy, ParentClosePolicy
from hourglass._engine.versions import (
    AutoUpgradeVersioningOverride,
    ContinueAsNewVersioningBehavior,
    OneTimeVersioningOverride,
    PinnedVersioningOverride,
    VersioningBehavior,
    VersioningOverride,
    WorkerDeploymentVersion,
)
from hourglass._history import events as h
from hourglass._history import times
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
from hourglass.errors import HistoryError, RetryState, TimeoutType

Json: TypeAlias = dict[str, Any]

PATCH_MARKER = "core_patch"
LOCAL_MARKER = "core_local_activity"
"""The names of Core's markers. What Core needs of them is JSON in a payload of its own, with times and durations in
seconds and nanoseconds.
"""

_CAPITALS = re.compile(r"(?<!^)(?=[A-Z])")
_DEEPEST = 200  # causes of a failure


# --- shapes: how a value stands in JSON ---------------------------------------------------------------------


class Shape(NamedTuple):
    """How values of one kind are written, read, and what they are where there is nothing to read."""

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    unset: Any
    always: bool = False
    """Whether the unset value, too, is written. None never is."""


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _snake(name: str) -> str:
    return _CAPITALS.sub("_", name).lower()


def _same(value: Any) -> Any:
    return value


def number(value: object) -> int:
    """An integer, which protobuf's JSON may write as text; 0 where there is none."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return 0
    try:
        return int(value)
    except (ValueError, OverflowError):
        return 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return 0.0
    try:
        return float(value)
    except (ValueError, OverflowError):
        return 0.0


def read_moment(value: Any) -> int:
    """A moment as protobuf's JSON, or as an object of seconds and nanos; 0 where there is none."""
    if isinstance(value, str):
        return times.moment(value) or 0
    if isinstance(value, dict):
        return number(value.get("seconds")) * times.SECOND + number(value.get("nanos"))
    return 0


def read_duration(value: Any) -> int:
    """A duration as protobuf's JSON, or as an object of seconds and nanos; 0 where there is none."""
    return times.duration(value) or 0 if isinstance(value, str) else read_moment(value)


def _write_seconds(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole}s" if whole == seconds else times.duration_text(round(seconds * times.SECOND))


def _read_seconds(value: Any) -> float:
    return read_duration(value) / times.SECOND


def write_payload(payload: Payload) -> Json:
    """One payload."""
    metadata = {key: b64encode(value).decode() for key, value in (payload.metadata or {}).items()}
    if payload.encoding:
        metadata["encoding"] = b64encode(payload.encoding.encode("utf-8", "surrogateescape")).decode()
    document: Json = {"metadata": metadata} if metadata else {}
    if payload.data:
        document["data"] = b64encode(payload.data).decode()
    return document


def read_payload(value: Any) -> Payload:
    """One payload. A value that the web UI has decoded becomes JSON again."""
    if not isinstance(value, dict) or not value.keys() <= {"metadata", "data", "externalPayloads"}:
        return Payload(json.dumps(value, ensure_ascii=False, default=str).encode("utf-8", "replace"))
    metadata = value.get("metadata")
    entries = {key: _read_bytes(each) for key, each in metadata.items()} if isinstance(metadata, dict) else {}
    encoding = entries.pop("encoding", b"").decode("utf-8", "surrogateescape")
    return Payload(_read_bytes(value.get("data")), encoding, entries or None)


def _read_bytes(value: Any) -> bytes:
    if not isinstance(value, str):
        return b""
    try:
        return b64decode(value, validate=True)
    except (BadBase64, ValueError):
        pass
    try:
        if "-" in value or "_" in value or len(value) % 4:
            bare = value.rstrip("=")
            return urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
    except (BadBase64, ValueError):
        pass
    return value.encode("utf-8", "replace")


def write_payloads(payloads: tuple[Payload, ...]) -> Json:
    """Several payloads."""
    return {"payloads": [write_payload(payload) for payload in payloads]} if payloads else {}


def read_payloads(value: Any) -> tuple[Payload, ...]:
    """Several payloads."""
    found = value.get("payloads") if isinstance(value, dict) else None
    return tuple([read_payload(each) for each in found]) if isinstance(found, list) else ()


def _read_first(value: Any) -> Payload | None:
    found = read_payloads(value)
    return found[0] if found else None


def _named(inner: str) -> Shape:
    """Named payloads, below a key."""

    snake = _snake(inner)

    def read(value: Any) -> dict[str, Payload]:
        found = value.get(inner, value.get(snake)) if isinstance(value, dict) else None
        return {key: read_payload(each) for key, each in found.items()} if isinstance(found, dict) else {}

    return Shape(lambda fields: {inner: {key: write_payload(each) for key, each in fields.items()}}, read, {})


def _list(of: type[Any]) -> Shape:
    return Shape(list, lambda value: tuple(map(of, value)) if isinstance(value, list) else (), ())


def _enum(prefix: str, names: Mapping[int, str], make: Callable[[int], Any], otherwise: int = 0) -> Shape:
    """An enum by its name; the unset value is left out, and a name that is not known reads as `otherwise`."""
    texts = {value: f"{prefix}{name}" for value, name in names.items()}
    known: dict[Any, Any] = {}
    for value, text in texts.items():
        bare = text.removeprefix(prefix)
        old = "".join(word.capitalize() for word in bare.split("_"))
        known[text] = known[bare] = known[old] = known[value] = make(value)
    fallback = make(otherwise)
    return Shape(lambda value: texts[value], lambda value: _known(known, value, fallback), fallback)


def _known(table: Mapping[Any, Any], key: Any, otherwise: Any) -> Any:
    return table.get(key, otherwise) if isinstance(key, (str, int)) else otherwise


def _enum_of(kind: type[IntEnum], prefix: str) -> Shape:
    return _enum(prefix, {each.value: each.name for each in kind}, kind, min(kind).value)


_TEXT = Shape(_same, _text, "")
_FLAG = Shape(_same, lambda value: value is True, False)
_INT64 = Shape(str, number, 0)
_INT32 = Shape(_same, number, 0)
_NUMBER = Shape(_same, _float, 0.0)
_SECONDS = Shape(_write_seconds, _read_seconds, 0.0, always=True)
_SOME_SECONDS = Shape(_write_seconds, _read_seconds, 0.0)
_MAYBE_SECONDS = Shape(_write_seconds, _read_seconds, None, always=True)
_NANOSECONDS = Shape(times.duration_text, read_duration, 0, always=True)
_MOMENT = Shape(times.moment_text, read_moment, 0)
_NAME = Shape(
    lambda name: {"name": name}, lambda value: _text(value.get("name")) if isinstance(value, dict) else "", ""
)
_QUEUE = Shape(lambda name: {"name": name, "kind": "TASK_QUEUE_KIND_NORMAL"}, _NAME.read, "")
_PAYLOADS = Shape(write_payloads, read_payloads, ())
_FIRST = Shape(lambda payload: write_payloads((payload,)), _read_first, None)
_PAYLOAD = Shape(write_payload, read_payload, None)
_DETAILS = Shape(
    lambda details: {key: write_payloads(each) for key, each in details.items()},
    lambda value: (
        {key: read_payloads(each) for key, each in value.items()} if isinstance(value, dict) else {}
    ),
    {},
)
_HEADER = _named("fields")
_INDEXED = _named("indexedFields")


# --- failures -----------------------------------------------------------------------------------------------

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
_INFO_KINDS |= {_CAPITALS.sub("_", key).lower(): kind for kind, key in _INFOS.items()}


def write_failure(failure: Failure) -> Json:
    """A failure and its causes."""
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
    """A failure and its causes. Of a kind that is not known the message, the stack and the cause are kept."""
    if not isinstance(value, dict):
        return Failure()
    info: FailureInfo | None = None
    for key, each in value.items():
        kind = _INFO_KINDS.get(key)
        if kind is not None and each is not None:
            info = table(kind).read(each)
    encoded = value.get("encodedAttributes", value.get("encoded_attributes"))
    cause = value.get("cause")
    return Failure(
        message=_text(value.get("message")),
        info=info,
        cause=read_failure(cause, depth + 1) if isinstance(cause, dict) and depth < _DEEPEST else None,
        stack_trace=_text(value.get("stackTrace", value.get("stack_trace"))),
        source=_text(value.get("source")),
        encoded_attributes=None if encoded is None else read_payload(encoded),
    )


_FAILURE = Shape(write_failure, read_failure, Failure())
_MAYBE_FAILURE = Shape(write_failure, read_failure, None)


# --- shapes that are structs of their own -------------------------------------------------------------------


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


# --- the table ----------------------------------------------------------------------------------------------

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
"""Why a workflow task failed, by Temporal's numbers."""

_INLINE: frozenset[type[msgspec.Struct]] = frozenset(SPECS)
"""Structs whose fields stand in JSON as if they were those of the event that holds them."""

_TYPES: dict[Any, Shape] = {
    str: _TEXT,
    bool: _FLAG,
    int: _INT64,
    float: _SECONDS,
    Payload: _FIRST,
    tuple[Payload, ...]: _PAYLOADS,
    tuple[int, ...]: _list(number),  # type: ignore[arg-type]
    tuple[str, ...]: _list(str),
    dict[str, Payload]: _HEADER,
    dict[str, tuple[Payload, ...]]: _DETAILS,
    VersioningOverride: Shape(_write_override, _read_override, None),
    RetryState: _enum_of(RetryState, "RETRY_STATE_"),
    TimeoutType: _enum_of(TimeoutType, "TIMEOUT_TYPE_"),
    ParentClosePolicy: _enum_of(ParentClosePolicy, "PARENT_CLOSE_POLICY_"),
    IdReusePolicy: _enum_of(IdReusePolicy, "WORKFLOW_ID_REUSE_POLICY_"),
    VersioningBehavior: _enum_of(VersioningBehavior, "VERSIONING_BEHAVIOR_"),
    ContinueAsNewVersioningBehavior: _enum_of(
        ContinueAsNewVersioningBehavior, "CONTINUE_AS_NEW_VERSIONING_BEHAVIOR_"
    ),
    h.Initiator: _enum_of(h.Initiator, "CONTINUE_AS_NEW_INITIATOR_"),
    h.StartChildFailedCause: _enum_of(
        h.StartChildFailedCause, "START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_"
    ),
}
"""The shape of a field, by its type."""

_Field: TypeAlias = str | Shape | tuple[str, Shape]

_FIELDS: dict[str | tuple[type[Any], str], _Field] = {
    # what an event says of the workflow's own request
    "activity_type": _NAME,
    "workflow_type": _NAME,
    "task_queue": _QUEUE,
    "arguments": "input",
    "headers": "header",
    "search_attributes": _INDEXED,
    "task_completed_event_id": "workflowTaskCompletedEventId",
    "execution_timeout": ("workflowExecutionTimeout", _SOME_SECONDS),
    "run_timeout": "workflowRunTimeout",
    "task_timeout": "workflowTaskTimeout",
    "id_reuse_policy": "workflowIdReusePolicy",
    "priority_key": ("priority.priorityKey", _INT32),
    "fairness_key": "priority.fairnessKey",
    "fairness_weight": ("priority.fairnessWeight", _NUMBER),
    "attempt": _INT32,
    "duration_ns": ("startToFireTimeout", _NANOSECONDS),
    "child_only": "childWorkflowOnly",
    "summary": ("/userMetadata.summary", _PAYLOAD),
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
    "backoff_coefficient": _NUMBER,
    "maximum_interval": _SOME_SECONDS,
    "maximum_attempts": _INT32,
    "next_retry_delay": _MAYBE_SECONDS,
    "category": _enum("APPLICATION_ERROR_CATEGORY_", {0: "UNSPECIFIED", 1: "BENIGN"}, int),
    (TimeoutFailure, "type"): "timeoutType",
    # the run's first event, and its last
    (h.WorkflowExecutionStarted, "run_timeout"): ("workflowRunTimeout", _SOME_SECONDS),
    "expiration_ns": ("workflowExecutionExpirationTime", _MOMENT),
    "first_task_backoff": "firstWorkflowTaskBackoff",
    "static_summary": ("/userMetadata.summary", _PAYLOAD),
    "static_details": ("/userMetadata.details", _PAYLOAD),
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
    (h.WorkflowTaskFailed, "cause"): _enum("WORKFLOW_TASK_FAILED_CAUSE_", TASK_FAILURE_CAUSES, int),
    (h.WorkflowTaskFailed, "new_run_id"): "newRunId",
    # others
    (h.NexusOperationCompleted, "result"): _PAYLOAD,
    (h.NexusOperationScheduled, "argument"): ("input", _PAYLOAD),
    "cancel_requested_event_id": "latestCancelRequestedEventId",
    (h.SignalExternalWorkflowExecutionFailed, "cause"): _enum_of(
        h.ExternalFailedCause, "SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED_CAUSE_"
    ),
    (h.RequestCancelExternalWorkflowExecutionFailed, "cause"): _enum_of(
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
"""Where Temporal's name, or the shape, does not follow from the field's own: by name, or by struct and name. A point
goes into an object; a slash at the beginning leads out of the attributes, to the event itself.
"""

_NOT_WRITTEN = frozenset(
    {
        (h.ActivityTaskStarted, "began_ns"),  # which is the event's own time
        (ActivitySpec, "cancellation_type"),
        (ActivitySpec, "disable_eager_execution"),
        (ActivitySpec, "local_retry_threshold"),
        (ChildWorkflowSpec, "cancellation_type"),
        (h.WorkflowExecutionContinuedAsNew, "execution_timeout"),
        (h.WorkflowExecutionContinuedAsNew, "retry_policy"),
        (h.WorkflowExecutionContinuedAsNew, "cron_schedule"),
        (h.WorkflowExecutionContinuedAsNew, "priority_key"),
        (h.WorkflowExecutionContinuedAsNew, "fairness_key"),
        (h.WorkflowExecutionContinuedAsNew, "fairness_weight"),
        (h.WorkflowExecutionContinuedAsNew, "static_summary"),
        (h.WorkflowExecutionContinuedAsNew, "static_details"),
        (h.WorkflowExecutionContinuedAsNew, "versioning"),  # a server keeps it to itself
    }
)
"""Fields that Temporal's events do not have: what only the worker needs to know, or the next run's first event says."""

_DEFAULTS: dict[tuple[type[Any], str] | str, Any] = {
    "attempt": 1,
    (h.LocalActivityMarkerRecorded, "attempt"): 0,
    (h.WorkflowExecutionCompleted, "result"): h.NO_RESULT,
}
"""What a field is that is not there, where that is not what protobuf says: servers of the first years left them out."""


# --- tables of kinds ----------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """One field: the path to it in the struct, its keys in JSON, and its shape."""

    attribute: str
    key: str
    inner: str
    shape: Shape


class Table:
    """How one struct is written and read."""

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
            said = _FIELDS.get((self._kind, field.name), named)
            path, shape = (
                ("", said) if isinstance(said, Shape) else (said, None) if isinstance(said, str) else said
            )
            if field.name == "workflow_id" and "run_id" in names:
                path = "workflowExecution.workflowId"
            key, _, inner = (path or _camel(field.name)).partition(".")
            yield _Row(f"{prefix}{field.name}", key, inner, shape or _shape(bare, optional))

    def write(self, value: Any) -> Json:
        """A struct as JSON."""
        document: Json = {}
        for (key, inner, write, always), each in zip(self._write, self._get(value), strict=True):
            if each or (always and each is not None):
                if inner:
                    document.setdefault(key, {})[inner] = write(each)
                else:
                    document[key] = write(each)
        return document

    def write_metadata(self, value: Any) -> Json:
        """What an event says outside its attributes: its summary and its details."""
        return {key: write(each) for get, key, write in self._metadata if (each := get(value)) is not None}

    def read(self, document: Any, metadata: Any = None) -> Any:
        """A struct from JSON."""
        found = self._unset.copy()
        if isinstance(document, dict):
            _read(document, self._known, found)
        if metadata is not None and self._outer:
            _read({"userMetadata": metadata}, self._outer, found)
        for name, kind in reversed(self._inline):
            inner = {key: found.pop(f"{name}.{key}") for key in _held(found, name)}
            found[name] = kind(**inner)
        return self._kind(**found)


def _unset(kind: type[Any], row: _Row) -> Any:
    name = row.attribute.rpartition(".")[2]
    return _DEFAULTS.get((kind, name), _DEFAULTS.get(name, row.shape.unset))


def _getter(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """All these attributes of a struct, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple(getattr(value, name) for name in names)


def _held(found: Mapping[str, Any], name: str) -> list[str]:
    return [
        key[len(name) + 1 :]
        for key in found
        if key.startswith(f"{name}.") and "." not in key[len(name) + 1 :]
    ]


def _put(known: dict[str, Any], row: _Row) -> None:
    """Protobuf's own names are read, too."""
    for key in {row.key, _snake(row.key)}:
        if not row.inner:
            known[key] = (row.attribute, row.shape.read)
            continue
        inside = known.setdefault(key, {})
        inside[row.inner] = inside[_snake(row.inner)] = (row.attribute, row.shape.read)


def _read(document: Mapping[str, Any], known: Mapping[str, Any], found: dict[str, Any]) -> None:
    for key, value in document.items():
        entry = known.get(key)
        if entry is None or value is None:
            continue
        if type(entry) is tuple:
            if (
                read := entry[1](value)
            ) is not None:  # a list of no payloads is no payload: the unset value stays
                found[entry[0]] = read
        elif isinstance(value, dict):
            _read(value, entry, found)


def _shape(kind: Any, optional: bool) -> Shape:
    if kind is Failure:
        return _MAYBE_FAILURE if optional else _FAILURE
    shape = _TYPES.get(kind)
    return _struct(kind, optional=optional) if shape is None else shape


def _without_none(kind: Any) -> tuple[Any, bool]:
    if not isinstance(kind, UnionType):
        return kind, False
    rest = [each for each in get_args(kind) if each is not type(None)]
    bare = rest[0]
    for each in rest[1:]:
        bare = bare | each
    return bare, len(rest) < len(get_args(kind))


@cache
def table(kind: type[Any]) -> Table:
    """How a struct is written and read."""
    return Table(kind)


# --- kinds that say more, or less, than their fields --------------------------------------------------------


def _add_worker(a: h.WorkflowTaskCompleted, document: Json) -> None:
    if a.version is not None:
        document["workerVersion"] = {"buildId": a.version.build_id}
        document["workerDeploymentName"] = a.version.deployment_name


def _add_origin(a: h.WorkflowExecutionUpdateAdmitted, document: Json) -> None:
    document["origin"] = "UPDATE_ADMITTED_EVENT_ORIGIN_REAPPLY"


def _add_message(a: h.WorkflowExecutionUpdateAccepted, document: Json) -> None:
    document["acceptedRequestMessageId"] = f"{a.update_id}/request"


def _add_outcome(a: h.WorkflowExecutionUpdateCompleted, document: Json) -> None:
    if a.failure is not None:
        document["outcome"].pop("success", None)
    else:
        document.setdefault("outcome", {"success": {}})


def _write_patch(a: h.MarkerRecorded, document: Json) -> None:
    data = msgspec.json.encode({"id": a.patch_id, "deprecated": a.deprecated})
    _to_marker(document, PATCH_MARKER, {"patch-data": (Payload(data),)})


def _write_local(a: h.LocalActivityMarkerRecorded, document: Json) -> None:
    data = {
        "seq": a.seq,
        "attempt": a.attempt,
        "activity_id": a.activity_id,
        "activity_type": a.activity_type,
        "complete_time": _parts(a.complete_ns),
        "backoff": _parts(a.backoff_ns),
        "original_schedule_time": _parts(a.original_schedule_ns),
        "activation_index": None if a.activation_index == h.NO_INDEX else a.activation_index,
    }
    details = {"data": (Payload(msgspec.json.encode(data)),)}
    if a.result is not None:
        details["result"] = (a.result,)
    _to_marker(document, LOCAL_MARKER, details)


def _to_marker(document: Json, name: str, details: Mapping[str, tuple[Payload, ...]]) -> None:
    """A marker's JSON has a name and payloads by name; of its own fields it keeps what all markers have."""
    kept = {key: each for key, each in document.items() if key in ("workflowTaskCompletedEventId", "failure")}
    document.clear()
    document |= {"markerName": name, "details": _DETAILS.write(details), **kept}


def _parts(ns: int) -> Json | None:
    if not ns:
        return None
    seconds, nanos = divmod(ns, times.SECOND)
    return {"seconds": seconds, "nanos": nanos}


_ADD: dict[type[h.Attributes], Callable[[Any, Json], None]] = {
    h.WorkflowTaskCompleted: _add_worker,
    h.WorkflowExecutionUpdateAdmitted: _add_origin,
    h.WorkflowExecutionUpdateAccepted: _add_message,
    h.WorkflowExecutionUpdateCompleted: _add_outcome,
    h.MarkerRecorded: _write_patch,
    h.LocalActivityMarkerRecorded: _write_local,
}


def _read_marker(marker: h.ForeignMarkerRecorded, metadata: Any) -> h.Attributes:
    """Core's markers by what they say; those of other SDKs, and what cannot be read, by their name and details."""
    try:
        if marker.marker_name == PATCH_MARKER and "patch-data" in marker.details:
            data = msgspec.json.decode(marker.details["patch-data"][0].data)
            return h.MarkerRecorded(
                patch_id=data["id"],
                deprecated=bool(data.get("deprecated")),
                task_completed_event_id=marker.task_completed_event_id,
            )
        if marker.marker_name == LOCAL_MARKER:
            return _read_local(marker, metadata)
    except (msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError):
        pass
    return marker


def _read_local(marker: h.ForeignMarkerRecorded, metadata: Any) -> h.Attributes:
    data = msgspec.json.decode(marker.details["data"][0].data)
    index = data.get("activation_index")
    result = marker.details.get("result", ())
    summary = metadata.get("summary") if isinstance(metadata, dict) else None
    return h.LocalActivityMarkerRecorded(
        seq=number(data.get("seq")),
        activity_id=_text(data.get("activity_id")),
        activity_type=_text(data.get("activity_type")),
        task_completed_event_id=marker.task_completed_event_id,
        attempt=number(data.get("attempt")),
        complete_ns=read_moment(data.get("complete_time")),
        backoff_ns=read_duration(data.get("backoff")),
        original_schedule_ns=read_moment(data.get("original_schedule_time")),
        activation_index=h.NO_INDEX if index is None else number(index),
        result=result[0] if result else None,
        failure=marker.failure,
        summary=None if summary is None else read_payload(summary),
    )


def _with_own_id(accepted: h.WorkflowExecutionUpdateAccepted) -> h.Attributes:
    """The id of the message by which an update came may be another than that of the update."""
    request = accepted.request
    if request is None or not request.update_id:
        return accepted
    return msgspec.structs.replace(accepted, update_id=request.update_id)


# --- events -------------------------------------------------------------------------------------------------


class _Names(NamedTuple):
    """Temporal's names for a kind of event."""

    event_type: str
    attributes: str


@cache
def _names(kind: type[h.Attributes]) -> _Names:
    name = h.name_of(kind)
    return _Names(f"EVENT_TYPE_{_snake(name).upper()}", f"{name[0].lower()}{name[1:]}EventAttributes")


_MARKERS = (h.MarkerRecorded, h.LocalActivityMarkerRecorded, h.ForeignMarkerRecorded)


def _kinds() -> dict[str, type[h.Attributes]]:
    """The kinds by every name that a history may have for them."""
    known: dict[str, type[h.Attributes]] = {}
    for kind in (*h.KINDS, *h.FOREIGN_KINDS):
        names = _names(kind)
        bare = names.event_type.removeprefix("EVENT_TYPE_")
        spellings = (*names, bare, h.name_of(kind), f"{bare.lower()}_event_attributes")
        known |= dict.fromkeys(spellings, h.ForeignMarkerRecorded if kind in _MARKERS else kind)
    return known


_KINDS = _kinds()


_IGNORED = frozenset(
    {h.WorkflowExecutionOptionsUpdated, h.WorkflowExecutionPaused, h.WorkflowExecutionUnpaused}
)
"""Kinds of which a worker need not know: an SDK that does not would refuse the history otherwise."""


def event_document(event: h.HistoryEvent) -> Json:
    """One event as a JSON object."""
    attributes = event.attributes
    kind = type(attributes)
    names = _names(kind)
    made = table(kind)
    said = made.write(attributes)
    add = _ADD.get(kind)
    if add is not None:
        add(attributes, said)
    document: Json = {
        "eventId": str(event.id),
        "eventTime": times.moment_text(event.time_ns),
        "eventType": names.event_type,
        names.attributes: said,
    }
    metadata = made.write_metadata(attributes)
    if metadata:
        document["userMetadata"] = metadata
    if event.event_groups:
        document["eventGroupMarkers"] = [_group_document(each) for each in event.event_groups]
    if kind in _IGNORED:
        document["workerMayIgnore"] = True
    return document


def _group_document(group: EventGroupMarker) -> Json:
    if group.inbound_event_id:
        return {"inboundEvent": {"inboundEventId": str(group.inbound_event_id)}}
    if group.inbound_update_id:
        return {"inboundUpdate": {"inboundUpdateId": group.inbound_update_id}}
    label = {} if group.label is None else {"label": _PAYLOAD.write(group.label)}
    return {"label": {"id": group.id, **label}}


def _read_group(document: Any) -> EventGroupMarker | None:
    """A group; None where it says nothing that we know."""
    match document:
        case {"label": {"id": str(name), **rest}} if name:
            label = rest.get("label")
            return EventGroupMarker(id=name, label=None if label is None else read_payload(label))
        case {"inboundEvent": {"inboundEventId": number_of}}:
            return EventGroupMarker(inbound_event_id=number(number_of))
        case {"inboundUpdate": {"inboundUpdateId": str(name)}}:
            return EventGroupMarker(inbound_update_id=name)
        case {"inbound_event": {"inbound_event_id": number_of}}:
            return EventGroupMarker(inbound_event_id=number(number_of))
        case {"inbound_update": {"inbound_update_id": str(name)}}:
            return EventGroupMarker(inbound_update_id=name)
        case _:
            return None


def _read_groups(said: Any) -> tuple[EventGroupMarker, ...]:
    groups = map(_read_group, said if isinstance(said, list) else ())
    return tuple([group for group in groups if group is not None])


def event_json(event: h.HistoryEvent) -> bytes:
    """One event as JSON."""
    return msgspec.json.encode(event_document(event))


def read_event(document: Any, at: int = 0) -> h.HistoryEvent:
    """One event from its JSON object; `at` is its place in the history. Raises `HistoryError` where it is none."""
    if not isinstance(document, dict):
        raise HistoryError(f"event {at} is no event: it has no eventType")
    kind: type[h.Attributes] | None = None
    said: Any = None
    metadata = document.get("userMetadata", document.get("user_metadata"))
    for key, value in document.items():
        if key.endswith(("EventAttributes", "_event_attributes")):
            kind, said = _KINDS.get(key), value
            break
    else:
        said = document.get("attributes")
    event_type = document.get("eventType", document.get("event_type"))
    if kind is None:
        if event_type is None:
            raise HistoryError(f"event {at} is no event: it has no eventType")
        kind = _KINDS.get(event_type) if isinstance(event_type, str) else None
    number_of = number(document.get("eventId", document.get("event_id"))) or at
    time_ns = read_moment(document.get("eventTime", document.get("event_time")))
    if kind is None:
        ignored = bool(document.get("workerMayIgnore", document.get("worker_may_ignore")))
        attributes: h.Attributes = h.UnknownEvent(
            name=_spelled(event_type), document=said if isinstance(said, dict) else {}, may_be_ignored=ignored
        )
    else:
        attributes = table(kind).read(said, metadata)
        if isinstance(attributes, h.ForeignMarkerRecorded):
            attributes = _read_marker(attributes, metadata)
        elif isinstance(attributes, h.WorkflowExecutionUpdateAccepted):
            attributes = _with_own_id(attributes)
    groups = document.get("eventGroupMarkers", document.get("event_group_markers"))
    return h.HistoryEvent(number_of, time_ns, attributes, _read_groups(groups) if groups else ())


def _spelled(name: Any) -> str:
    """A kind that is not known, in today's spelling."""
    text = str(name)
    return text.removeprefix("EVENT_TYPE_") if "_" in text else _snake(text).upper()


# --- histories ----------------------------------------------------------------------------------------------


def load_json(text: str | bytes) -> Any:
    """What a text of JSON says. Raises `HistoryError`."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass  # the standard library reads a little more, and says better what is wrong
    try:
        return json.loads(text)
    except RecursionError:
        raise HistoryError("this JSON is nested too deeply for a history") from None
    except ValueError as error:
        raise HistoryError(f"a history must be JSON: {error}") from None


def documents_in(document: Any) -> list[Any] | None:
    """The events in what a file says: an object with `events`, they alone, the answer of Temporal's API, or a list of
    such objects, its pages. None where there are none.
    """
    if isinstance(document, dict):
        inner = document.get("history")
        found = inner.get("events") if isinstance(inner, dict) else document.get("events")
        return found if isinstance(found, list) else None
    if not isinstance(document, list) or not document:
        return None
    if not all(isinstance(page, dict) and ("events" in page or "history" in page) for page in document):
        return document
    pages = [documents_in(page) for page in document]
    return None if None in pages else [event for page in pages for event in page or ()]


def events_from_text(text: str | bytes) -> tuple[h.HistoryEvent, ...]:
    """The events of a history, also one with a JSON object per line. Raises `HistoryError`."""
    try:
        document = load_json(text)
    except HistoryError:
        lines = [each for each in text.splitlines() if each.strip()]
        try:
            document = [msgspec.json.decode(each) for each in lines] if len(lines) > 1 else None
        except (msgspec.MsgspecError, ValueError, RecursionError):
            document = None
        if document is None:
            raise
    documents = documents_in(document)
    if documents is None and document != []:
        raise HistoryError("a history in JSON is an object with a list of events")
    return events_from(documents or ())


def events_from(documents: Iterable[Any]) -> tuple[h.HistoryEvent, ...]:
    """Events from their JSON objects. Raises `HistoryError`."""
    events = tuple(read_event(each, at) for at, each in enumerate(documents, 1))
    if not events:
        raise HistoryError("this history has no events")
    for event in events:
        if not event.time_ns:
            raise HistoryError(f"event {event.id} does not tell when it happened (eventTime)")
    return events
