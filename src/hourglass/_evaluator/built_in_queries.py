"""The queries that every run answers regardless of its code: stack traces, the state of its signals, and data
for Temporal's web UI. Pure.
"""

from __future__ import annotations

import json
import linecache
import traceback
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeAlias

from hourglass._evaluator.call_sites import is_library
from hourglass._evaluator.context import LiveRun
from hourglass._evaluator.definition import MessageDefinition, MessageKind
from hourglass.converter import Payload

UNREAD_SIGNALS: Final = "__hourglass_unread_signals"
"""A query for the numbers of received but unhandled signals, by name."""

ACTIVITY_STACKS: Final = "__hourglass_activity_stacks"
"""A query for the ids and stacks of the activities that the run's worker is executing for this run."""

AWAITED_SIGNALS: Final = "__hourglass_awaited_signals"
"""A query for the names of the channels that the run is waiting for."""

Known: TypeAlias = Mapping[tuple[MessageKind, str | None], tuple[MessageDefinition, Any]]
Receivers: TypeAlias = Mapping[str, Collection[object]]


def answer(name: str, run: LiveRun, handlers: Known, receivers: Receivers | None) -> Payload | None:
    """Return the answer to a built-in query, or None if the query is not built in. `handlers` are the handlers
    of the run, `receivers` the waiting receivers of each channel.
    """
    match name:
        case "__stack_trace":
            return run.converter.encode(_stack_trace(run))
        case "__enhanced_stack_trace":
            return _enhanced_stack_trace(run)
        case "__temporal_workflow_metadata":
            return _metadata(run, handlers, receivers)
        case _ if name == UNREAD_SIGNALS:
            unread = {name: len(waiting) for name, waiting in run.state.signals.items() if waiting}
            return run.converter.encode(unread)
        case _ if name == AWAITED_SIGNALS:
            return run.converter.encode(
                sorted(name for name, waiting in (receivers or {}).items() if waiting)
            )
        case _ if name == ACTIVITY_STACKS:
            read_stacks = run.settings.activity_stacks
            return run.converter.encode("" if read_stacks is None else read_stacks(run.state.run_id))
        case _:
            return None


def _stack_trace(run: LiveRun) -> str:
    """Return the stack of every fiber."""
    parts = []
    for line in run.lines:
        frames = [(frame, frame.f_lineno) for frame in reversed(line.frames())]
        if frames:
            lines = traceback.StackSummary.extract(iter(frames)).format()
            parts.append(f"{line.label}\n{''.join(lines)}")
    return "\n".join(parts)


def _enhanced_stack_trace(run: LiveRun) -> Payload:
    """Return the stacks as Temporal's `EnhancedStackTrace`: as data, with the author's source code, and the
    innermost frame first.
    """
    stacks: list[dict[str, Any]] = []
    sources: dict[str, dict[str, Any]] = {}
    for line in run.lines:
        locations = []
        for frame in line.frames():
            path, name = frame.f_code.co_filename, frame.f_code.co_name
            internal = is_library(path)
            if not internal:
                sources[path] = {"lineOffset": 0, "content": "".join(linecache.getlines(path))}
            place = {"filePath": path, "line": frame.f_lineno, "column": -1, "functionName": name}
            locations.append({**place, "internalCode": internal})
        if locations:
            stacks.append({"locations": locations})
    document = {"sdk": {"name": "hourglass"}, "sources": sources, "stacks": stacks}
    return Payload(
        json.dumps(document).encode(),
        "json/protobuf",
        {"messageType": b"temporal.api.sdk.v1.EnhancedStackTrace"},
    )


def _metadata(run: LiveRun, handlers: Known, receivers: Receivers | None) -> Payload:
    """Return the workflow's definition for Temporal's web UI."""

    def described(kind: MessageKind) -> list[dict[str, str]]:
        descriptions = {
            name or "": message.description
            for (message_kind, name), (message, _) in handlers.items()
            if message_kind == kind
        }
        if kind == "signal" and receivers is not None:  # a channel that the run has read is also a signal
            descriptions |= {
                name: "the workflow waits for it" if waiting else "" for name, waiting in receivers.items()
            }
        return [{"name": name, "description": descriptions[name]} for name in sorted(descriptions)]

    document: dict[str, Any] = {
        "definition": {
            "type": run.state.workflow_type,
            "queryDefinitions": described("query"),
            "signalDefinitions": described("signal"),
            "updateDefinitions": described("update"),
        }
    }
    if run.notes.details:
        document["currentDetails"] = run.notes.details
    return Payload(
        json.dumps(document).encode(),
        "json/protobuf",
        {"messageType": b"temporal.api.sdk.v1.WorkflowMetadata"},
    )
