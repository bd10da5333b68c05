"""The codec at the boundary of the client: encodes requests before they are sent and decodes answers, in the context of
their workflow.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import msgspec

from hourglass._contract.schedules import ScheduleDetails, SchedulePage
from hourglass._contract.service import Request
from hourglass._contract.workflows import (
    Description,
    Page,
)
from hourglass._worker.handles.codec_edge import request_context
from hourglass.converter import (
    ActivitySerializationContext,
    Codec,
    Converter,
    WorkflowSerializationContext,
    in_context,
    seal,
    unseal,
    wants_context,
)
from hourglass.errors import DecodeError

S = TypeVar("S")
A = TypeVar("A")


def sealed(request: Request[A], codec: Codec, converter: Converter, namespace: str) -> Request[A]:
    """Return the request with its payloads encoded by the codec."""
    return seal(request, _codec_of(request, codec, namespace), converter)


def unsealed(answer: A, request: Request[A], codec: Codec, converter: Converter, namespace: str) -> A:
    """Return the answer with its payloads decoded by the codec."""
    if isinstance(answer, Page):
        workflows = tuple(
            _summary(summary, _of_workflow(codec, summary.workflow_id, namespace), converter)
            for summary in answer.workflows
        )
        return cast("A", msgspec.structs.replace(answer, workflows=workflows))
    if isinstance(answer, SchedulePage):
        schedules = tuple(_summary(summary, codec, converter) for summary in answer.schedules)
        return cast("A", msgspec.structs.replace(answer, schedules=schedules))
    if isinstance(answer, Description) and wants_context(codec):
        # An attempt's failure belongs to the activity.
        workflow_id = answer.summary.workflow_id
        pending = tuple(
            _summary(
                pending_activity,
                _of_activity(codec, pending_activity.activity_id, workflow_id, namespace),
                converter,
            )
            for pending_activity in answer.pending_activities
        )
        without_pending = msgspec.structs.replace(answer, pending_activities=())
        opened = unseal(without_pending, _of_workflow(codec, workflow_id, namespace), converter)
        return cast("A", msgspec.structs.replace(opened, pending_activities=pending))
    if isinstance(answer, ScheduleDetails):
        return unseal(answer, _of_workflow(codec, answer.schedule.action.workflow_id, namespace), converter)
    return unseal(answer, _codec_of(request, codec, namespace), converter)


def _codec_of(request: Request[Any], codec: Codec, namespace: str) -> Codec:
    """Return the codec for a request and its answer, with the request's context."""
    context = request_context(request, namespace) if wants_context(codec) else None
    return codec if context is None else in_context(codec, context)


def _of_workflow(codec: Codec, workflow_id: str, namespace: str) -> Codec:
    return in_context(codec, WorkflowSerializationContext(namespace, workflow_id))


def _of_activity(codec: Codec, activity_id: str, workflow_id: str, namespace: str) -> Codec:
    context = ActivitySerializationContext(namespace, activity_id, workflow_id=workflow_id)
    return in_context(codec, context)


def _summary(summary: S, codec: Codec, converter: Converter) -> S:
    # Lists also contain runs of other programs. If the codec rejects a memo, the memo remains encoded.
    try:
        return unseal(summary, codec, converter)
    except DecodeError:
        return summary
