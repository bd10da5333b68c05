"""Payloads are exchanged with Temporal's Python SDK in both directions."""

import dataclasses
import enum
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import temporalio.api.common.v1
import temporalio.converter
from hypothesis import given
from hypothesis import strategies as st

from hourglass._temporal.version import has
from hourglass.converter import Payload, default_converter
from hourglass.replay._comparison import same_payloads

theirs = temporalio.converter.DataConverter.default.payload_converter


def to_theirs(payload: Payload) -> Any:
    metadata = {"encoding": payload.encoding.encode(), **(payload.metadata or {})}
    return temporalio.api.common.v1.Payload(metadata=metadata, data=payload.data)


def to_ours(payload: Any) -> Payload:
    metadata = dict(payload.metadata)
    encoding = metadata.pop("encoding", b"").decode()
    return Payload(payload.data, encoding, metadata or None)


class Size(enum.IntEnum):
    SMALL = 1


class Color(enum.StrEnum):
    RED = "red"


@dataclasses.dataclass
class Line:
    name: str
    count: int = 1


@dataclasses.dataclass
class Bill:
    id: UUID
    lines: list[Line]
    at: datetime
    size: Size
    color: Color
    note: str | None = None
    by_number: dict[int, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Blob:
    data: bytes


BILL = Bill(
    UUID(int=3), [Line("a"), Line("b", 2)], datetime(2024, 1, 2, 3, tzinfo=UTC), Size.SMALL, Color.RED
)
CASES: list[tuple[Any, Any]] = [
    (None, type(None)),
    (b"ab\xff", bytes),
    (True, bool),
    (5, int),
    (2**100, int),
    (1.5, float),
    ("hé\ud800", str),
    ([1, "a", None], list[Any]),
    ({"b": 1, "a": {"c": []}}, dict[str, Any]),
    ({1: "a", 10: "b"}, dict[int, str]),
    ({True: 1}, dict[bool, int]),
    ({Size.SMALL: 1}, dict[Size, int]),
    ((1, 2), tuple[int, ...]),
    ({1, 2}, set[int]),
    (Size.SMALL, Size),
    (Color.RED, Color),
    (UUID(int=1), UUID),
    (datetime(2024, 1, 2, 3, 4, 5, 6), datetime),
    (datetime(2024, 1, 2, tzinfo=UTC), datetime),
    (BILL, Bill),
    (dataclasses.replace(BILL, by_number={1: "x"}), Bill),
    ([BILL], list[Bill]),
    (BILL, Bill | None),
    (float("inf"), float),
]


@pytest.mark.parametrize(("value", "hint"), CASES, ids=lambda case: repr(case)[:40])
def test_payloads_of_temporalio_are_decoded(value: Any, hint: Any) -> None:
    assert default_converter.decode(to_ours(theirs.to_payload(value)), hint) == value


@pytest.mark.parametrize(("value", "hint"), CASES, ids=lambda case: repr(case)[:40])
def test_temporalio_decodes_our_payloads(value: Any, hint: Any) -> None:
    if hint == dict[Size, int] and not has((1, 35)):
        pytest.skip("temporalio before 1.35 decodes no dicts with keys of an IntEnum")
    assert theirs.from_payload(to_theirs(default_converter.encode(value)), hint) == value


@pytest.mark.parametrize(
    "value",
    [None, b"x", "text", 5, 1.5, True, [1, None], {"b": 1, "a": 2}, Line("z"), [Line("z", 3)], {1: 2}, (1,)],
    ids=repr,
)
def test_encoded_values_differ_from_temporalio_only_in_the_order_of_keys(value: Any) -> None:
    """temporalio's default converter sorts keys. Replays accept either order."""
    ours, other = default_converter.encode(value), to_ours(theirs.to_payload(value))
    assert same_payloads((ours,), (other,))
    assert sorted(ours.data) == sorted(other.data)


def test_bytes_in_a_dataclass_are_decoded_from_numbers_and_base64() -> None:
    """temporalio encodes them as numbers, Hourglass as base64."""
    assert default_converter.decode(to_ours(theirs.to_payload(Blob(b"\x01\xff"))), Blob) == Blob(b"\x01\xff")
    assert default_converter.decode(default_converter.encode(Blob(b"\x01\xff")), Blob) == Blob(b"\x01\xff")


def test_datetime_with_seconds_in_its_utc_offset_is_decoded() -> None:
    back = default_converter.decode(Payload(b'["1890-01-01T00:00:00+00:19:32"]'), list[datetime])
    assert back[0].isoformat() == "1890-01-01T00:00:00+00:19:32"


def test_whole_float_is_decoded_as_int_if_annotated() -> None:
    assert default_converter.decode(Payload(b'{"name":"a","count":2.0}'), Line) == Line("a", 2)


def test_protobuf_messages_are_exchanged_with_temporalio() -> None:
    message = temporalio.api.common.v1.WorkflowExecution(workflow_id="w", run_id="r")
    cls = temporalio.api.common.v1.WorkflowExecution
    ours = default_converter.encode(message)
    assert ours == to_ours(theirs.to_payload(message))
    assert theirs.from_payload(to_theirs(ours), cls) == message
    assert default_converter.decode(ours, cls) == message
    assert default_converter.decode(ours, cls | None) == message
    assert default_converter.decode(ours) == {"workflowId": "w", "runId": "r"}


def test_binary_protobuf_payload_is_decoded_by_its_type_hint() -> None:
    message = temporalio.api.common.v1.WorkflowExecution(workflow_id="w")
    name = {"messageType": b"temporal.api.common.v1.WorkflowExecution"}
    payload = Payload(message.SerializeToString(), "binary/protobuf", name)
    assert default_converter.decode(payload, temporalio.api.common.v1.WorkflowExecution) == message


def test_protobuf_message_inside_a_dict_round_trips() -> None:
    cls = temporalio.api.common.v1.WorkflowExecution
    payload = default_converter.encode({"a": cls(workflow_id="w")})
    assert payload.data == b'{"a":{"workflowId":"w"}}'
    assert default_converter.decode(payload, dict[str, cls]) == {"a": cls(workflow_id="w")}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_random_json_values_are_exchanged_with_temporalio(value: Any) -> None:
    assert default_converter.decode(to_ours(theirs.to_payload(value))) == value
    assert theirs.from_payload(to_theirs(default_converter.encode(value))) == value
