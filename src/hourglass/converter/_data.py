"""Temporal's payload and failure messages as frozen data without protobuf, and functions for chains of failures.

The functions walk a chain along its causes, and move its texts to payloads for codecs and back. They use loops instead of
recursion, because a chain may be longer than Python's stack. Must not know: exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import msgspec

from hourglass.errors import ApplicationErrorCategory, RetryState, TimeoutType


class Payload(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """An encoded value: bytes, their encoding, and any other metadata.

    `encoding` is Temporal's `metadata["encoding"]` ("" if missing). `metadata` contains the other entries, or is None.
    """

    data: bytes = b""
    encoding: str = "json/plain"
    metadata: dict[str, bytes] | None = None

    def __repr__(self) -> str:
        # Never the data: payloads must not appear in logs.
        return f"<Payload {self.encoding or 'without encoding'}, {len(self.data)} bytes>"


class ApplicationFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """An error of the author's program."""

    type: str = ""
    non_retryable: bool = False
    details: tuple[Payload, ...] = ()
    next_retry_delay: float | None = None
    category: int = 0


class TimeoutFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """A timeout."""

    type: TimeoutType = TimeoutType.UNSPECIFIED
    last_heartbeat_details: tuple[Payload, ...] = ()


class CanceledFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """A cancellation."""

    details: tuple[Payload, ...] = ()


class TerminatedFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """A workflow was terminated."""


class ServerFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """An error of the server."""

    non_retryable: bool = False


class ResetFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """An activity was abandoned when its workflow was reset."""

    last_heartbeat_details: tuple[Payload, ...] = ()


class ActivityFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """An activity failed. The reason is the failure's cause."""

    activity_type: str = ""
    activity_id: str = ""
    identity: str = ""
    scheduled_event_id: int = 0
    started_event_id: int = 0
    retry_state: RetryState = RetryState.UNSPECIFIED


class ChildWorkflowFailure(msgspec.Struct, frozen=True, tag=True, tag_field="kind"):
    """A child workflow failed. The reason is the failure's cause."""

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
    """Temporal's Failure: a message, its source, its kind (None: unknown) and its cause."""

    message: str = ""
    info: FailureInfo | None = None
    cause: Failure | None = None
    stack_trace: str = ""
    source: str = ""
    encoded_attributes: Payload | None = None


Encode: TypeAlias = Callable[[Any], Payload]
Decode: TypeAlias = Callable[[Payload], Any]

ENCODED_MESSAGE = "Encoded failure"
"""The message that Temporal's SDKs show in place of an encoded message."""


def causes(failure: Failure | None) -> Iterator[Failure]:
    """Yield a failure and its causes, outermost first."""
    while failure is not None:
        yield failure
        failure = failure.cause


def is_benign(failure: Failure) -> bool:
    """Whether the author marked the failure as expected."""
    info = failure.info
    return isinstance(info, ApplicationFailure) and info.category == ApplicationErrorCategory.BENIGN


def joined(links: Iterable[Failure]) -> Failure:
    """Return the first failure, with the others as its chain of causes."""
    joined: Failure | None = None
    for link in reversed(list(links)):
        joined = link if link.cause is joined else msgspec.structs.replace(link, cause=joined)
    assert joined is not None
    return joined


def sealed(link: Failure, encode: Encode) -> Failure:
    if link.encoded_attributes is not None:
        return link
    attributes = encode({"message": link.message, "stack_trace": link.stack_trace})
    return msgspec.structs.replace(
        link, message=ENCODED_MESSAGE, stack_trace="", encoded_attributes=attributes
    )


def opened(link: Failure, decode: Decode) -> Failure:
    if link.encoded_attributes is None:
        return link
    try:
        attributes = decode(link.encoded_attributes)
        message, stack = attributes["message"], attributes.get("stack_trace", "")
    except Exception:
        return link
    if not isinstance(message, str) or not isinstance(stack, str):
        return link
    return msgspec.structs.replace(link, message=message, stack_trace=stack, encoded_attributes=None)
