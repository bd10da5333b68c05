"""Summaries of commands in the terms of a history, and their descriptions in words. Commands of a run and the
events that they caused (see `_history.words`) have the same form of summary. Pure. Descriptions never contain
payloads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from hourglass._evaluator import commands as c
from hourglass._evaluator.call_sites import NOWHERE, Site
from hourglass._evaluator.specs import Payloads
from hourglass.converter import Failure, Payload

_GENERATED_ID = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}([_-].*)?", re.IGNORECASE)
_CAPITALS = re.compile(r"(?<!^)(?=[A-Z])")
_NUMBERED = ("activity", "local activity", "timer")


class CommandSummary(msgspec.Struct, frozen=True):
    """A summary of a command that a run's code issued at `site`, or that its history has recorded as event
    `event_id`. `key` distinguishes commands of the same kind.
    """

    kind: str
    key: str = ""
    name: str = ""
    payloads: Payloads = ()
    duration_ns: int | None = None
    failure: Failure | None = None
    memo: dict[str, Payload] = {}
    search_attributes: dict[str, Payload] = {}
    event_id: int = 0
    site: Site = NOWHERE
    is_default: bool = False
    """Whether the key is a default and was not chosen by the author."""


def summarize(command: c.Command, site: Site = NOWHERE) -> CommandSummary:
    """Return the summary of a command. A kind of command that no history contains is named after its class."""
    kind = type(command)
    if kind not in _FACTS:
        return CommandSummary(spaced(kind.__name__), str(getattr(command, "seq", "")), site=site)
    match command:
        case c.ScheduleActivity() | c.ScheduleLocalActivity():
            is_default = command.activity_id == str(command.seq)
        case c.StartChildWorkflow():
            is_default = is_generated_id(command.workflow_id)
        case _:
            is_default = kind is c.StartTimer
    return summary_of(command, *_FACTS[kind], site=site, is_default=is_default)


Paths: TypeAlias = Mapping[str, str]
"""The attribute of a command or an event for each field of its summary."""


def summary_of(source: Any, kind: str, paths: Paths, **more: Any) -> CommandSummary:
    """Return the summary of a command or of an event."""
    facts = {field: attrgetter(path)(source) for field, path in paths.items()}
    if "key" in facts:
        facts["key"] = str(facts["key"])
    if not isinstance(facts.get("payloads", ()), tuple):
        facts["payloads"] = () if facts["payloads"] is None else (facts["payloads"],)
    if kind == NEXUS[0]:
        facts["name"] = f"{source.service}.{source.operation}"
    return CommandSummary(kind, **facts, **more)


def is_generated_id(key: str) -> bool:
    """Return whether an id looks like one that an SDK has generated."""
    return bool(_GENERATED_ID.fullmatch(key))


def describe(summary: CommandSummary | None) -> str:
    """Return a short description of a command."""
    if summary is None:
        return "no further command"
    text = summary.kind
    if summary.name:
        text += f" {summary.name}"
    if summary.key and summary.kind in _NUMBERED:
        text += f" number {summary.key}" if summary.key.isdigit() else f" {summary.key!r}"
    elif summary.key and summary.key.isdigit():
        text += f" {summary.key}"
    elif summary.key:
        text += f" with id {summary.key!r}"
    if summary.duration_ns is not None:
        text += f" of {summary.duration_ns / 1e9:g} s"
    return text


def spaced(name: str) -> str:
    """Return the name of a class as words."""
    return _CAPITALS.sub(" ", name).lower()


NEXT_RUN: Paths = {
    "name": "workflow_type",
    "payloads": "arguments",
    "memo": "spec.memo",
    "search_attributes": "spec.search_attributes",
}
ACTIVITY: Paths = {"key": "activity_id", "name": "activity_type", "payloads": "arguments"}
CHILD: Paths = {"key": "workflow_id", **NEXT_RUN}
SIGNAL: Paths = {"key": "workflow_id", "name": "signal_name", "payloads": "arguments"}
NEXUS = "Nexus operation", {"key": "endpoint", "payloads": "argument"}

_FACTS: dict[type[c.Command], tuple[str, Paths]] = {
    c.ScheduleActivity: ("activity", ACTIVITY),
    c.ScheduleLocalActivity: ("local activity", ACTIVITY),
    c.StartTimer: ("timer", {"key": "seq", "duration_ns": "duration_ns"}),
    c.StartChildWorkflow: ("child workflow", CHILD),
    c.ScheduleNexusOperation: NEXUS,
    c.SignalExternalWorkflow: ("signal to another workflow", SIGNAL),
    c.RequestCancelExternal: ("cancel request to another workflow", {"key": "workflow_id"}),
    c.CompleteRun: ("completion", {"payloads": "result"}),
    c.FailRun: ("failure", {"failure": "failure"}),
    c.CancelRun: ("cancellation", {}),
    c.ContinueAsNew: ("continue-as-new", NEXT_RUN),
    c.UpsertSearchAttributes: (
        "change of search attributes",
        {"search_attributes": "search_attributes"},
    ),
    c.UpsertMemo: ("change of the memo", {"memo": "memo"}),
    c.AcceptUpdate: ("acceptance of update", {"key": "protocol_instance_id"}),
    c.CompleteUpdate: ("result of update", {"key": "protocol_instance_id", "payloads": "result"}),
    c.RejectUpdate: ("failure of update", {"key": "protocol_instance_id", "failure": "failure"}),
    c.SetPatchMarker: ("patch", {"key": "patch_id"}),
}


_SIGNAL_WAIT = re.compile(r"waits for signal '(.+)'")


def waits_for_signal(name: str) -> str:
    """Return the summary text for the timer that limits a wait for a signal. It lets readers of the history
    recognise the wait.
    """
    return f"waits for signal '{name}'"


def signal_waited_for(summary: str) -> str:
    """Return the name of the signal for a timer with this kind of summary. Return "" for other timers."""
    match = _SIGNAL_WAIT.fullmatch(summary)
    return match[1] if match else ""
