"""What a replay asked for against what the history says: where it went another way, and whose arguments changed. Pure."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import msgspec

from hourglass._engine.commands import (
    CancelRun,
    CancelTimer,
    Command,
    CompleteRun,
    ContinueAsNew,
    FailRun,
    RequestCancelActivity,
    RequestCancelExternal,
    ScheduleActivity,
    SignalExternalWorkflow,
    StartChildWorkflow,
    StartTimer,
)
from hourglass._engine.context import Site
from hourglass._engine.events import Payloads
from hourglass.converter import Payload
from hourglass.errors import NondeterminismError

_TOLERANCE_NS = 2_000_000  # SDKs round durations differently, to the millisecond at worst


class Asked(msgspec.Struct, frozen=True):
    """One thing that the replayed code asked for, and where."""

    kind: str
    key: str
    name: str
    payloads: Payloads
    duration_ns: int | None
    site: Site


def asked(command: Command, site: Site) -> Asked | None:
    """A command in the terms of a history; None where a history has no trace of it, or not a reliable one."""
    match command:
        case ScheduleActivity():
            return Asked(
                "activity", command.activity_id, command.activity_type, command.arguments, None, site
            )
        case StartTimer():
            return Asked("timer", str(command.seq), "", (), command.duration_ns, site)
        case StartChildWorkflow():
            return Asked(
                "child workflow", command.workflow_id, command.workflow_type, command.arguments, None, site
            )
        case SignalExternalWorkflow():
            return Asked(
                "signal to another workflow",
                command.workflow_id,
                command.signal_name,
                command.arguments,
                None,
                site,
            )
        case RequestCancelExternal():
            return Asked("cancel request to another workflow", command.workflow_id, "", (), None, site)
        case CompleteRun():
            return Asked("completion", "", "", (command.result,), None, site)
        case FailRun():
            return Asked("failure", "", "", (), None, site)
        case CancelRun():
            return Asked("cancellation", "", "", (), None, site)
        case ContinueAsNew():
            return Asked("continue-as-new", "", command.workflow_type, command.arguments, None, site)
        case _:
            return None


def visible(commands: list[tuple[Command, Site]]) -> list[Asked]:
    """What a history should show: starts that were taken back before they left are not there."""
    taken_back = {("timer", str(c.seq)) for c, _ in commands if isinstance(c, CancelTimer)}
    taken_back |= {("activity", str(c.seq)) for c, _ in commands if isinstance(c, RequestCancelActivity)}
    found = []
    for command, site in commands:
        item = asked(command, site)
        if item is not None:
            found.append(item)
    return [item for item in found if (item.kind, item.key) not in taken_back] if taken_back else found


def describe(item: Any) -> str:
    """An expected or produced thing in a few words, without payloads."""
    if item is None:
        return "nothing more"
    text: str = item.kind
    if item.name:
        text += f" {item.name}"
    if item.key and item.kind in ("activity", "timer"):
        text += f" number {item.key}" if item.key.isdigit() else f" {item.key!r}"
    elif item.key:
        text += f" with id {item.key!r}"
    if item.duration_ns is not None:
        text += f" of {item.duration_ns / 1e9:g} s"
    return text


def first_difference(
    expected: tuple[Any, ...], commands: list[tuple[Command, Site]], waiting_at: Site, reason: str
) -> NondeterminismError:
    """The report for a replay that Core has refused: where the code first went another way."""
    produced = visible(commands)
    known = {(item.kind, item.key) for item in produced}
    every = [c for c in (asked(command, site) for command, site in commands) if c is not None]
    taken_back = {(item.kind, item.key) for item in every} - known
    wanted = [item for item in expected if (item.kind, item.key) not in taken_back]
    for position in range(max(len(wanted), len(produced))):
        was = wanted[position] if position < len(wanted) else None
        now = produced[position] if position < len(produced) else None
        if was is not None and now is not None and _same(was, now):
            continue
        return differs(was, now, now.site if now is not None else waiting_at, reason)
    return differs(None, None, waiting_at, reason)


def asks_for_more(expected: tuple[Any, ...], commands: list[tuple[Command, Site]]) -> bool:
    """Whether the code asked for something that the history has no trace of."""
    known = Counter((item.kind, item.key) for item in expected)
    return bool(Counter((item.kind, item.key) for item in visible(commands)) - known)


def _same(was: Any, now: Asked) -> bool:
    return (was.kind, was.key, was.name) == (now.kind, now.key, now.name)


def differs(was: Any, now: Asked | None, site: Site, reason: str) -> NondeterminismError:
    """The report for code that went another way than its history: what was expected, what came, and where."""
    expected = describe(was) + (f" (event {was.event_id})" if was is not None else "")
    place = f"   at {site[0]}:{site[1]}" if site[0] else ""
    return NondeterminismError(
        "the workflow's code no longer fits this history\n"
        f"  the history says: {expected}\n"
        f"  the code asks for: {describe(now)}{place}\n"
        f"  {reason}".rstrip(),
        expected=expected,
        produced=describe(now),
        file=site[0],
        line=site[1],
    )


def changed_arguments(
    expected: tuple[Any, ...], commands: list[tuple[Command, Site]]
) -> NondeterminismError | None:
    """The first thing that was asked for with other arguments, another duration or another result than on record."""
    recorded: dict[tuple[str, str], list[Any]] = {}
    for item in expected:
        recorded.setdefault((item.kind, item.key), []).append(item)
    for command, site in commands:
        now = asked(command, site)
        if now is None or not recorded.get((now.kind, now.key)):
            continue
        changed = compared(recorded[now.kind, now.key].pop(0), now)
        if changed is not None:
            return changed
    return None


def compared(was: Any, now: Asked) -> NondeterminismError | None:
    """What changed between a thing on record and the same thing as it is asked for now, if anything did."""
    what = _changed(was, now)
    if not what:
        return None
    place = f"{now.site[0]}:{now.site[1]}" if now.site[0] else "an unknown place"
    return NondeterminismError(
        f"{what} of {describe(now)} changed since event {was.event_id} was recorded\n"
        f"  asked for at {place}\n"
        "  Temporal allows this; to allow it here too: Replayer(…, compare_arguments=False)",
        expected=f"{describe(was)} (event {was.event_id}) with the recorded {what}",
        produced=f"{describe(now)} with another {what}",
        file=now.site[0],
        line=now.site[1],
    )


def _changed(was: Any, now: Asked) -> str:
    if was.name != now.name:
        return "type"
    if was.duration_ns is not None and now.duration_ns is not None:
        return "duration" if abs(was.duration_ns - now.duration_ns) > _TOLERANCE_NS else ""
    if now.kind == "completion":
        return "" if _same_result(was.payloads, now.payloads) else "result"
    return "" if same_payloads(was.payloads, now.payloads) else "arguments"


def _same_result(was: Payloads, now: Payloads) -> bool:
    """A result of nothing may be sent as null or not at all."""
    return same_payloads(was, now) or (not was and all(p.encoding == "binary/null" for p in now))


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
            return bool(json.loads(was.data) == json.loads(now.data))
        except (ValueError, RecursionError):
            return False
    return False


def _is_null(payload: Payload) -> bool:
    return payload.encoding == "binary/null" or (payload.encoding == "json/plain" and payload.data == b"null")
