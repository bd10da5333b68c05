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
from hourglass._evaluator.words import AskedCommand, describe, is_made_up
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
_NOTHING = Payload(b"", "binary/null")
_NO_TYPE = (
    "ApplicationError"  # what Hourglass calls an application's failure to which its author gave no type
)
_CANCELLATIONS = frozenset({"CancelledError", "Cancelled", "TaskCancelledError"})
"""Exceptions of asyncio and of ours by which code learns that it is cancelled, as types of failures."""
_TO_WORKFLOWS = frozenset({"signal to another workflow", "child workflow"})
_RETURNS = frozenset(
    {"give_back", "take_back", "hand_in"}
)  # signals by which keepers get back what they gave
_UPDATE_ENDS = frozenset({"result of update", "failure of update"})
"""Both lead to the same event, so a worker continues a run whose update ends the other way now."""
_OF_SERVERS = frozenset({"TemporalChangeVersion", "BuildIds"})
"""Search attributes that SDKs and servers keep by themselves."""


def same_thing(was: AskedCommand, now: AskedCommand, names: Mapping[str, str], *, foreign: bool) -> bool:
    """Whether what is asked for now goes by the name and the id of what is on record."""
    if now.kind in ("continue-as-new", "acceptance of update"):
        return True
    if was.name != now.name and was.kind == now.kind:
        return False
    match now.kind:
        case "activity":
            return same_id(was.key, now, foreign=foreign)
        case "child workflow":
            return bool(was.key == now.key) or (foreign and now.is_default and is_made_up(was.key))
        case "signal to another workflow" | "cancel request to another workflow":
            return bool(was.key == names.get(now.key, now.key))
        case kind if kind in _UPDATE_ENDS:
            return bool(was.key == now.key)
        case _:
            return True


def both_end_update(was: AskedCommand, now: AskedCommand) -> bool:
    """Whether both are the end of an update, by a result or by a failure."""
    return was.kind in _UPDATE_ENDS and now.kind in _UPDATE_ENDS


def same_id(key: str, now: AskedCommand, *, foreign: bool) -> bool:
    """Whether an activity's id is the one on record: chosen here as there, or chosen neither here nor there."""
    if key == now.key:
        return True
    return foreign and now.is_default and (key.isdigit() or is_made_up(key))


def differs(
    was: AskedCommand | None, now: AskedCommand | None, site: Site, reason: str
) -> NondeterminismError:
    """The report for code that went another way than its history: what was expected, what came, and where."""
    expected = _described(was) + (f" (event {was.event_id})" if was is not None else "")
    produced = _described(now)
    if was is None and now is None:
        expected, produced = "something else", "what it asks for here"
    elif now is None and site[0]:
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


def _described(item: AskedCommand | None) -> str:
    """A command in words: those to the keeper of a limit as what the author asked for."""
    if item is not None:
        for prefix, what in ((SLOTS, "slot"), (TURNS, "turn")):
            if item.kind in _TO_WORKFLOWS and item.key.startswith(prefix):
                verb = "return" if item.name in _RETURNS else "request"
                return f"{verb} of a {what} of {item.key.removeprefix(prefix)!r}"
    return describe(item)


def _place(site: Site) -> str:
    if not site[0]:
        return ""
    callers = site.callers if isinstance(site, Place) else ()
    return f"   at {site[0]}:{site[1]}" + "".join(
        f"\n      called at {file}:{line}" for file, line in callers
    )


def compared(was: AskedCommand, now: AskedCommand, *, foreign: bool = False) -> NondeterminismError | None:
    """What changed between a thing on record and the same thing as it is asked for now, if anything did.

    `foreign`: the history is of another language, whose failures are worded otherwise. What the library issues for a call of
    the author's holds values that may change, such as the limit of a slot.
    """
    if isinstance(now.site, Place) and now.site.is_on_behalf:
        return None
    what = _changed(was, now, foreign)
    if not what:
        return None
    place = _place(now.site).strip() or "at an unknown place"
    return NondeterminismError(
        f"{what} of {describe(now)} changed since event {was.event_id} was recorded\n"
        f"  asked for {place}\n"
        "  Temporal allows this; to allow it here too: Replayer(…, compare_arguments=False)",
        expected=f"{describe(was)} (event {was.event_id}) with the recorded {what}",
        produced=f"{describe(now)} with another {what}",
        file=now.site[0],
        line=now.site[1],
    )


def _changed(was: AskedCommand, now: AskedCommand, foreign: bool) -> str:
    if was.kind != now.kind and both_end_update(was, now):
        return "outcome"
    if now.kind == "continue-as-new":
        if now.name and was.name != now.name:
            return "type"
        # What the code does not give goes along from this run.
        if not _same_fields({key: was.memo.get(key, _NOTHING) for key in now.memo}, now.memo):
            return "memo"
        given = now.search_attributes
        if not _same_fields({key: was.search_attributes.get(key, _NOTHING) for key in given}, given):
            return "search attributes"
    elif now.kind not in ("acceptance of update",):
        if was.name != now.name:
            return "type"
        if not _same_fields(was.memo, now.memo):
            return "memo"
        if not _same_fields(was.search_attributes, now.search_attributes):
            return "search attributes"
    if was.duration_ns is not None and now.duration_ns is not None:
        return "duration" if abs(was.duration_ns - now.duration_ns) > _TOLERANCE_NS else ""
    if was.failure is not None and now.failure is not None:
        return failure_change(was.failure, now.failure, foreign=foreign)
    if now.kind in ("completion", "result of update"):
        return "" if _same_result(was.payloads, now.payloads) else "result"
    return "" if same_payloads(was.payloads, now.payloads) else "arguments"


def _same_result(was: Payloads, now: Payloads) -> bool:
    """A result of nothing may be sent as null or not at all."""
    return same_payloads(was, now) or (not was and all(_is_null(p) for p in now))


def same_payloads(was: Payloads, now: Payloads) -> bool:
    """Whether two lists of payloads mean the same: key order and spacing of JSON do not count."""
    return len(was) == len(now) and all(_same_payload(a, b) for a, b in zip(was, now, strict=True))


def _same_payload(was: Payload, now: Payload) -> bool:
    if was.data == now.data and was.encoding == now.encoding:
        return True
    if _is_null(was) and _is_null(now):
        return True  # SDKs differ in how they say nothing
    if {was.encoding, now.encoding} <= {"json/plain", "json/protobuf"}:
        try:
            return _same_value(json.loads(was.data), json.loads(now.data))
        except (ValueError, RecursionError):
            return False
    return False


def _same_value(was: Any, now: Any) -> bool:
    """Whether two values of JSON are the same. `true` is not 1, though Python says so."""
    if isinstance(was, bool) or isinstance(now, bool):
        return was is now
    if isinstance(was, dict) and isinstance(now, dict):
        return was.keys() == now.keys() and all(_same_value(was[key], now[key]) for key in was)
    if isinstance(was, list) and isinstance(now, list):
        return len(was) == len(now) and all(map(_same_value, was, now))
    return bool(was == now)


def _is_null(payload: Payload) -> bool:
    return payload.encoding == "binary/null" or (payload.encoding == "json/plain" and payload.data == b"null")


def _same_fields(was: Mapping[str, Payload], now: Mapping[str, Payload]) -> bool:
    """Whether memos or search attributes are the same. SDKs write one value as itself or as a list of it."""
    left = {key: _bare(value) for key, value in was.items() if key not in _OF_SERVERS}
    right = {key: _bare(value) for key, value in now.items() if key not in _OF_SERVERS}
    return left.keys() == right.keys() and all(_same_payload(left[key], right[key]) for key in left)


def _bare(payload: Payload) -> Payload:
    if payload.encoding != "json/plain" or not payload.data.startswith(b"["):
        return payload
    try:
        value = json.loads(payload.data)
    except (ValueError, RecursionError):
        return payload
    if value == []:
        return Payload(b"null")
    return Payload(json.dumps(value[0]).encode()) if len(value) == 1 else payload


def failure_change(was: Failure, now: Failure, *, foreign: bool) -> str:
    """What differs between two failures, "" if nothing does that the code decides."""
    one: Failure | None = was
    other: Failure | None = now
    where = ""
    while one is not None and other is not None:
        if one.encoded_attributes is not None:
            return ""  # its words are behind a codec that was not given
        if _is_cancellation(one) and _is_cancellation(other) and _words_differ(one, other):
            return ""  # how a cancellation is told that ends a handler or a task is the SDK's own
        if foreign and type(one.info) is not type(other.info):
            # Some SDKs let what an activity raised pass as it is, others say whose it was.
            one, other = _unwrapped(one), _unwrapped(other)
        what = _failure_difference(one, other, foreign)
        if what:
            return f"{what}{where}"
        if isinstance(one.info, CanceledFailure) or _is_timeout(one):
            return ""  # their causes are the SDK's
        one, other = one.cause, other.cause
        where = " (in its cause)"
    return "" if foreign or (one is None and other is None) else "cause"


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


def _words_differ(was: Failure, now: Failure) -> bool:
    if isinstance(was.info, ApplicationFailure) and isinstance(now.info, ApplicationFailure):
        return was.info.type != now.info.type
    return type(was.info) is not type(now.info)


def _unwrapped(failure: Failure) -> Failure:
    while isinstance(failure.info, (ActivityFailure, ChildWorkflowFailure)) and failure.cause is not None:
        failure = failure.cause
    return failure


def _is_timeout(failure: Failure) -> bool:
    """Whether a wait of the language's own was over, in words of its own."""
    return isinstance(failure.info, ApplicationFailure) and failure.info.type == "TimeoutError"


def _failure_difference(was: Failure, now: Failure, foreign: bool) -> str:
    if type(was.info) is not type(now.info):
        if was.info is None:  # temporalio says no kind where a child's id was taken; the words must do
            return "" if foreign or was.message == now.message else "failure's message"
        return "kind of failure"
    match was.info, now.info:
        case ApplicationFailure() as a, ApplicationFailure() as b:
            if a.type != b.type and not (not a.type and b.type == _NO_TYPE):
                return "failure's type"
            if was.message != now.message and not _is_timeout(was):
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
            if not foreign and was.message != now.message:
                return "failure's message"
    return ""
