"""What a replay asked for against what the history says: what differs, in words. Pure.

Must not know: tasks, order, which command goes with which event (see `_trace` and `_foreign_matching`). What Temporal lets
change between two executions (arguments, durations, results, failures, memos, search attributes) is compared apart from what it
does not (kinds, names, ids).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hourglass._contract.limits import SLOTS, TURNS
from hourglass._evaluator.call_sites import Place, Site
from hourglass._evaluator.specs import Payloads
from hourglass._evaluator.words import CommandSummary, describe, is_made_up
from hourglass.converter import (
    ActivityFailure,
    ApplicationFailure,
    CanceledFailure,
    ChildWorkflowFailure,
    Failure,
    Payload,
)
from hourglass.errors import NondeterminismError

_TOLERANCE_NS = 2_000_000  # SDKs round durations differently, to the millisecond at worst
_NULL = Payload(b"", "binary/null")
_NO_TYPE = (
    "ApplicationError"  # what Hourglass calls an application's failure to which its author gave no type
)
_CANCELLATIONS = frozenset({"CancelledError", "Cancelled", "TaskCancelledError"})
"""Exceptions of asyncio and of ours by which code learns that it is cancelled, as types of failures."""
_TO_WORKFLOWS = frozenset({"signal to another workflow", "child workflow"})
_RETURN_SIGNALS = frozenset(
    {"give_back", "take_back", "hand_in"}
)  # signals by which keepers get back what they gave
_SERVER_ATTRIBUTES = frozenset({"TemporalChangeVersion", "BuildIds"})
"""Search attributes that SDKs and servers keep by themselves."""


def same_thing(
    recorded: CommandSummary, issued: CommandSummary, names: Mapping[str, str], *, foreign: bool
) -> bool:
    """Whether what is asked for now goes by the name and the id of what is on record."""
    if issued.kind in ("continue-as-new", "acceptance of update"):
        return True
    if recorded.name != issued.name and recorded.kind == issued.kind:
        return False
    match issued.kind:
        case "activity":
            return same_id(recorded.key, issued, foreign=foreign)
        case "child workflow":
            return bool(recorded.key == issued.key) or (
                foreign and issued.is_default and is_made_up(recorded.key)
            )
        case "signal to another workflow" | "cancel request to another workflow":
            return bool(recorded.key == names.get(issued.key, issued.key))
        case "result of update" | "failure of update":
            return bool(recorded.key == issued.key)
        case _:
            return True


def same_id(key: str, issued: CommandSummary, *, foreign: bool) -> bool:
    """Whether an activity's id is the one on record: chosen here as there, or chosen neither here nor there."""
    if key == issued.key:
        return True
    return foreign and issued.is_default and (key.isdigit() or is_made_up(key))


def mismatch(
    recorded: CommandSummary | None, issued: CommandSummary | None, site: Site, reason: str
) -> NondeterminismError:
    """The report for code that went another way than its history: what was expected, what came, and where."""
    expected = _described(recorded) + (f" (event {recorded.event_id})" if recorded is not None else "")
    produced = _described(issued)
    if recorded is None and issued is None:
        expected, produced = "something else", "what it asks for here"
    elif issued is None and site[0]:
        produced = "nothing more: it waits"
    place = _place(site)
    return NondeterminismError(
        "the workflow's code no longer fits this history\n"
        f"  the history says: {expected}\n"
        f"  the code asks for: {produced}{place}\n"
        f"  {reason}".rstrip(),
        expected=expected,
        produced=produced,
        file=site[0],
        line=site[1],
    )


def _described(command: CommandSummary | None) -> str:
    """A command in words: those to the keeper of a limit as what the author asked for."""
    if command is not None:
        for prefix, limit in ((SLOTS, "slot"), (TURNS, "turn")):
            if command.kind in _TO_WORKFLOWS and command.key.startswith(prefix):
                verb = "return" if command.name in _RETURN_SIGNALS else "request"
                return f"{verb} of a {limit} of {command.key.removeprefix(prefix)!r}"
    return describe(command)


def _place(site: Site) -> str:
    if not site[0]:
        return ""
    callers = site.callers if isinstance(site, Place) else ()
    return f"   at {site[0]}:{site[1]}" + "".join(
        f"\n      called at {file}:{line}" for file, line in callers
    )


def changed_value(
    recorded: CommandSummary, issued: CommandSummary, *, foreign: bool = False
) -> NondeterminismError | None:
    """What changed between a thing on record and the same thing as it is asked for now, if anything did.

    `foreign`: the history is of another language, whose failures are worded otherwise. What the library issues for a call of
    the author's holds values that may change, such as the limit of a slot.
    """
    if isinstance(issued.site, Place) and issued.site.is_on_behalf:
        return None
    change = _changed(recorded, issued, foreign)
    if not change:
        return None
    place = _place(issued.site).strip() or "at an unknown place"
    return NondeterminismError(
        f"{change} of {describe(issued)} changed since event {recorded.event_id} was recorded\n"
        f"  asked for {place}\n"
        "  Temporal allows this; to allow it here too: Replayer(…, compare_arguments=False)",
        expected=f"{describe(recorded)} (event {recorded.event_id}) with the recorded {change}",
        produced=f"{describe(issued)} with another {change}",
        file=issued.site[0],
        line=issued.site[1],
    )


def _changed(recorded: CommandSummary, issued: CommandSummary, foreign: bool) -> str:
    if issued.kind == "continue-as-new":
        if issued.name and recorded.name != issued.name:
            return "type"
        # What the code does not give goes along from this run.
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
    """A result of nothing may be sent as null or not at all."""
    return same_payloads(recorded, issued) or (not recorded and all(_is_null(p) for p in issued))


def same_payloads(recorded: Payloads, issued: Payloads) -> bool:
    """Whether two lists of payloads mean the same: key order and spacing of JSON do not count."""
    return len(recorded) == len(issued) and all(
        _same_payload(a, b) for a, b in zip(recorded, issued, strict=True)
    )


def _same_payload(recorded: Payload, issued: Payload) -> bool:
    if recorded.data == issued.data and recorded.encoding == issued.encoding:
        return True
    if _is_null(recorded) and _is_null(issued):
        return True  # SDKs differ in how they say nothing
    if {recorded.encoding, issued.encoding} <= {"json/plain", "json/protobuf"}:
        try:
            return _same_value(json.loads(recorded.data), json.loads(issued.data))
        except (ValueError, RecursionError):
            return False
    return False


def _same_value(recorded: Any, issued: Any) -> bool:
    """Whether two values of JSON are the same. `true` is not 1, though Python says so."""
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
    """Whether memos or search attributes are the same. SDKs write one value as itself or as a list of it."""
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
    """What differs between two failures, "" if nothing does that the code decides."""
    left: Failure | None = recorded
    right: Failure | None = issued
    suffix = ""
    while left is not None and right is not None:
        if left.encoded_attributes is not None:
            return ""  # its words are behind a codec that was not given
        if _is_cancellation(left) and _is_cancellation(right) and _cancellation_types_differ(left, right):
            return ""  # how a cancellation is told that ends a handler or a task is the SDK's own
        if foreign and type(left.info) is not type(right.info):
            # Some SDKs let what an activity raised pass as it is, others say whose it was.
            left, right = _unwrapped(left), _unwrapped(right)
        difference = _failure_difference(left, right, foreign)
        if difference:
            return f"{difference}{suffix}"
        if isinstance(left.info, CanceledFailure) or _is_timeout(left):
            return ""  # their causes are the SDK's
        left, right = left.cause, right.cause
        suffix = " (in its cause)"
    return "" if foreign or (left is None and right is None) else "cause"


def _is_cancellation(failure: Failure) -> bool:
    """Whether a failure says no more than that something was cancelled, in the words of one SDK or another."""
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
    """Whether a wait of the language's own was over, in words of its own."""
    return isinstance(failure.info, ApplicationFailure) and failure.info.type == "TimeoutError"


def _failure_difference(recorded: Failure, issued: Failure, foreign: bool) -> str:
    if type(recorded.info) is not type(issued.info):
        if recorded.info is None:  # temporalio says no kind where a child's id was taken; the words must do
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
