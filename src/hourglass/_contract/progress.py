"""What activities publish: the requests that bring it to an engine and to those who follow a run, and how it travels
where the engine has no place of its own for it.

A server has none: there the newest items ride with the attempt's heartbeat, as one more of its details (`carrier`), and
those that no follower may have seen before the attempt returned with its result (`with_tail`), in the payload's metadata.
Neither is an event. Must not know: which engine does what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import msgspec

from hourglass._contract.service import Effect, Request
from hourglass._evaluator.specs import Payloads
from hourglass.converter import Payload

# --- requests -------------------------------------------------------------------------------------


class ProgressItems(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive items that one attempt of an activity has published under one name; the first has this number."""

    name: str
    first: int
    items: Payloads


class ProgressTaken(msgspec.Struct, frozen=True):
    """What became of published items. `keeper` names the memory that has them, "" if that is the attempt's record
    itself; one that was told of another keeper has taken nothing (`taken`), and wants all that the sender still has.
    `pause` is how long to wait before the next call; `keeps`, whether items can still be read when the attempt is over.
    """

    keeper: str = ""
    taken: bool = True
    pause: float = 0.0
    keeps: bool = True


class PublishProgress(Request[ProgressTaken], frozen=True, kw_only=True):
    """What an attempt publishes, for those who follow its run: the newest items of each name, old ones among them.
    `details` are those of its last heartbeat, which a server keeps in the same place.
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
    """An item that an attempt of an activity has published. `scheduled_event_id` is the activity's, 0 where the
    engine does not tell.
    """

    activity_id: str
    activity_type: str = ""
    attempt: int
    number: int
    value: Payload
    scheduled_event_id: int = 0


class ProgressSeen(msgspec.Struct, frozen=True):
    """How far a follower has read what an activity publishes: all before this number of this attempt."""

    activity_id: str
    scheduled_event_id: int
    attempt: int
    next: int


class ProgressRead(msgspec.Struct, frozen=True):
    """Items that are new to the follower, in the order in which they came. `pause` is how long to wait before the next
    question, where the engine does not wait for news itself.
    """

    items: tuple[PublishedItem, ...] = ()
    pause: float = 0.0


class ReadProgress(Request[ProgressRead], frozen=True, kw_only=True):
    """What the activities of a run have published under a name, beyond what was seen; with `wait_new` the engine waits
    for it where there is none, if it can.
    """

    effect: ClassVar[Effect] = Effect.READ
    waits: ClassVar[bool] = True
    workflow_id: str
    run_id: str
    name: str
    seen: tuple[ProgressSeen, ...] = ()
    wait_new: bool = False


# --- where heartbeats and results carry it --------------------------------------------------------


CARRIER = "binary/hourglass-progress"
TAIL = "hourglass-progress"


class CarriedProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The newest items of one attempt."""

    attempt: int
    published: tuple[ProgressItems, ...] = ()


_reader = msgspec.json.Decoder(CarriedProgress)


def carrier(carried: CarriedProgress) -> Payload:
    """Items as one more detail of a heartbeat."""
    return Payload(msgspec.json.encode(carried), CARRIER)


def carried_by(details: Payloads) -> CarriedProgress | None:
    """The items that a heartbeat carries, if any."""
    return next((_read(each.data) for each in details if each.encoding == CARRIER), None)


def new_items(
    carried: CarriedProgress,
    name: str,
    activity_id: str,
    activity_type: str,
    seen: Mapping[str, tuple[int, int]],
) -> Iterator[PublishedItem]:
    """Of what is carried, the items of a name that are new to one who has seen so much of each activity."""
    known = seen.get(activity_id, (0, 0))
    for each in carried.published:
        for number, value in enumerate(each.items, each.first):
            if each.name == name and (carried.attempt, number) >= known:
                yield PublishedItem(
                    activity_id=activity_id,
                    activity_type=activity_type,
                    attempt=carried.attempt,
                    number=number,
                    value=value,
                )


def without_carrier(details: Payloads) -> Payloads:
    """The details that the activity gave."""
    return tuple(each for each in details if each.encoding != CARRIER)


def with_tail(result: Payload, carried: CarriedProgress) -> Payload:
    """A result that carries the last items."""
    metadata = {**(result.metadata or {}), TAIL: msgspec.json.encode(carried)}
    return msgspec.structs.replace(result, metadata=metadata)


def tail_of(result: Payload) -> CarriedProgress | None:
    """The last items, if a result carries any."""
    data = (result.metadata or {}).get(TAIL)
    return None if data is None else _read(data)


def _read(data: bytes) -> CarriedProgress | None:
    try:
        return _reader.decode(data)
    except msgspec.MsgspecError:  # of another version, or no work of ours: nothing to show
        return None
