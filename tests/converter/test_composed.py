"""Converters composed of others: encodings of one's own, types that JSON does not know, and everything else as usual."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import pytest

from hourglass import activity, workflow
from hourglass.client import Client
from hourglass.converter import (
    CompositeConverter,
    Converter,
    EncodingConverter,
    JSONTypeConverter,
    Payload,
    default_converter,
)
from hourglass.errors import DecodeError, EncodeError, UsageError
from hourglass.worker import Worker


class Table:
    """Rows, in a format of their own."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and other.rows == self.rows

    __hash__ = None  # type: ignore[assignment]


class Tables(EncodingConverter):
    encoding = "binary/table"

    def encode(self, value: Any) -> Payload | None:
        if not isinstance(value, Table):
            return None
        return Payload(b";".join(bytes(row) for row in value.rows), self.encoding)

    def decode(self, payload: Payload, type: Any) -> Any:
        if type not in (Table, Any):
            raise DecodeError(f"a table is no {type.__name__}")
        return Table([list(row) for row in payload.data.split(b";")])


class Fractions(JSONTypeConverter):
    def to_json(self, value: Any) -> Any:
        return str(value) if isinstance(value, Fraction) else self.Unhandled

    def to_typed_value(self, hint: Any, value: Any) -> Any:
        return Fraction(value) if hint is Fraction else self.Unhandled


@dataclasses.dataclass
class Share:
    name: str
    part: Fraction
    more: list[Fraction]


BOTH = CompositeConverter(Tables(), json_types=[Fractions()])
SHARE = Share("ann", Fraction(1, 3), [Fraction(1, 6)])


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (Table([[1, 2], [3]]), Table),
        (Fraction(2, 3), Fraction),
        ([Fraction(2, 3)], list[Fraction]),
        ({"a": Fraction(2, 3)}, dict[str, Fraction]),
        (SHARE, Share),
        ([SHARE, SHARE], list[Share]),
        (None, None),
        ("text", str),
        (b"bytes", bytes),
        ([1, 2.5, None], list[Any]),
    ],
)
def test_composite_converter_round_trip(value: Any, hint: Any) -> None:
    """Own encodings and types, also nested in others; all other values are converted as usual."""
    payload = BOTH.encode(value)
    assert BOTH.decode(payload, hint) == value
    if payload.encoding != "binary/table" and b"/" not in payload.data:
        assert payload == default_converter.encode(value)
    assert BOTH.decode(payload, Payload) is payload


def test_value_without_a_converter_is_named() -> None:
    """The message is that of the default converter, which names type and path."""
    with pytest.raises(
        EncodeError, match="object of class object at \\$\\[1\\] cannot be represented in JSON"
    ):
        BOTH.encode([Fraction(1, 2), object()])
    with pytest.raises(DecodeError, match=r"Fractions.to_typed_value raised ValueError"):
        BOTH.decode(Payload(b'"secret"'), Fraction)
    with pytest.raises(DecodeError) as caught:
        BOTH.decode(Payload(b'{"name":"secret","part":"1/3","more":5}'), Share)
    assert "secret" not in str(caught.value)
    with pytest.raises(DecodeError, match="unknown encoding"):
        BOTH.decode(Payload(b"", "binary/other"))
    with pytest.raises(DecodeError, match="a table is no int"):
        BOTH.decode(BOTH.encode(Table([])), int)


class Wrong(EncodingConverter):
    encoding = "binary/wrong"
    gives: Any = None

    def encode(self, value: Any) -> Any:
        if self.gives is KeyError:
            raise KeyError(value)
        return self.gives

    def decode(self, payload: Payload, type: Any) -> Any:
        raise KeyError("secret")


def test_failing_part_of_a_converter_is_named() -> None:
    """An exception or a wrong result of a part is reported without contents."""
    wrong = Wrong()
    composed = CompositeConverter(wrong)
    for gives, why in (
        (KeyError, "Wrong.encode raised KeyError$"),
        (5, "returned a int, not a Payload"),
        (
            Payload(b"", "binary/other"),
            "must create payloads with the encoding binary/wrong, not binary/other",
        ),
    ):
        wrong.gives = gives
        with pytest.raises(EncodeError, match=why):
            composed.encode("secret")
    with pytest.raises(DecodeError, match=r"Wrong.decode raised KeyError$"):
        composed.decode(Payload(b"", "binary/wrong"))
    for make in (
        lambda: CompositeConverter(Wrong(), Wrong()),
        lambda: CompositeConverter(5),  # type: ignore[arg-type]
        lambda: CompositeConverter(json_types=[5]),  # type: ignore[list-item]
    ):
        with pytest.raises(UsageError):
            make()


class Loud(Converter):
    """What is not for the parts."""

    def encode(self, value: Any) -> Payload:
        return Payload(super().encode(value).data.upper())


def test_composite_converter_with_another_fallback() -> None:
    """Another converter gets all other values."""
    assert CompositeConverter(Tables(), rest=Loud()).encode("a").data == b'"A"'


@activity.defn
def halved(share: Share) -> Share:
    return Share(share.name, share.part / 2, [])


@workflow.defn
def halves(share: Share, table: Table) -> Table:
    part = halved(share).part
    return Table([[part.numerator, part.denominator], *table.rows])


def test_own_converter_in_a_workflow() -> None:
    """Arguments and results of workflows and activities."""
    with (
        Client.connect("local:", converter=BOTH) as client,
        Worker(client, workflows=[halves], activities=[halved]),
    ):
        assert client.execute_workflow(halves, SHARE, Table([[9]])) == Table([[1, 6], [9]])
