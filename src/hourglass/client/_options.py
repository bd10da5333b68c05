"""Options of a start, checked and built into a request. Pure but for fresh ids."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from hourglass._bridge.fresh_ids import new_id
from hourglass._bridge.service import IdConflictPolicy, StartWorkflow
from hourglass._engine.commands import IdReusePolicy
from hourglass._engine.options import Duration, RetryPolicy, optional_seconds
from hourglass._engine.versions import VersioningOverride, check_override
from hourglass.converter import Converter, Payload, SearchAttributes, encode_search_attributes
from hourglass.errors import UsageError
from hourglass.workflow._given import Given, given_message


class StartOptions(TypedDict, total=False):
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
    """How long a worker may take for one workflow task before another gets it."""
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
    """One line for whoever looks at it."""
    static_details: str
    """More lines."""
    start_signal: object
    """A signal that is sent with the start: a name, a channel or a method."""
    start_signal_args: Sequence[Any]
    """That signal's arguments."""
    priority_key: int
    """Its priority on the queue: lower is sooner, 0 is the default."""
    request_id: str
    """Starting twice with the same request id is one start; a fresh one by default."""
    versioning_override: VersioningOverride | None
    """Whatever its code says: stay with a version, or move to the current one."""
    rpc_timeout: Duration | None
    """How long to wait for the service's answer."""


class UpdateOptions(TypedDict, total=False):
    """How an update is asked for. All are optional."""

    id: str
    """The update's id: the same id again is the same update; a fresh UUID by default."""
    rpc_timeout: Duration | None
    """How long to wait for the service's answer."""


_DURATIONS = ("execution_timeout", "run_timeout", "task_timeout", "start_delay", "rpc_timeout")
_KNOWN = tuple(StartOptions.__annotations__)


def start_request(
    given: Given, arguments: Sequence[Any], options: Mapping[str, Any], converter: Converter, identity: str
) -> StartWorkflow:
    """The request that starts a workflow; everything is checked and encoded here."""
    _refuse_unknown(options)
    durations: dict[str, Any] = {name: optional_seconds(options.get(name), name) for name in _DURATIONS}
    retry_policy = options.get("retry_policy")
    signal_name, signal_arguments = _start_signal(options, converter)
    return StartWorkflow(
        workflow_id=_text(options["id"] if "id" in options else new_id(), "id"),
        workflow_type=given.name,
        task_queue=_text(options.get("task_queue", "default"), "task_queue"),
        request_id=options.get("request_id") or new_id(),
        arguments=given.encode(converter, arguments),
        identity=identity,
        id_reuse_policy=IdReusePolicy(options.get("id_reuse_policy", IdReusePolicy.ALLOW_DUPLICATE)),
        id_conflict_policy=IdConflictPolicy(options.get("id_conflict_policy", IdConflictPolicy.UNSPECIFIED)),
        retry_policy=None if retry_policy is None else retry_policy.rule(),
        cron_schedule=options.get("cron_schedule", ""),
        memo={key: converter.encode(value) for key, value in options.get("memo", {}).items()},
        search_attributes=encode_search_attributes(options.get("search_attributes", {})),
        static_summary=_note(options.get("static_summary"), converter),
        static_details=_note(options.get("static_details"), converter),
        priority_key=_priority(options.get("priority_key", 0)),
        signal_name=signal_name,
        signal_arguments=signal_arguments,
        versioning_override=check_override(options.get("versioning_override")),
        **durations,
    )


def _start_signal(options: Mapping[str, Any], converter: Converter) -> tuple[str, tuple[Payload, ...]]:
    arguments = options.get("start_signal_args", ())
    signal = options.get("start_signal")
    if signal is None:
        if arguments:
            raise UsageError("start_signal_args are given without a start_signal")
        return "", ()
    given = given_message("signal", signal)
    return given.name, given.encode(converter, arguments)


def _note(text: str | None, converter: Converter) -> Payload | None:
    return None if text is None else converter.encode(text)


def _priority(key: object) -> int:
    if not isinstance(key, int) or isinstance(key, bool) or key < 0:
        raise UsageError("priority_key must be a number from 0 on")
    return key


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{name} must be a text that is not empty")
    return value


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, 1)
            hint = f" (did you mean {near[0]}?)" if near else f" (there are: {', '.join(_KNOWN)})"
            raise UsageError(
                f"a start has no option {name!r}{hint}; a workflow's own arguments are given by position"
            )
