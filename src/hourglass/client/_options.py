"""Options of a start, checked and built into a request. Pure but for fresh ids."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypedDict

from hourglass._contract.service import new_id
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
from hourglass.workflow._references import Given, given_message


class RpcOptions(TypedDict, total=False):
    """How one call of a client travels. Both are optional."""

    rpc_timeout: Duration | None
    """How long to wait for the service's answer; where a call is several requests, for each."""
    rpc_metadata: Mapping[str, str]
    """Headers that a server gets with it, beside the client's own; an engine in this process reads none."""


_RPC = frozenset(RpcOptions.__annotations__)


def rpc_fields(said: Mapping[str, Any]) -> dict[str, Any]:
    """What of some options is said of how a call travels, checked; as fields of a call or of a request."""
    found: dict[str, Any] = {}
    if said.get("rpc_timeout") is not None:
        found["rpc_timeout"] = optional_seconds(said["rpc_timeout"], "rpc_timeout")
    if said.get("rpc_metadata"):
        found["rpc_metadata"] = _metadata(said["rpc_metadata"], "rpc_metadata", None)
    return found


def check_rpc(said: Mapping[str, Any]) -> None:
    """Raise `UsageError` for an option that is none of how a call travels."""
    for name in said:
        if name not in _RPC:
            raise UsageError(
                f"there is no option {name!r} here; of how a call travels: {', '.join(sorted(_RPC))}"
            )


def without_rpc(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that say something else."""
    return {name: value for name, value in options.items() if name not in _RPC}


def split_rpc(options: Mapping[str, Any]) -> tuple[dict[str, Any], RpcOptions]:
    """The options that say something else, and those that say how the call travels."""
    rpc: Any = {name: value for name, value in options.items() if name in _RPC}
    return without_rpc(options), rpc


def check_changes(what: str, options: type[RpcOptions], changes: Mapping[str, Any]) -> None:
    """Raise `UsageError` unless something is to be changed, and nothing but what these options name."""
    known = without_rpc(options.__annotations__)
    unknown = sorted(set(changes) - set(known))
    if unknown or not changes:
        raise UsageError(
            f"what can be changed of {what} is {', '.join(known)}"
            + (f"; not {', '.join(unknown)}" if unknown else "; name at least one")
        )


class StartOptions(RpcOptions, total=False):
    """How a workflow is started. All are optional."""

    id: str
    """The workflow's id; a fresh UUID by default."""
    task_queue: str
    """The queue whose workers run it; "default" by default."""
    execution_timeout: Duration | None
    """The longest time for all its runs together."""
    run_timeout: Duration | None
    """The longest time for one run."""
    task_timeout: Duration | None
    """How long a worker may take for one workflow task before another gets it; more than 120 s counts as 120 s."""
    start_delay: Duration | None
    """How long to wait before it starts."""
    id_reuse_policy: IdReusePolicy
    """Whether the id of a closed workflow may be used again."""
    id_conflict_policy: IdConflictPolicy
    """What happens if a workflow of this id is running."""
    retry_policy: RetryPolicy | None
    """Whether and how a failed workflow is run again."""
    cron_schedule: str
    """Run it again and again, at these times."""
    memo: Mapping[str, Any]
    """Notes that are kept with the workflow; not searchable."""
    search_attributes: SearchAttributes
    """Values by which it can be found; never encrypted."""
    static_summary: str
    """One line about it, for Temporal's UI."""
    static_details: str
    """More lines."""
    start_signal: object
    """A signal that is sent with the start: a name, a channel or a method."""
    start_signal_args: Sequence[Any]
    """That signal's arguments."""
    priority_key: int
    """Its priority on the queue: lower is sooner, 0 is the default."""
    fairness_key: str
    """Whose share of the queue it is counted to, such as a tenant's: keys take turns, whatever waits for each."""
    fairness_weight: float
    """How large that share is beside the others': 1 is the usual one, 2 is twice as much."""
    request_id: str
    """Starting twice with the same request id is one start; a fresh one by default."""
    versioning_override: VersioningOverride | None
    """Whatever its code says: stay with a version, or move to the current one."""
    time_skipping: TimeSkippingConfig | None
    """How its time goes, on a server that can skip it: for tests."""
    callbacks: Sequence[NexusCallback]
    """Who is told when it has ended; `nexus.start_workflow` says it for a workflow that is a Nexus operation."""
    request_eager_start: bool
    """Whether a worker of this client may be given the first workflow task with the server's answer: a start is sooner then."""


class UpdateOptions(RpcOptions, total=False):
    """How an update is asked for. All are optional."""

    id: str
    """The update's id: the same id again is the same update; a fresh UUID by default."""


class WorkflowOptionsUpdate(RpcOptions, total=False):
    """What can be changed of a run that is open."""

    versioning_override: VersioningOverride | None
    """Which version it belongs to, in place of what was said before: it stays with one, goes to one once, or moves on; None takes
    back what was said.
    """
    priority_key: int
    """Its priority on the queue: lower is sooner, 0 is the default."""
    fairness_key: str
    """Whose share of the queue it is counted to."""
    fairness_weight: float
    """How large that share is beside the others'."""


_KNOWN = StartOptions.__annotations__
_SIGNAL = frozenset({"start_signal", "start_signal_args"})
_SPEC = frozenset(StartSpec.__struct_fields__)


def start_request(
    given: Given, arguments: Sequence[Any], options: Mapping[str, Any], converter: Converter, identity: str
) -> StartWorkflow:
    """The request that starts a workflow; what is given is checked and encoded here, the rest are the request's defaults."""
    fields: dict[str, Any] = {}
    said: dict[str, Any] = {"task_queue": "default"}
    for name, value in options.items():
        if name not in _KNOWN:
            _refuse(name, given)
        if name in _READERS:
            (said if name in _SPEC else fields)[name] = _READERS[name](value, name, converter)
    if not _SIGNAL.isdisjoint(options):
        if options.get("callbacks"):
            raise UsageError(
                "a workflow that is a Nexus operation cannot be started with a signal: send it afterwards"
            )
        fields["signal_name"], fields["signal_arguments"] = _start_signal(options, converter)
    encoded = given.encode(converter, arguments)
    # A run that cannot decode its arguments waits, parked, for other code: it had better not begin.
    given.refuse_misfits(converter, arguments, encoded)
    return StartWorkflow(
        workflow_id=_text(options["id"], "id", converter) if "id" in options else new_id(),
        workflow_type=given.name,
        request_id=check_text(options.get("request_id") or new_id(), "request_id"),
        arguments=encoded,
        spec=StartSpec(**said),
        identity=identity,
        **fields,
    )


_MEANT = {
    "workflow_id": "did you mean id?",
    "queue": "did you mean task_queue?",
    "timeout": "did you mean run_timeout, which ends the run, or start_workflow(…).result(timeout=…), which ends the wait?",
    "args": "arguments stand behind the workflow, one by one: start_workflow(workflow, first, second, id=…)",
}


def _refuse(name: str, given: Given) -> NoReturn:
    positional = "a workflow's own arguments are given by position"
    if given.signature is not None and name in given.signature.parameters:
        raise UsageError(
            f"a start has no option {name!r}, which is an argument of {given.what}: {positional}"
        )
    near = difflib.get_close_matches(name, _KNOWN, 1)
    hint = _MEANT.get(name) or (f"did you mean {near[0]}?" if near else f"there are: {', '.join(_KNOWN)}")
    raise UsageError(f"a start has no option {name!r} ({hint}); {positional}")


def _start_signal(options: Mapping[str, Any], converter: Converter) -> tuple[str, tuple[Payload, ...]]:
    arguments = options.get("start_signal_args", ())
    signal = options.get("start_signal")
    if signal is None:
        if arguments:
            raise UsageError("start_signal_args are given without a start_signal")
        return "", ()
    given = given_message("signal", signal)
    return given.name, given.encode(converter, several(arguments, "start_signal_args"))


# --- one option each: (value, name, converter) -> the request's field of that name ---------------------------


def _text(value: object, name: str, converter: Converter) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} must be a non-empty str")
    return check_text(value, name)


def _duration(value: Duration | None, name: str, converter: Converter) -> float | None:
    return optional_seconds(value, name)


def check_time_skipping(value: object) -> TimeSkippingConfig | None:
    """A config of a run's time as given, or a `UsageError`."""
    if value is not None and not isinstance(value, TimeSkippingConfig):
        raise UsageError(f"time_skipping is a TimeSkippingConfig, not {type(value).__name__}")
    return value


def callbacks_of(value: object) -> tuple[NexusCallback, ...]:
    """Callbacks as given, or a `UsageError` that says which is none."""
    given = several(value, "callbacks")
    if wrong := [each for each in given if not isinstance(each, NexusCallback)]:
        raise UsageError(f"callbacks are objects of nexus.NexusCallback, not {type(wrong[0]).__name__}")
    return tuple(given)


def _metadata(value: Any, name: str, converter: Converter | None) -> dict[str, str] | None:
    if not value:
        return None
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must map texts to texts, not be of type {type(value).__name__}")
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
