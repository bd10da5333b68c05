"""The order in which dicts, fields and sets are encoded: the same in every process."""

import enum
import json
import os
import subprocess
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic
import pytest

from hourglass.converter import CompositeConverter, JSONTypeConverter, default_converter
from hourglass.errors import EncodeError

WORDS = ["pear", "fig", "apple", "kiwi", "plum", "date", "lime", "nut"]


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Group(enum.Enum):
    ALL = frozenset(WORDS)


@dataclass
class Basket:
    tags: set[str]
    groups: list[frozenset[str]] = field(default_factory=list)
    zone: str = "z"
    area: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    tags: frozenset[str]


class Struct(msgspec.Struct, frozen=True, rename="camel"):
    tag_names: frozenset[str]
    first: Any = None


@attrs.define
class Attrs:
    tags: set[str]


class Inner(pydantic.BaseModel, frozen=True):
    tags: frozenset[str]


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    zone: str = "z"
    tags: set[str]
    area: dict[str, set[str]]
    inner: list[Inner]
    inners: frozenset[Inner]
    paths: set[Path]
    joined: frozenset[str]
    anything: Any = None

    @pydantic.field_serializer("joined")
    def _join(self, joined: frozenset[str]) -> str:
        return ",".join(joined)


class Computed(pydantic.BaseModel):
    words: list[str]
    score: float = float("nan")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def distinct(self) -> set[str]:
        return set(self.words)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def by_length(self) -> dict[int, frozenset[str]]:
        return {size: frozenset(word for word in self.words if len(word) == size) for size in (5, 4, 3)}


class Serialized(pydantic.BaseModel):
    words: list[str]

    @pydantic.model_serializer
    def _write(self) -> dict[str, Any]:
        return {"z": set(self.words), "a": [frozenset(self.words)]}


class Pair(NamedTuple):
    left: set[str]
    right: int


class OwnSet(Set[str]):
    def __init__(self, members: Any) -> None:
        self._members = set(members)

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


class MoneyAsNumber(JSONTypeConverter):
    def to_json(self, value: Any) -> Any:
        return value.cents if isinstance(value, Money) else self.Unhandled


def sample() -> list[Any]:
    """Return values that contain sets in every kind of container."""
    words = set(WORDS)
    model = Model.model_validate(
        {
            "tags": words,
            "area": {"b": words, "a": words},
            "inner": [Inner(tags=frozenset(words))],
            "inners": frozenset(Inner(tags=frozenset(WORDS[:n])) for n in range(6)),
            "paths": {Path(word) for word in words},
            "joined": frozenset(words),
            "anything": Basket(words),
            "more": words,
        }
    )
    return [
        words,
        frozenset(words),
        {"z": words, "a": [words, (words, {"y": words, "b": 1})]},
        {frozenset(WORDS[:n]) for n in range(8)},
        {1, "a", None, 2.5, True, ("x", 1)},
        Basket(words, [frozenset(words)], area={"z": frozenset(words)}),
        [Basket(words), {"k": Frozen(frozenset(words))}],
        {Frozen(frozenset(WORDS[:n])) for n in range(6)},
        Struct(frozenset(words), first={"z": words}),
        {"a": Attrs(words)},
        Pair(words, 1),
        OrderedDict(z=words, a=1),
        defaultdict(set, b=words),
        {2: words, 1: words},
        {"views": dict.fromkeys(WORDS).keys()},
        OwnSet(words),
        {"own": [OwnSet(words)]},
        set(Color),
        Group.ALL,
        {"group": [Group.ALL]},
        model,
        {"z": model, "a": [model]},
        Computed(words=WORDS),
        Serialized(words=WORDS),
        {"z": [Computed(words=WORDS)], "a": Serialized(words=WORDS)},
    ]


def encode_sample() -> list[str]:
    composed = CompositeConverter(json_types=[MoneyAsNumber()])
    payloads = [default_converter.encode(value) for value in sample()]
    payloads.append(composed.encode({"z": Money(5), "a": set(WORDS)}))
    payloads += default_converter.to_failure(_error()).info.details  # type: ignore[union-attr]
    return [payload.data.decode() for payload in payloads]


def _error() -> Exception:
    from hourglass.errors import ApplicationError

    return ApplicationError("no", {"z": set(WORDS)})


def test_encoding_of_sets_is_independent_of_the_hash_seed() -> None:
    outputs = []
    for seed in ("1", "2", "77"):
        code = "import json; from tests.converter.test_order import encode_sample; print(json.dumps(encode_sample()))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(json.loads(done.stdout))
    for first, *others in zip(*outputs, strict=True):
        assert others == [first, first]


@pytest.mark.parametrize(
    ("value", "data"),
    [
        ({"b": 1, "a": {"d": 1, "c": 2}}, b'{"b":1,"a":{"d":1,"c":2}}'),
        ([{"b": 1, "a": 2}], b'[{"b":1,"a":2}]'),
        ({2: "x", 1: "y"}, b'{"2":"x","1":"y"}'),
        ({"z": {"b", "a"}, "y": 1}, b'{"z":["a","b"],"y":1}'),
        ({"z": float("inf"), "a": None}, b'{"z":Infinity,"a":null}'),
        (Basket({"b", "a"}), b'{"tags":["a","b"],"groups":[],"zone":"z","area":null}'),
        (Struct(frozenset("b"), first={"z": 1, "a": 2}), b'{"tagNames":["b"],"first":{"z":1,"a":2}}'),
        ({"k": dict.fromkeys("ba").keys()}, b'{"k":["b","a"]}'),
        ({10, 9}, b"[9,10]"),
    ],
)
def test_encoding_sorts_sets_but_keeps_the_order_of_dicts_and_fields(value: Any, data: bytes) -> None:
    assert default_converter.encode(value).data == data


def test_decoded_dict_has_the_order_of_the_encoded_dict() -> None:
    value = {word: dict.fromkeys(reversed(WORDS), 1) for word in WORDS}
    back = default_converter.decode(default_converter.encode(value))
    assert list(back) == WORDS
    assert list(back["fig"]) == WORDS[::-1]


def test_encoded_ordered_dict_keeps_the_order_of_moved_keys() -> None:
    moved = OrderedDict(a=1, b=2, c=3)
    moved.move_to_end("a")
    assert default_converter.encode(moved).data == b'{"b":2,"c":3,"a":1}'
    assert default_converter.encode([{"x": moved}]).data == b'[{"x":{"b":2,"c":3,"a":1}}]'


def test_computed_sets_of_pydantic_models_are_sorted() -> None:
    assert default_converter.encode(Computed(words=["éa", "b", "a"])).data.decode() == (
        '{"words":["éa","b","a"],"score":null,"distinct":["a","b","éa"],"by_length":{"5":[],"4":[],"3":[]}}'
    )
    assert default_converter.encode(Serialized(words=["b", "a"])).data == b'{"z":["a","b"],"a":[["a","b"]]}'


def test_encoding_does_not_modify_sets_in_the_value() -> None:
    model = Model(tags={"b"}, area={}, inner=[], inners=frozenset(), paths=set(), joined=frozenset())
    default_converter.encode(model)
    assert type(model.tags) is set
    basket = Basket({"b", "a"}, [frozenset("ab")])
    default_converter.encode([basket])
    assert type(basket.tags) is set
    assert type(basket.groups[0]) is frozenset


def test_dict_keys_with_the_same_json_form_are_rejected() -> None:
    """One of the two values would be lost."""
    with pytest.raises(EncodeError, match="two keys of the dict at"):
        default_converter.encode({"a": [{1: "x", "1": "y"}]})
