"""Options of a workflow start: their validation, and the request built from them. Pure, except for new ids."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypedDict

from hourglass._contract.ids import new_id
from hourglass._contract.workflows import IdConflictPolicy, StartWorkflow, TimeSkippingConfig
from hourglass._evaluator.options import (
    START_CHECKS,
    Duration,
    RetryPolicy,
    check_text,
    choice,
    optional_seconds,
    several,
)
from hourglass._evaluator.specs import IdReusePolicy, StartSpec, VersioningOverride, check_override
from hourglass._worker.targets import check_metadata
from hourglass.converter import Converter, Payload, SearchAttributes
from hourglass.errors import UsageError
from hourglass.nexus import NexusCallback
from hourglass.workflow._references import ResolvedReference, resolve_message


class RpcOptions(TypedDict, total=False):
    """Options of a single client call. Both are optional."""

    rpc_timeout: Duration | None
    """The timeout of the service's answer. If the call makes several requests, it applies to each of them."""
    rpc_metadata: Mapping[str, str]
    """Headers for a server, in addition to the client's own. Embedded engines ignore them."""


_RPC = frozenset(RpcOptions.__annotations__)


def rpc_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that belong to `RpcOptions`, validated, as fields of a call or request."""
    fields: dict[str, Any] = {}
    if options.get("rpc_timeout") is not None:
        fields["rpc_timeout"] = optional_seconds(options["rpc_timeout"], "rpc_timeout")
    if options.get("rpc_metadata"):
        fields["rpc_metadata"] = _metadata(options["rpc_metadata"], "rpc_metadata", None)
    return fields


def check_rpc(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` for an option that does not belong to `RpcOptions`."""
    for name in options:
        if name not in _RPC:
            raise UsageError(f"unknown option {name!r}; the options of a call are {', '.join(sorted(_RPC))}")


def without_rpc(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options other than `RpcOptions`."""
    return {name: value for name, value in options.items() if name not in _RPC}


def split_rpc(options: Mapping[str, Any]) -> tuple[dict[str, Any], RpcOptions]:
    """Return the options other than `RpcOptions`, and the `RpcOptions`."""
    rpc: Any = {name: value for name, value in options.items() if name in _RPC}
    return without_rpc(options), rpc


def check_changes(what: str, options: type[RpcOptions], changes: Mapping[str, Any]) -> None:
    """Raise `UsageError` if there are no changes, or if a change is not one of these options."""
    names = without_rpc(options.__annotations__)
    unknown = sorted(set(changes) - set(names))
    if unknown or not changes:
        raise UsageError(
            f"these options of {what} can be changed: {', '.join(names)}"
            + (f"; not {', '.join(unknown)}" if unknown else "; pass at least one")
        )


class StartOptions(RpcOptions, total=False):
    """Options for starting a workflow. All are optional."""

    id: str
    """The workflow's id; a new UUID by default."""
    task_queue: str
    """The task queue of the workflow; "default" by default."""
    execution_timeout: Duration | None
    """The timeout of the workflow, including all its runs."""
    run_timeout: Duration | None
    """The timeout of a single run."""
    task_timeout: Duration | None
    """The timeout of a workflow task, after which another worker receives the task. Values above 120 s count as 120 s."""
    start_delay: Duration | None
    """The delay before the start."""
    id_reuse_policy: IdReusePolicy
    """Whether the id of a closed workflow may be used again."""
    id_conflict_policy: IdConflictPolicy
    """The action to take if a workflow with this id is running."""
    retry_policy: RetryPolicy | None
    """The retry policy of a failed workflow; None means no retries."""
    cron_schedule: str
    """A cron expression: run the workflow repeatedly, at these times."""
    memo: Mapping[str, Any]
    """Additional data stored with the workflow; not searchable."""
    search_attributes: SearchAttributes
    """Attributes by which the workflow can be found; never encrypted."""
    static_summary: str
    """A one-line summary for Temporal's UI."""
    static_details: str
    """Further details for Temporal's UI."""
    start_signal: object
    """A signal sent together with the start: its name, its channel or its decorated method."""
    start_signal_args: Sequence[Any]
    """The arguments of the start signal."""
    priority_key: int
    """The priority in the task queue: lower values are dispatched first, 0 is the default."""
    fairness_key: str
    """The key for fair dispatch, such as a tenant. Keys take turns, regardless of their backlogs."""
    fairness_weight: float
    """The weight of the fairness key: 1 is the default, 2 doubles the key's share."""
    request_id: str
    """An id that deduplicates starts: starts with the same request id are a single start. A new id by default."""
    versioning_override: VersioningOverride | None
    """An override of the workflow's versioning behavior: pin it to a version, or upgrade it automatically."""
    time_skipping: TimeSkippingConfig | None
    """The time skipping of the workflow, for tests on a server that supports it."""
    callbacks: Sequence[NexusCallback]
    """Nexus callbacks that are notified when the workflow closes. `nexus.start_workflow` sets them for a workflow that is a
    Nexus operation.
    """
    request_eager_start: bool
    """Whether a worker of this client may receive the first workflow task with the server's answer to the start, which
    reduces latency.
    """


class UpdateOptions(RpcOptions, total=False):
    """Options for an update. All are optional."""

    id: str
    """The update's id. Requests with the same id are a single update. A new UUID by default."""


class WorkflowOptionsUpdate(RpcOptions, total=False):
    """The options that can be changed on an open run."""

    versioning_override: VersioningOverride | None
    """A new versioning override: pin the run to a version, move it to a version once, or upgrade it automatically. None
    removes the override.
    """
    priority_key: int
    """The priority in the task queue: lower values are dispatched first, 0 is the default."""
    fairness_key: str
    """The key for fair dispatch."""
    fairness_weight: float
    """The weight of the fairness key."""


_KNOWN = StartOptions.__annotations__
_SIGNAL = frozenset({"start_signal", "start_signal_args"})
_SPEC = frozenset(StartSpec.__struct_fields__)


def start_request(
    definition: ResolvedReference,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    converter: Converter,
    identity: str,
) -> StartWorkflow:
    """Return the request that starts a workflow. Options that are set are checked and encoded here; all others have the
    request's defaults.
    """
    fields: dict[str, Any] = {}
    spec: dict[str, Any] = {"task_queue": "default"}
    for name, value in options.items():
        if name not in _KNOWN:
            _reject(name, definition)
        if name in _READERS:
            (spec if name in _SPEC else fields)[name] = _READERS[name](value, name, converter)
    if not _SIGNAL.isdisjoint(options):
        if options.get("callbacks"):
            raise UsageError(
                "a workflow that is a Nexus operation cannot be started with a signal: send the signal afterwards"
            )
        fields["signal_name"], fields["signal_arguments"] = _start_signal(options, converter)
    encoded = definition.encode(converter, arguments)
    # A run that cannot decode its arguments would be parked, so it is not started.
    definition.reject_misfits(converter, arguments, encoded)
    return StartWorkflow(
        workflow_id=_text(options["id"], "id", converter) if "id" in options else new_id(),
        workflow_type=definition.name,
        request_id=check_text(options.get("request_id") or new_id(), "request_id"),
        arguments=encoded,
        spec=StartSpec(**spec),
        identity=identity,
        **fields,
    )


_HINTS = {
    "workflow_id": "did you mean id?",
    "queue": "did you mean task_queue?",
    "timeout": "did you mean run_timeout, which ends the run, or start_workflow(…).result(timeout=…), which ends the wait?",
    "args": "pass arguments after the workflow, one by one: start_workflow(workflow, first, second, id=…)",
}


def _reject(name: str, definition: ResolvedReference) -> NoReturn:
    positional = "pass the workflow's own arguments by position"
    if definition.signature is not None and name in definition.signature.parameters:
        raise UsageError(
            f"{name!r} is an argument of {definition.what}, not an option of the start: {positional}"
        )
    near = difflib.get_close_matches(name, _KNOWN, 1)
    hint = _HINTS.get(name) or (f"did you mean {near[0]}?" if near else f"known options: {', '.join(_KNOWN)}")
    raise UsageError(f"unknown start option {name!r}: {hint}; {positional}")


def _start_signal(options: Mapping[str, Any], converter: Converter) -> tuple[str, tuple[Payload, ...]]:
    arguments = options.get("start_signal_args", ())
    signal = options.get("start_signal")
    if signal is None:
        if arguments:
            raise UsageError("start_signal_args were passed without start_signal")
        return "", ()
    definition = resolve_message("signal", signal)
    return definition.name, definition.encode(converter, several(arguments, "start_signal_args"))


# Functions for one option each: (value, name, converter) -> the value of the request field with that name.


def _text(value: object, name: str, converter: Converter) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} must be a non-empty str")
    return check_text(value, name)


def _duration(value: Duration | None, name: str, converter: Converter) -> float | None:
    return optional_seconds(value, name)


def check_time_skipping(value: object) -> TimeSkippingConfig | None:
    """Return the time skipping configuration. Raise `UsageError` if the value has another type."""
    if value is not None and not isinstance(value, TimeSkippingConfig):
        raise UsageError(f"time_skipping must be a TimeSkippingConfig, not {type(value).__name__}")
    return value


def callbacks_of(value: object) -> tuple[NexusCallback, ...]:
    """Return the callbacks as a tuple. Raise `UsageError` if an object is not a callback."""
    callbacks = several(value, "callbacks")
    if wrong := [callback for callback in callbacks if not isinstance(callback, NexusCallback)]:
        raise UsageError(f"callbacks must be nexus.NexusCallback objects, not {type(wrong[0]).__name__}")
    return tuple(callbacks)


def _metadata(value: Any, name: str, converter: Converter | None) -> dict[str, str] | None:
    if not value:
        return None
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must map str to str, not be of type {type(value).__name__}")
    check_metadata(value)
    return dict(value)


_READERS: dict[str, Callable[[Any, str, Converter], Any]] = START_CHECKS | {
    "task_queue": _text,
    "start_delay": _duration,
    "rpc_timeout": _duration,
    "rpc_metadata": _metadata,
    "id_reuse_policy": lambda value, name, converter: choice(IdReusePolicy, value, name),
    "id_conflict_policy": lambda value, name, converter: choice(IdConflictPolicy, value, name),
    "versioning_override": lambda value, name, converter: check_override(value),
    "time_skipping": lambda value, name, converter: check_time_skipping(value),
    "callbacks": lambda value, name, converter: callbacks_of(value),
    "request_eager_start": lambda value, name, converter: bool(value),
}
