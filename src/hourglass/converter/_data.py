"""Temporal's payload and failure messages as frozen data, without protobuf."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from hourglass.errors import RetryState, TimeoutType


class Payload(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One encoded value: bytes, how they are encoded, and whatever other metadata came along.

    `encoding` is Temporal's `metadata["encoding"]` ("" when it is missing); `metadata` holds the other
    entries, or None.
    """

    data: bytes = b""
    encoding: str = "json/plain"
    metadata: dict[str, bytes] | None = None

    def __repr__(self) -> str:
        # Never the data: payloads do not belong in logs.
        return f"<Payload {self.encoding or 'without encoding'}, {len(self.data)} bytes>"


class ApplicationFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """An error of an author's program."""

    type: str = ""
    non_retryable: bool = False
    details: tuple[Payload, ...] = ()
    next_retry_delay: float | None = None
    category: int = 0


class TimeoutFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """A timeout passed."""

    type: TimeoutType = TimeoutType.UNSPECIFIED
    last_heartbeat_details: tuple[Payload, ...] = ()


class CanceledFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """Something was cancelled."""

    details: tuple[Payload, ...] = ()


class TerminatedFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """A workflow was terminated."""


class ServerFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """The server gave up."""

    non_retryable: bool = False


class ResetFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """An activity was given up because its workflow was reset."""

    last_heartbeat_details: tuple[Payload, ...] = ()


class ActivityFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """An activity failed; the failure's cause says why."""

    activity_type: str = ""
    activity_id: str = ""
    identity: str = ""
    scheduled_event_id: int = 0
    started_event_id: int = 0
    retry_state: RetryState = RetryState.UNSPECIFIED


class ChildWorkflowFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """A child workflow failed; the failure's cause says why."""

    namespace: str = ""
    workflow_id: str = ""
    run_id: str = ""
    workflow_type: str = ""
    initiated_event_id: int = 0
    started_event_id: int = 0
    retry_state: RetryState = RetryState.UNSPECIFIED


FailureInfo: TypeAlias = (
    ApplicationFailure
    | TimeoutFailure
    | CanceledFailure
    | TerminatedFailure
    | ServerFailure
    | ResetFailure
    | ActivityFailure
    | ChildWorkflowFailure
)


class Failure(msgspec.Struct, frozen=True):
    """Temporal's Failure: a message, where it came from, what kind it is (None: unknown) and its cause."""

    message: str = ""
    info: FailureInfo | None = None
    cause: Failure | None = None
    stack_trace: str = ""
    source: str = ""
    encoded_attributes: Payload | None = None
