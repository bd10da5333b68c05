"""The JSON of a local activity's marker, as Core writes and reads it; part of `history_json`, whose rules hold.

What Core needs of a marker is JSON in a payload of its own, with times and durations in seconds and nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from hourglass._embedded.events import history_local as local
from hourglass._embedded.events.failure_json import failure_json, payloads_json
from hourglass._embedded.events.history_base import Attributes
from hourglass._embedded.events.json_parts import Json
from hourglass.converter import Payload

LOCAL_MARKER = "core_local_activity"


def _marker(a: local.MarkerRecorded) -> Json:
    details = {"data": payloads_json((Payload(msgspec.json.encode(_data(a)), "json/plain"),))}
    if a.result is not None:
        details["result"] = payloads_json((a.result,))
    return {
        "markerName": LOCAL_MARKER,
        "details": details,
        "workflowTaskCompletedEventId": str(a.task_completed_event_id),
        "failure": None if a.failure is None else failure_json(a.failure),
    }


def _data(a: local.MarkerRecorded) -> Json:
    data: Json = {
        "seq": a.seq,
        "attempt": a.attempt,
        "activity_id": a.activity_id,
        "activity_type": a.activity_type,
        "complete_time": _parts(a.complete_ns),
        "backoff": _parts(a.backoff_ns),
        "original_schedule_time": _parts(a.original_schedule_ns),
        "activation_index": None if a.activation_index == local.NO_INDEX else a.activation_index,
    }
    return data


def _parts(ns: int) -> Json | None:
    if not ns:
        return None
    seconds, nanos = divmod(ns, 1_000_000_000)
    return {"seconds": seconds, "nanos": nanos}


LOCAL_WRITERS: dict[type[Attributes], Callable[[Any], Json]] = {local.MarkerRecorded: _marker}
