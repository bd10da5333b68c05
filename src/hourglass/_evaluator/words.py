"""Summaries of commands in the terms of a history, and their descriptions in words. Commands of a run and the
events that they caused (see `_history.words`) have the same form of summary. Pure. Descriptions never contain
payloads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

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
    facts_of = _FACTS.get(type(command))
    if facts_of is None:
        return CommandSummary(spaced(type(command).__name__), str(getattr(command, "seq", "")), site=site)
    kind, facts = facts_of(command)
    return CommandSummary(kind, **facts, site=site)


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


_Facts = tuple[str, dict[str, Any]]


def _activity(command: c.ScheduleActivity | c.ScheduleLocalActivity) -> _Facts:
    kind = "activity" if isinstance(command, c.ScheduleActivity) else "local activity"
    return kind, {
        "key": command.activity_id,
        "name": command.activity_type,
        "payloads": command.arguments,
        "is_default": command.activity_id == str(command.seq),
    }


def _timer(command: c.StartTimer) -> _Facts:
    return "timer", {"key": str(command.seq), "duration_ns": command.duration_ns, "is_default": True}


def _child(command: c.StartChildWorkflow) -> _Facts:
    return "child workflow", {
        "key": command.workflow_id,
        "name": command.workflow_type,
        "payloads": command.arguments,
        "memo": command.spec.memo,
        "search_attributes": command.spec.search_attributes,
        "is_default": is_generated_id(command.workflow_id),
    }


def _signal(command: c.SignalExternalWorkflow) -> _Facts:
    return "signal to another workflow", {
        "key": command.workflow_id,
        "name": command.signal_name,
        "payloads": command.arguments,
    }


def _continued(command: c.ContinueAsNew) -> _Facts:
    return "continue-as-new", {
        "name": command.workflow_type,
        "payloads": command.arguments,
        "memo": command.spec.memo,
        "search_attributes": command.spec.search_attributes,
    }


_FACTS: dict[type[c.Command], Callable[[Any], _Facts]] = {
    c.ScheduleActivity: _activity,
    c.ScheduleLocalActivity: _activity,
    c.StartTimer: _timer,
    c.StartChildWorkflow: _child,
    c.ScheduleNexusOperation: lambda command: (
        "Nexus operation",
        {
            "key": command.endpoint,
            "name": f"{command.service}.{command.operation}",
            "payloads": (command.argument,),
        },
    ),
    c.SignalExternalWorkflow: _signal,
    c.RequestCancelExternal: lambda command: (
        "cancel request to another workflow",
        {"key": command.workflow_id},
    ),
    c.CompleteRun: lambda command: ("completion", {"payloads": (command.result,)}),
    c.FailRun: lambda command: ("failure", {"failure": command.failure}),
    c.CancelRun: lambda command: ("cancellation", {}),
    c.ContinueAsNew: _continued,
    c.UpsertSearchAttributes: lambda command: (
        "change of search attributes",
        {"search_attributes": command.search_attributes},
    ),
    c.UpsertMemo: lambda command: ("change of the memo", {"memo": command.memo}),
    c.AcceptUpdate: lambda command: ("acceptance of update", {"key": command.protocol_instance_id}),
    c.CompleteUpdate: lambda command: (
        "result of update",
        {"key": command.protocol_instance_id, "payloads": (command.result,)},
    ),
    c.RejectUpdate: lambda command: (
        "failure of update",
        {"key": command.protocol_instance_id, "failure": command.failure},
    ),
    c.SetPatchMarker: lambda command: ("patch", {"key": command.patch_id}),
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
