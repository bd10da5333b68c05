"""Comparison of an issued command with the recorded command, and the error that describes a difference. Pure.

Must not know: tasks, order, or the event of a command (see `_trace` and `_foreign_matching`).
Properties that Temporal allows to change between two executions (arguments, durations, results, failures,
memos, search attributes) are compared separately from the others (kinds, names, ids).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hourglass._contract.limits import SLOTS, TURNS
from hourglass._evaluator.call_sites import CallSite, Site
from hourglass._evaluator.specs import Payloads
from hourglass._evaluator.words import CommandSummary, describe, is_generated_id
from hourglass.converter import (
    ActivityFailure,
    ApplicationFailure,
    CanceledFailure,
    ChildWorkflowFailure,
    Failure,
    Payload,
)
from hourglass.errors import NondeterminismError

_TOLERANCE_NS = 2_000_000  # SDKs round durations differently, by at most a millisecond
_NULL = Payload(b"", "binary/null")
_NO_TYPE = "ApplicationError"  # Hourglass's type of an application failure without a type of its own
_CANCELLATIONS = frozenset({"CancelledError", "Cancelled", "TaskCancelledError"})
"""Failure types that report a cancellation to code: asyncio's exceptions and ours."""
_TO_WORKFLOWS = frozenset({"signal to another workflow", "child workflow"})
_RETURN_SIGNALS = frozenset(
    {"give_back", "take_back", "hand_in"}
)  # signals that return a slot or turn to the workflow that manages the limit
_UPDATE_ENDS = frozenset({"result of update", "failure of update"})
"""A result and a failure of an update lead to the same event, so a worker accepts a run that now ends the update in the
other way."""
_SERVER_ATTRIBUTES = frozenset({"TemporalChangeVersion", "BuildIds"})
"""Search attributes that SDKs and servers maintain themselves."""


def same_thing(
    recorded: CommandSummary, issued: CommandSummary, names: Mapping[str, str], *, foreign: bool
) -> bool:
    """Return whether the issued command has the name and the id of the recorded command."""
    if issued.kind in ("continue-as-new", "acceptance of update"):
        return True
    if recorded.name != issued.name and recorded.kind == issued.kind:
        return False
    match issued.kind:
        case "activity":
            return same_id(recorded.key, issued, foreign=foreign)
        case "child workflow":
            return bool(recorded.key == issued.key) or (
                foreign and issued.is_default and is_generated_id(recorded.key)
            )
        case "signal to another workflow" | "cancel request to another workflow":
            return bool(recorded.key == names.get(issued.key, issued.key))
        case kind if kind in _UPDATE_ENDS:
            return bool(recorded.key == issued.key)
        case _:
            return True


def both_end_update(recorded: CommandSummary, issued: CommandSummary) -> bool:
    """Return whether both commands end an update, by a result or by a failure."""
    return recorded.kind in _UPDATE_ENDS and issued.kind in _UPDATE_ENDS


def same_id(key: str, issued: CommandSummary, *, foreign: bool) -> bool:
    """Return whether an activity has the recorded id. Ids that the SDKs generated on both sides count as equal."""
    if key == issued.key:
        return True
    return foreign and issued.is_default and (key.isdigit() or is_generated_id(key))


def mismatch(
    recorded: CommandSummary | None, issued: CommandSummary | None, site: Site, reason: str
) -> NondeterminismError:
    """Return the error for code that differs from its history. The message names the expected and the actual command, and
    the position in the code.
    """
    expected = _described(recorded) + (f" (event {recorded.event_id})" if recorded is not None else "")
    produced = _described(issued)
    if recorded is None and issued is None:
        expected, produced = "other commands", "the commands issued here"
    elif issued is None and site[0]:
        produced = "no command: it waits"
    place = _place(site)
    return NondeterminismError(
        "the workflow's code no longer matches this history\n"
        f"  expected by the history: {expected}\n"
        f"  issued by the code:      {produced}{place}\n"
        f"  {reason}".rstrip(),
        expected=expected,
        produced=produced,
        file=site[0],
        line=site[1],
    )


def _described(command: CommandSummary | None) -> str:
    """Describe a command. Messages to a limit's workflow are described as the author's call, for example the request of a
    slot.
    """
    if command is not None:
        for prefix, limit in ((SLOTS, "slot"), (TURNS, "turn")):
            if command.kind in _TO_WORKFLOWS and command.key.startswith(prefix):
                verb = "return" if command.name in _RETURN_SIGNALS else "request"
                return f"{verb} of a {limit} of {command.key.removeprefix(prefix)!r}"
    return describe(command)


def _place(site: Site) -> str:
    if not site[0]:
        return ""
    callers = site.callers if isinstance(site, CallSite) else ()
    return f"   at {site[0]}:{site[1]}" + "".join(
        f"\n      called at {file}:{line}" for file, line in callers
    )


def changed_value(
    recorded: CommandSummary, issued: CommandSummary, *, foreign: bool = False
) -> NondeterminismError | None:
    """Return an error if a permitted property of a command changed since it was recorded, else None.

    `foreign` is True if another SDK recorded the history, because its failures have other messages. Commands that Hourglass
    issues on behalf of the author are skipped, because they contain values that may change, for example the size of a limit.
    """
    if isinstance(issued.site, CallSite) and issued.site.is_on_behalf:
        return None
    change = _changed(recorded, issued, foreign)
    if not change:
        return None
    place = _place(issued.site).strip() or "at an unknown place"
    return NondeterminismError(
        f"{change} of {describe(issued)} has changed since event {recorded.event_id} was recorded\n"
        f"  issued {place}\n"
        "  Temporal permits this change; to permit it here too, use Replayer(…, compare_arguments=False)",
        expected=f"{describe(recorded)} (event {recorded.event_id}) with the recorded {change}",
        produced=f"{describe(issued)} with another {change}",
        file=issued.site[0],
        line=issued.site[1],
    )


def _changed(recorded: CommandSummary, issued: CommandSummary, foreign: bool) -> str:
    if recorded.kind != issued.kind and both_end_update(recorded, issued):
        return "outcome"
    if issued.kind == "continue-as-new":
        if issued.name and recorded.name != issued.name:
            return "type"
        # Fields that the code does not set are inherited from this run and therefore not compared.
        if not _same_fields({key: recorded.memo.get(key, _NULL) for key in issued.memo}, issued.memo):
            return "memo"
        attributes = issued.search_attributes
        if not _same_fields(
            {key: recorded.search_attributes.get(key, _NULL) for key in attributes}, attributes
        ):
            return "search attributes"
    elif issued.kind not in ("acceptance of update",):
        if recorded.name != issued.name:
            return "type"
        if not _same_fields(recorded.memo, issued.memo):
            return "memo"
        if not _same_fields(recorded.search_attributes, issued.search_attributes):
            return "search attributes"
    if recorded.duration_ns is not None and issued.duration_ns is not None:
        return "duration" if abs(recorded.duration_ns - issued.duration_ns) > _TOLERANCE_NS else ""
    if recorded.failure is not None and issued.failure is not None:
        return failure_change(recorded.failure, issued.failure, foreign=foreign)
    if issued.kind in ("completion", "result of update"):
        return "" if _same_result(recorded.payloads, issued.payloads) else "result"
    return "" if same_payloads(recorded.payloads, issued.payloads) else "arguments"


def _same_result(recorded: Payloads, issued: Payloads) -> bool:
    """Return whether two results are equal. A result of None may be recorded as null or omitted."""
    return same_payloads(recorded, issued) or (not recorded and all(_is_null(p) for p in issued))


def same_payloads(recorded: Payloads, issued: Payloads) -> bool:
    """Return whether two lists of payloads are equal. The key order and whitespace of JSON are ignored."""
    return len(recorded) == len(issued) and all(
        _same_payload(a, b) for a, b in zip(recorded, issued, strict=True)
    )


def _same_payload(recorded: Payload, issued: Payload) -> bool:
    if recorded.data == issued.data and recorded.encoding == issued.encoding:
        return True
    if _is_null(recorded) and _is_null(issued):
        return True  # SDKs encode None in different ways
    if {recorded.encoding, issued.encoding} <= {"json/plain", "json/protobuf"}:
        try:
            return _same_value(json.loads(recorded.data), json.loads(issued.data))
        except (ValueError, RecursionError):
            return False
    return False


def _same_value(recorded: Any, issued: Any) -> bool:
    """Return whether two JSON values are equal. Unlike in Python, `true` is not equal to 1."""
    if isinstance(recorded, bool) or isinstance(issued, bool):
        return recorded is issued
    if isinstance(recorded, dict) and isinstance(issued, dict):
        return recorded.keys() == issued.keys() and all(
            _same_value(recorded[key], issued[key]) for key in recorded
        )
    if isinstance(recorded, list) and isinstance(issued, list):
        return len(recorded) == len(issued) and all(map(_same_value, recorded, issued))
    return bool(recorded == issued)


def _is_null(payload: Payload) -> bool:
    return payload.encoding == "binary/null" or (payload.encoding == "json/plain" and payload.data == b"null")


def _same_fields(recorded: Mapping[str, Payload], issued: Mapping[str, Payload]) -> bool:
    """Return whether memos or search attributes are equal. Some SDKs write a single value as a list with one
    element.
    """
    left = {key: _unwrap_list(value) for key, value in recorded.items() if key not in _SERVER_ATTRIBUTES}
    right = {key: _unwrap_list(value) for key, value in issued.items() if key not in _SERVER_ATTRIBUTES}
    return left.keys() == right.keys() and all(_same_payload(left[key], right[key]) for key in left)


def _unwrap_list(payload: Payload) -> Payload:
    if payload.encoding != "json/plain" or not payload.data.startswith(b"["):
        return payload
    try:
        value = json.loads(payload.data)
    except (ValueError, RecursionError):
        return payload
    if value == []:
        return Payload(b"null")
    return Payload(json.dumps(value[0]).encode()) if len(value) == 1 else payload


def failure_change(recorded: Failure, issued: Failure, *, foreign: bool) -> str:
    """Return the name of the first difference that the workflow's code causes, or ""."""
    left: Failure | None = recorded
    right: Failure | None = issued
    suffix = ""
    while left is not None and right is not None:
        if left.encoded_attributes is not None:
            return ""  # its message was encrypted by a codec that was not passed
        if _is_cancellation(left) and _is_cancellation(right) and _cancellation_types_differ(left, right):
            return ""  # each SDK has its own failure for a cancellation that ends a handler or task
        if foreign and type(left.info) is not type(right.info):
            # Some SDKs raise an activity's failure directly, others wrap it in an activity failure, so unwrap both.
            left, right = _unwrapped(left), _unwrapped(right)
        difference = _failure_difference(left, right, foreign)
        if difference:
            return f"{difference}{suffix}"
        if isinstance(left.info, CanceledFailure) or _is_timeout(left):
            return ""  # the SDK chooses the causes of these failures
        left, right = left.cause, right.cause
        suffix = " (in its cause)"
    return "" if foreign or (left is None and right is None) else "cause"


def _is_cancellation(failure: Failure) -> bool:
    """Return whether a failure only reports a cancellation, in the terms of any SDK."""
    match failure.info:
        case CanceledFailure():
            return True
        case ApplicationFailure(type=kind):
            return kind in _CANCELLATIONS
        case ActivityFailure() | ChildWorkflowFailure():
            return failure.cause is not None and _is_cancellation(failure.cause)
        case _:
            return False


def _cancellation_types_differ(recorded: Failure, issued: Failure) -> bool:
    if isinstance(recorded.info, ApplicationFailure) and isinstance(issued.info, ApplicationFailure):
        return recorded.info.type != issued.info.type
    return type(recorded.info) is not type(issued.info)


def _unwrapped(failure: Failure) -> Failure:
    while isinstance(failure.info, (ActivityFailure, ChildWorkflowFailure)) and failure.cause is not None:
        failure = failure.cause
    return failure


def _is_timeout(failure: Failure) -> bool:
    """Return whether a failure is the timeout of a wait in the workflow's own language."""
    return isinstance(failure.info, ApplicationFailure) and failure.info.type == "TimeoutError"


def _failure_difference(recorded: Failure, issued: Failure, foreign: bool) -> str:
    if type(recorded.info) is not type(issued.info):
        # temporalio leaves the kind of the failure unset if a child's id is in use, so compare messages
        if recorded.info is None:
            return "" if foreign or recorded.message == issued.message else "failure's message"
        return "kind of failure"
    match recorded.info, issued.info:
        case ApplicationFailure() as a, ApplicationFailure() as b:
            if a.type != b.type and not (not a.type and b.type == _NO_TYPE):
                return "failure's type"
            if recorded.message != issued.message and not _is_timeout(recorded):
                return "failure's message"
            if not same_payloads(a.details, b.details):
                return "failure's details"
            if a.non_retryable != b.non_retryable:
                return "failure's non_retryable"
            if (a.next_retry_delay or 0, a.category) != (b.next_retry_delay or 0, b.category):
                return "failure's next retry or category"
        case CanceledFailure() as a, CanceledFailure() as b:
            return "" if same_payloads(a.details, b.details) else "failure's details"
        case ActivityFailure() as a, ActivityFailure() as b:
            return "" if a.activity_type == b.activity_type else "failed activity"
        case ChildWorkflowFailure() as a, ChildWorkflowFailure() as b:
            return "" if a.workflow_type == b.workflow_type else "failed child"
        case _:
            if not foreign and recorded.message != issued.message:
                return "failure's message"
    return ""
