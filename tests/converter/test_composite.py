"""Composite converters: custom encodings, custom JSON types, and a fallback for other values."""

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
    """Rows with a custom encoding."""

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
def test_composite_converter_restores_custom_and_other_values(value: Any, hint: Any) -> None:
    """Values without custom types are encoded as by the default converter."""
    payload = BOTH.encode(value)
    assert BOTH.decode(payload, hint) == value
    if payload.encoding != "binary/table" and b"/" not in payload.data:
        assert payload == default_converter.encode(value)
    assert BOTH.decode(payload, Payload) is payload


def test_composite_converter_errors_name_type_and_location() -> None:
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
    result: Any = None

    def encode(self, value: Any) -> Any:
        if self.result is KeyError:
            raise KeyError(value)
        return self.result

    def decode(self, payload: Payload, type: Any) -> Any:
        raise KeyError("secret")


def test_error_of_a_broken_converter_part_names_the_part() -> None:
    wrong = Wrong()
    composed = CompositeConverter(wrong)
    for result, why in (
        (KeyError, "Wrong.encode raised KeyError$"),
        (5, "returned a int, not a Payload"),
        (
            Payload(b"", "binary/other"),
            "must create payloads with the encoding binary/wrong, not binary/other",
        ),
    ):
        wrong.result = result
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


class UpperCaseConverter(Converter):
    """A fallback that converts to upper case."""

    def encode(self, value: Any) -> Payload:
        return Payload(super().encode(value).data.upper())


def test_composite_converter_uses_the_given_fallback() -> None:
    assert CompositeConverter(Tables(), rest=UpperCaseConverter()).encode("a").data == b'"A"'


@activity.defn
def halved(share: Share) -> Share:
    return Share(share.name, share.part / 2, [])


@workflow.defn
def halves(share: Share, table: Table) -> Table:
    part = halved(share).part
    return Table([[part.numerator, part.denominator], *table.rows])


def test_client_converter_converts_values_of_workflows_and_activities() -> None:
    with (
        Client.connect("local:", converter=BOTH) as client,
        Worker(client, workflows=[halves], activities=[halved]),
    ):
        assert client.execute_workflow(halves, SHARE, Table([[9]])) == Table([[1, 6], [9]])
