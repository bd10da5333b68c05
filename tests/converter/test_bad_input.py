"""Errors for invalid input: they name types and locations, never contents."""

import dataclasses
import enum
import itertools
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
import temporalio.api.common.v1
from hypothesis import given
from hypothesis import strategies as st

from hourglass.converter import Payload, default_converter
from hourglass.errors import DecodeError, EncodeError


class Color(enum.StrEnum):
    RED = "red"


class Mixed(enum.Enum):
    A = 1
    B = "b"


@dataclasses.dataclass
class Item:
    price: int


@dataclasses.dataclass
class Order:
    items: list[Item]


@dataclasses.dataclass
class Fussy:
    age: int

    def __post_init__(self) -> None:
        if self.age < 0:
            raise ValueError("negative")


class Pair(NamedTuple):
    a: int
    b: int


class Address(TypedDict):
    city: str


class Shape(msgspec.Struct):
    color: Color
    edges: list[int] = []


class Opaque:
    pass


@dataclasses.dataclass
class Lost:
    field: "NoSuchName"  # type: ignore[name-defined] # noqa: F821


def decode_error(payload: Payload, hint: Any = Any) -> str:
    with pytest.raises(DecodeError) as caught:
        default_converter.decode(payload, hint)
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "hint", "message"),
    [
        (b'"x"', int, "expected int, got str (json/plain as int)"),
        (b"1.5", int, "expected int, got float (json/plain as int)"),
        (b"true", int, "expected int, got bool (json/plain as int)"),
        (b"true", float, "expected float, got bool (json/plain as float)"),
        (b"1", bool, "expected bool, got int (json/plain as bool)"),
        (b"1", str, "expected str, got int (json/plain as str)"),
        (b"null", int, "expected int, got null (json/plain as int)"),
        (b"1", None, "expected None, got int (json/plain as None)"),
        (
            b'{"items":[{"price":"x"}]}',
            Order,
            "expected int, got str at $.items[0].price (json/plain as Order)",
        ),
        (b'{"items":[{}]}', Order, "Item: field 'price' is missing at $.items[0] (json/plain as Order)"),
        (b"[]", Order, "expected Order, got array (json/plain as Order)"),
        (b'{"items":[{"price":"x"}]}', Order | None, "expected int, got str at $.items[0].price"),
        (b'{"age":-1}', Fussy, "Fussy rejected its fields (ValueError)"),
        (b'{"k":["x"]}', dict[str, list[int]], "expected int, got str at $[...][0]"),
        (b'{"k":1}', dict[int, int], "a key: expected int, got str"),
        (b"[1]", dict, "expected dict, got array"),
        (b'"no"', UUID, "expected UUID, got an invalid str"),
        (b'"no"', datetime, "expected datetime, got a str that is not ISO 8601"),
        (b'"2024-01-02"', datetime, "expected datetime, got a str that is not ISO 8601"),
        (b"5", datetime, "expected datetime, got int"),
        (b'"no"', date, "expected date, got an invalid str"),
        (b'"no"', timedelta, "expected timedelta, got an invalid str"),
        (b'"no"', Decimal, "expected Decimal, got an invalid str"),
        (b"[300]", bytes, "expected bytes, got array"),
        (b'"blue"', Color, "expected Color, got an invalid str"),
        (b"[2]", list[Mixed], "expected Mixed, got an invalid int at $[0]"),
        (b'"c"', Literal["a", "b"], "expected Literal['a', 'b'], got an invalid str"),
        (b"[1]", tuple[int, int], "expected an array of length 2, got 1"),
        (b"[1,2,3]", Pair, "expected Pair, got an array of length 3"),
        (b"{}", Address, "Address: key 'city' is missing"),
        (b"[[1]]", set[list[int]], "got unhashable items"),
        (b"true", int | str, "expected int | str, got bool"),
        (b'{"price":1}', list[int] | str, "got object"),
        (b'{"color":"secret"}', Shape, "Shape: Invalid enum value at $.color"),
        (b'{"color":"red","edges":["x"]}', Shape, "Shape: Expected `int`, got `str` at $.edges[0]"),
        (b"{}", Opaque, "Opaque has no fields that can be decoded from JSON"),
        (b'{"a":1}', complex, "complex has no fields"),
        (b"1", Callable[[int], int], "Callable[[int], int] has no fields"),
        (b'{"field":1}', Lost, "a type annotation of Lost cannot be resolved"),
    ],
)
def test_decode_error_names_types_and_location(data: bytes, hint: Any, message: str) -> None:
    assert message in decode_error(Payload(data), hint)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"{", "not valid JSON at character 1"),
        (b"1 2", "not valid JSON at character 2"),
        (b"{'a':1}", "not valid JSON"),
        (b'"\xff"', "not valid UTF-8 at byte 1"),
        (b"\xff\xfe1\x00", "not valid UTF-8"),
        (b"\x00", "not valid JSON"),
        (b"1" * 5000, "too many digits"),
        (b"[" + b"1" * 5000 + b"]", "too many digits"),
        (b"1e400", "out of range"),
        (b"[NaN,1e400]", "out of range"),
        (b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
    ids=lambda case: repr(case)[:30],
)
@pytest.mark.parametrize("hint", [Any, list[Any] | Item | Order, Order], ids=["Any", "union", "Order"])
def test_invalid_json_raises_decode_error_for_every_type(data: bytes, message: str, hint: Any) -> None:
    assert message in decode_error(Payload(data), hint)


def test_decode_error_names_an_unknown_or_missing_encoding() -> None:
    assert "'binary/encrypted'" in decode_error(Payload(b"x", "binary/encrypted"))
    assert "has no encoding" in decode_error(Payload(b"x", ""))
    assert len(decode_error(Payload(b"", "x" * 10_000))) < 200


def test_binary_encoding_that_contradicts_the_type_is_rejected() -> None:
    assert "must not contain data" in decode_error(Payload(b"x", "binary/null"))
    assert decode_error(Payload(b"", "binary/null"), int) == "expected int, got null (binary/null as int)"
    assert decode_error(Payload(b"x", "binary/plain"), str) == "expected str, got bytes (binary/plain as str)"


def test_invalid_protobuf_messages_are_rejected_without_quoting_them() -> None:
    cls = temporalio.api.common.v1.WorkflowExecution
    other = {"messageType": b"temporal.api.common.v1.Payload"}
    assert "expected temporal.api.common.v1.WorkflowExecution" in decode_error(
        Payload(b"{}", "json/protobuf", other), cls
    )
    broken = decode_error(Payload(b'{"secret":1}', "json/protobuf"), cls)
    assert "protobuf's JSON form" in broken
    assert "secret" not in broken
    assert "binary form" in decode_error(Payload(b"\xff\xff", "binary/protobuf"), cls)
    assert "with a message class" in decode_error(Payload(b"", "binary/protobuf"))


HINTS = st.sampled_from(
    [
        Any,
        int,
        str,
        bool,
        float,
        bytes,
        Order,
        Item | Order,
        list[int],
        dict[int, str],
        UUID,
        datetime,
        Pair,
        Color,
        Mixed,
        set[int],
        Shape,
        Address,
        Literal[1],
        Fussy,
        Order | None,
        Opaque,
        Decimal,
        timedelta,
    ]
)


@given(
    st.binary(max_size=60) | st.text(alphabet='{}[]":,0123456789eE.-+ntrueaflsINif\\ud8').map(str.encode),
    HINTS,
)
def test_random_bytes_raise_only_decode_error(data: bytes, hint: Any) -> None:
    for encoding in ("json/plain", "binary/plain", "binary/null", "json/protobuf", "binary/protobuf"):
        try:
            default_converter.decode(Payload(data, encoding), hint)
        except DecodeError:
            pass


@given(st.text(alphabet="SECRT", min_size=4), HINTS)
def test_decode_errors_contain_no_values(secret: str, hint: Any) -> None:
    for value in (secret, [secret, {"price": secret}], {"price": secret, "items": secret, "color": secret}):
        message = ""
        try:
            default_converter.decode(default_converter.encode(value), hint)
        except DecodeError as error:
            message = str(error)
        assert secret not in message


def encode_error(value: Any) -> str:
    with pytest.raises(EncodeError) as caught:
        default_converter.encode(value)
    return str(caught.value)


def test_encode_error_names_class_and_location_of_an_unsupported_value() -> None:
    assert "class Opaque at $ cannot be represented in JSON" in encode_error(Opaque())
    assert "class Opaque at $.items[0].price" in encode_error(Order([Item(Opaque())]))  # type: ignore[arg-type]
    assert "at $[...][1]" in encode_error({"secret": [1, 1j]})
    assert "the class Opaque" in encode_error(Opaque)
    assert "the class Color" in encode_error([Color])
    assert "PosixPath" in encode_error(Path("/"))
    assert "can be iterated only once" in encode_error(itertools.count())
    assert "can be iterated only once" in encode_error([iter([1])])
    assert "of type tuple: keys must be str" in encode_error({(1, 2): 3})
    assert "the same str" in encode_error({1: "a", "1": "b"})


def test_circular_and_deeply_nested_values_are_rejected() -> None:
    circle: list[Any] = [1]
    circle.append({"again": circle})
    assert "contains itself" in encode_error(circle)
    order = Order([])
    order.items.append(order)  # type: ignore[arg-type]
    assert "Order at $.items[0] contains itself" in encode_error(order)
    deep: Any = None
    for _ in range(100_000):
        deep = [deep]
    assert "nested too deeply" in encode_error(deep)
    while deep:  # dismantle it here, because its destruction recurses
        deep = deep[0]


def test_object_that_occurs_twice_is_encoded_twice() -> None:
    shared = {1: 2}
    assert default_converter.encode([shared, shared]).data == b'[{"1":2},{"1":2}]'


def test_overlong_integer_raises_encode_error() -> None:
    assert "int cannot be encoded" in encode_error(10**5000)


def test_exception_during_encoding_is_the_cause_of_the_encode_error() -> None:
    class Broken(dict[str, int]):
        def items(self) -> Any:
            raise RuntimeError("no")

    with pytest.raises(EncodeError) as caught:
        default_converter.encode({1: Broken(a=1)})
    assert isinstance(caught.value.__cause__, RuntimeError)


@dataclasses.dataclass
class Left:
    branch: "Left | Right | None"
    leaf: int = 0


@dataclasses.dataclass
class Right:
    branch: "Left | Right | None"
    leaf: int = 0


def test_nested_unions_are_decoded_in_linear_time() -> None:
    """A wrong leaf under 60 levels of ambiguous unions is rejected without trying all 2**60 combinations."""
    data = b'{"branch":' * 60 + b'{"branch":null,"leaf":"x"}' + b"}" * 60
    assert "expected Left | Right | None, got object at $.branch" in decode_error(Payload(data), Left)
    good = data.replace(b'"x"', b"1")
    assert isinstance(default_converter.decode(Payload(good), Left), Left)
