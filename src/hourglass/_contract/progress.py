"""Progress that activities publish: the requests that send items to an engine and to the followers of a run, and the
form of the items in heartbeat details.

A Temporal server has no storage for progress. There the newest items are sent with the attempt's heartbeat, as an
additional detail (`carrier`). Items that followers may not have seen before the attempt ended are sent with its result
(`with_tail`), in the payload's metadata. Neither adds an event to the history. Must not know: which engine stores items
where.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import msgspec

from hourglass._contract.service import Effect, Request
from hourglass._evaluator.specs import Payloads
from hourglass.converter import Payload


class ProgressItems(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive items that an attempt of an activity has published under one name. `first` is the number of the first
    item.
    """

    name: str
    first: int
    items: Payloads


class ProgressTaken(msgspec.Struct, frozen=True):
    """The answer to published items. `keeper` identifies the memory that stores the items, "" for the attempt's own
    record. If it is not the keeper that the sender named, nothing was stored (`is_stored` is false), and the sender must
    send all items that it still has. `pause` is the time until the next call. `keeps` is whether items can still be read
    after the attempt has ended.
    """

    keeper: str = ""
    is_stored: bool = True
    pause: float = 0.0
    keeps: bool = True


class PublishProgress(Request[ProgressTaken], frozen=True, kw_only=True):
    """Publish the newest items of an attempt under each name. Items that were already sent may be included again.
    `details` are the details of the last heartbeat, because a server stores both in the same place.
    """

    effect: ClassVar[Effect] = Effect.IDEMPOTENT
    token: bytes
    workflow_id: str
    run_id: str
    activity_id: str
    attempt: int
    published: tuple[ProgressItems, ...]
    keeper: str = ""
    details: Payloads = ()
    identity: str = ""


class PublishedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that an activity attempt has published. `scheduled_event_id` identifies the activity, and is 0 if the
    engine does not report it.
    """

    activity_id: str
    activity_type: str = ""
    attempt: int
    number: int
    value: Payload
    scheduled_event_id: int = 0


class ProgressSeen(msgspec.Struct, frozen=True):
    """A follower's position in the progress of an activity: all items before the number `next` of this attempt have been
    read.
    """

    activity_id: str
    scheduled_event_id: int
    attempt: int
    next: int


class ProgressRead(msgspec.Struct, frozen=True):
    """The items that are new to the follower, in order of arrival. If the engine cannot wait for new items, `pause` is
    the time until the next request.
    """

    items: tuple[PublishedItem, ...] = ()
    pause: float = 0.0


class ReadProgress(Request[ProgressRead], frozen=True, kw_only=True):
    """Return the items that the activities of a run have published under a name after `seen`. With `wait_new`, wait
    for new items if the engine supports that.
    """

    effect: ClassVar[Effect] = Effect.READ
    waits: ClassVar[bool] = True
    workflow_id: str
    run_id: str
    name: str
    seen: tuple[ProgressSeen, ...] = ()
    wait_new: bool = False


CARRIER = "binary/hourglass-progress"
TAIL = "hourglass-progress"


class CarriedProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest items of an attempt, as carried by a heartbeat or a result."""

    attempt: int
    published: tuple[ProgressItems, ...] = ()


_reader = msgspec.json.Decoder(CarriedProgress)


def carrier(carried: CarriedProgress) -> Payload:
    """Return the items in the form of an additional heartbeat detail."""
    return Payload(msgspec.json.encode(carried), CARRIER)


def carried_by(details: Payloads) -> CarriedProgress | None:
    """Return the items that heartbeat details carry, or None."""
    return next((_read(detail.data) for detail in details if detail.encoding == CARRIER), None)


def new_items(
    carried: CarriedProgress,
    name: str,
    activity_id: str,
    activity_type: str,
    seen: Mapping[str, tuple[int, int]],
) -> Iterator[PublishedItem]:
    """Yield the carried items of a name that are new to a follower."""
    read_until = seen.get(activity_id, (0, 0))
    for items in carried.published:
        for number, value in enumerate(items.items, items.first):
            if items.name == name and (carried.attempt, number) >= read_until:
                yield PublishedItem(
                    activity_id=activity_id,
                    activity_type=activity_type,
                    attempt=carried.attempt,
                    number=number,
                    value=value,
                )


def without_carrier(details: Payloads) -> Payloads:
    """Return the heartbeat details without the carrier: only those that the activity itself has set."""
    return tuple(detail for detail in details if detail.encoding != CARRIER)


def with_tail(result: Payload, carried: CarriedProgress) -> Payload:
    """Return the result with the last items attached to its metadata."""
    metadata = {**(result.metadata or {}), TAIL: msgspec.json.encode(carried)}
    return msgspec.structs.replace(result, metadata=metadata)


def tail_of(result: Payload) -> CarriedProgress | None:
    """Return the last items that a result carries, or None."""
    data = (result.metadata or {}).get(TAIL)
    return None if data is None else _read(data)


def _read(data: bytes) -> CarriedProgress | None:
    try:
        return _reader.decode(data)
    except msgspec.MsgspecError:  # written by another version or another SDK: ignored
        return None
