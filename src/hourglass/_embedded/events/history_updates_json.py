"""The JSON of those events by which a history tells of updates; part of `history_json`, whose rules hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hourglass._embedded.events import history_updates as u
from hourglass._embedded.events.failure_json import failure_json, payloads_json
from hourglass._embedded.events.history_base import Attributes
from hourglass._embedded.events.json_parts import Json, fields_json, trim


def _request(request: u.UpdateRequest) -> Json:
    return {
        "meta": _meta(request.update_id, request.identity),
        "input": trim(
            {
                "header": fields_json(request.headers, "fields"),
                "name": request.name,
                "args": payloads_json(request.arguments),
            }
        ),
    }


def _meta(update_id: str, identity: str) -> Json:
    return trim({"updateId": update_id, "identity": identity})


def _admitted(a: u.WorkflowExecutionUpdateAdmitted) -> Json:
    return {"request": _request(a.request), "origin": "UPDATE_ADMITTED_EVENT_ORIGIN_REAPPLY"}


def _accepted(a: u.WorkflowExecutionUpdateAccepted) -> Json:
    return {
        "protocolInstanceId": a.update_id,
        "acceptedRequestMessageId": f"{a.update_id}/request",
        "acceptedRequestSequencingEventId": str(a.sequencing_event_id),
        "acceptedRequest": None if a.request is None else _request(a.request),
    }


def _completed(a: u.WorkflowExecutionUpdateCompleted) -> Json:
    if a.failure is not None:
        outcome = {"failure": failure_json(a.failure)}
    else:
        outcome = {"success": payloads_json(() if a.result is None else (a.result,)) or {}}
    return {
        "meta": _meta(a.update_id, a.identity),
        "acceptedEventId": str(a.accepted_event_id),
        "outcome": outcome,
    }


UPDATE_WRITERS: dict[type[Attributes], Callable[[Any], Json]] = {
    u.WorkflowExecutionUpdateAdmitted: _admitted,
    u.WorkflowExecutionUpdateAccepted: _accepted,
    u.WorkflowExecutionUpdateCompleted: _completed,
}
