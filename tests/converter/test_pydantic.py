"""Conversion of pydantic's models and types. The converter itself never imports pydantic."""

import dataclasses
import subprocess
import sys
from datetime import datetime
from typing import Any

import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field
from temporalio.contrib.pydantic import pydantic_data_converter

from hourglass.converter import Payload, default_converter
from hourglass.errors import DecodeError, EncodeError

from .test_temporalio import to_ours, to_theirs

theirs = pydantic_data_converter.payload_converter


class Line(BaseModel):
    name: str
    count: int = Field(default=1, ge=0)


class Bill(BaseModel):
    lines: list[Line]
    at: datetime
    total: int = Field(alias="sumTotal")
    tags: set[str] = set()


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    at: datetime
    pair: tuple[int, int]


class Other(BaseModel):
    title: str


@pydantic.dataclasses.dataclass
class Record:
    age: int = Field(ge=0)


@dataclasses.dataclass
class Holder:
    line: Line
    others: list[Line | Other]


BILL = Bill(lines=[Line(name="a", count=2)], at=datetime(2024, 1, 2), sumTotal=3, tags={"x"})
STRICT = Strict(at=datetime(2024, 1, 2), pair=(1, 2))
CASES: list[tuple[Any, Any]] = [
    (Line(name="a"), Line),
    (BILL, Bill),
    (STRICT, Strict),
    (Record(3), Record),
    ([BILL, BILL], list[Bill]),
    ({"k": STRICT}, dict[str, Strict]),
    (Line(name="a"), Line | None),
    (None, Line | None),
    (Other(title="t"), Line | Other),
    (Holder(Line(name="a"), [Other(title="t"), Line(name="b")]), Holder),
    (pydantic.AnyUrl("http://a.b/c"), pydantic.AnyUrl),
]


@pytest.mark.parametrize(("value", "hint"), CASES, ids=lambda case: repr(case)[:40])
def test_pydantic_values_round_trip(value: Any, hint: Any) -> None:
    assert default_converter.decode(default_converter.encode(value), hint) == value


@pytest.mark.parametrize(("value", "hint"), CASES[:9], ids=lambda case: repr(case)[:40])
def test_pydantic_values_are_exchanged_with_the_pydantic_converter_of_temporalio(
    value: Any, hint: Any
) -> None:
    assert default_converter.decode(to_ours(theirs.to_payload(value)), hint) == value
    assert theirs.from_payload(to_theirs(default_converter.encode(value)), hint) == value


@pytest.mark.parametrize(
    ("data", "hint", "message"),
    [
        (
            b'{"name":"x","count":-5}',
            Line,
            "not a valid Line: Input should be greater than or equal to 0 at $.count",
        ),
        (b'{"name":1}', Line, "at $.name"),
        (b"[]", Line, "not a valid Line"),
        (b"{", Line, "not a valid Line: Invalid JSON"),
        (b'[{"name":"a"},{"name":1}]', list[Line], "at $[1].name"),
        (b'{"age":-5}', Record, "not a valid Record"),
        (b'{"nothing":1}', Line | Other, "expected "),
    ],
)
def test_invalid_pydantic_input_raises_decode_error_without_the_input(
    data: bytes, hint: Any, message: str
) -> None:
    with pytest.raises(DecodeError) as caught:
        default_converter.decode(Payload(data), hint)
    assert message in str(caught.value)
    assert "-5" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_unserializable_pydantic_model_raises_encode_error() -> None:
    class Loose(BaseModel):
        thing: Any

    with pytest.raises(EncodeError, match="Loose"):
        default_converter.encode(Loose(thing=object()))


def test_converter_imports_no_optional_library() -> None:
    program = (
        "import sys, dataclasses\n"
        "from hourglass.converter import default_converter as c\n"
        "c.decode(c.encode({1: [1.5, None]}), dict[int, list]); c.from_failure(c.to_failure(ValueError('x')))\n"
        "print([m for m in ('pydantic', 'google.protobuf', 'temporalio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Chunk(pydantic.RootModel[bytes]):
    pass


@pytest.mark.parametrize(
    "hint",
    [Line, Record, Chunk, pydantic.SecretStr, pydantic.SecretBytes, pydantic.AnyUrl, Line | None, Line | str],
)
def test_binary_payload_is_rejected_for_pydantic_types(hint: Any) -> None:
    with pytest.raises(DecodeError, match=r"expected .*, got bytes \(binary/plain as"):
        default_converter.decode(Payload(b"{}", "binary/plain"), hint)
