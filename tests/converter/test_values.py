"""Round trips of values of every supported type."""

import collections
import dataclasses
import enum
import math
from collections.abc import Collection, Iterable, Mapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourglass.converter import Converter, Payload, default_converter

T = TypeVar("T")
Bound = TypeVar("Bound", bound=int)
Constrained = TypeVar("Constrained", int, str)
UserId = NewType("UserId", int)


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Color(enum.StrEnum):
    RED = "red"


class Plain(enum.Enum):
    ONE = 1


class Mixed(enum.Enum):
    NUMBER = 1
    TEXT = "text"
    PAIR = (1, 2)


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Item:
    name: str
    price: Decimal = Decimal("1.50")


@dataclasses.dataclass(frozen=True)
class Order:
    id: UUID
    items: list[Item]
    placed: datetime
    note: str | None = None
    tags: frozenset[str] = frozenset()
    total: int = dataclasses.field(default=7, init=False)


@dataclasses.dataclass
class Box(Generic[T]):
    content: T
    more: list[T] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Tree:
    children: "list[Tree]" = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Cat:
    name: str
    lives: int = 9


@dataclasses.dataclass
class Dog:
    name: str
    breed: str = "mix"


@dataclasses.dataclass
class Zoo:
    animals: list[Cat | Dog]


@dataclasses.dataclass
class WithInit:
    value: int
    factor: dataclasses.InitVar[int] = 2

    def __post_init__(self, factor: int) -> None:
        self.scaled = self.value * factor


class Address(TypedDict, total=False):
    city: str
    zip: int


class Point(NamedTuple):
    x: int
    y: float = 0.5


class Shape(msgspec.Struct, rename="camel"):
    edge_count: int
    sides: list[int] = []


class Text(str):
    __slots__ = ()


class Number(int):
    pass


SHIFTED = timezone(timedelta(hours=5, minutes=30))
ID = UUID(int=7)

CASES: list[tuple[Any, Any]] = [
    (None, None),
    (None, Any),
    (True, bool),
    (5, int),
    (2**200, int),
    (-(2**64), Any),
    (1.5, float),
    (5e-324, float),
    ("häh\u2028 \U0001f600", str),
    ("\ud800", str),
    (b"\x00\xff", bytes),
    (b"", Any),
    (b"x", bytes | None),
    ([1, "a", None, {"b": [1.5]}], Any),
    ([1, "a"], list),
    ({"a": 1}, dict),
    ({"a": 1}, object),
    ((1, "a"), tuple[int, str]),
    ((1, 2, 3), tuple[int, ...]),
    ((), tuple[()]),
    ({1, 2}, set[int]),
    (frozenset("a"), frozenset[str]),
    (collections.deque([1, 2]), collections.deque[int]),
    (collections.OrderedDict(a=1), collections.OrderedDict[str, int]),
    (collections.Counter("aab"), collections.Counter[str]),
    ({1: "a", 2: "b"}, dict[int, str]),
    ({1.5: "a"}, dict[float, str]),
    ({True: 1, False: 2}, dict[bool, int]),
    ({None: 1}, dict[None, int]),
    ({ID: 1}, dict[UUID, int]),
    ({Size.LARGE: 1}, dict[Size, int]),
    ({Color.RED: 1}, dict[Color, int]),
    ({datetime(2024, 1, 2, 3, 4): 1}, dict[datetime, int]),
    ({date(2024, 1, 2): [1]}, dict[date, list[int]]),
    (Size.LARGE, Size),
    (Color.RED, Color),
    (Plain.ONE, Plain),
    (Mixed.TEXT, Mixed),
    (Mixed.PAIR, Mixed),
    ([Mixed.NUMBER, Mixed.PAIR], list[Mixed]),
    (Access.READ | Access.WRITE, Access),
    (datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC), datetime),
    (datetime(2024, 1, 2, tzinfo=SHIFTED), datetime),
    (datetime(2024, 1, 2), datetime),
    (date(2024, 1, 2), date),
    (time(1, 2, 3), time),
    (timedelta(days=3, microseconds=5), timedelta),
    (Decimal("1.10"), Decimal),
    (ID, UUID),
    (Item("x"), Item),
    (Order(ID, [Item("x", Decimal(2))], datetime(2024, 1, 2, tzinfo=UTC), tags=frozenset("ab")), Order),
    (Box(1, [2]), Box[int]),
    (Box(Item("x")), Box[Item]),
    (Box([Cat("a"), Dog("b")]), Box[list[Cat | Dog]]),
    (Tree([Tree(), Tree([Tree()])]), Tree),
    (WithInit(3), WithInit),
    (Zoo([Cat("a"), Dog("b", "pug")]), Zoo),
    (Dog("a"), Cat | Dog),
    ([Dog("a"), None], list[Cat | Dog | None]),
    ({"k": Cat("a", 3)}, dict[str, Cat | Dog]),
    (None, Cat | None),
    (Cat("a"), Cat | None),
    (ID, UUID | str),
    ("no uuid", UUID | str),
    (date(2024, 1, 2), datetime | date | int),
    ({1}, set[int] | str),
    (3, int | float | str),
    ({"city": "Ulm"}, Address),
    (Point(1, 2.0), Point),
    ([Point(1)], list[Point]),
    (Shape(3, [1, 2, 3]), Shape),
    ([Shape(3)], list[Shape | str]),
    ("a", Literal["a", 1, None]),
    (5, UserId),
    (5, Annotated[int, "documented"]),
    ([5], Annotated[list[int], ["unhashable"]]),
    (5, T),
    (5, Bound),
    ("a", Constrained),
    ([5], list[T]),
    ([1], Sequence[int]),
    ([1], MutableSequence[int]),
    ([1], Iterable[int]),
    ([1], Collection[int]),
    ({1}, AbstractSet[int]),
    ({"a": 1}, Mapping[str, int]),
    ({"a": Cat("a")}, Mapping[str, Cat | Dog]),
    (Text("x"), Text),
    ([Number(3)], list[Number]),
]


@pytest.mark.parametrize(("value", "hint"), CASES, ids=lambda case: repr(case)[:40])
def test_values_of_every_supported_type_round_trip(value: Any, hint: Any) -> None:
    back = default_converter.decode(default_converter.encode(value), hint)
    assert back == value
    assert type(back) is type(value)


def test_dataclass_fields_with_init_false_are_restored() -> None:
    order = Order(ID, [], datetime(2024, 1, 2))
    object.__setattr__(order, "total", 99)
    payload = default_converter.encode(order)
    assert default_converter.decode(payload, Order).total == 99
    assert default_converter.decode(payload, Order | Cat).total == 99


def test_values_decoded_twice_share_no_objects() -> None:
    payload = default_converter.encode({"a": [1]})
    first, second = default_converter.decode(payload), default_converter.decode(payload)
    first["a"].append(2)
    assert second == {"a": [1]}


def test_payload_passed_as_a_value_is_not_encoded_or_decoded() -> None:
    raw = Payload(b"?", "binary/strange", {"k": b"v"})
    assert default_converter.encode(raw) is raw
    assert default_converter.decode(raw, Payload) is raw


def test_payload_repr_hides_its_data() -> None:
    assert "secret" not in repr(default_converter.encode("secret"))


@pytest.mark.parametrize("hint", [bytearray, memoryview, bytes])
def test_binary_types_are_encoded_as_binary_plain(hint: type) -> None:
    payload = default_converter.encode(hint(b"ab"))
    assert payload == Payload(b"ab", "binary/plain")
    assert isinstance(default_converter.decode(payload, hint), hint)
    assert bytes(default_converter.decode(payload, hint)) == b"ab"


@pytest.mark.parametrize("value", [math.inf, -math.inf, [math.nan, None], {"a": math.nan}, Box(math.inf)])
def test_nan_and_infinities_round_trip(value: Any) -> None:
    payload = default_converter.encode(value)
    assert b"NaN" in payload.data or b"Infinity" in payload.data
    hint = Box[float] if isinstance(value, Box) else Any
    assert repr(default_converter.decode(payload, hint)) == repr(value)


def test_none_inside_a_value_is_encoded_as_json_null() -> None:
    assert default_converter.encode({"b": None, "a": "null"}).data == b'{"b":null,"a":"null"}'


def test_sets_are_encoded_in_sorted_order() -> None:
    assert default_converter.encode({"b", "c", "a"}).data == b'["a","b","c"]'
    assert default_converter.encode({1, "b", None, "a"}).data == b'["a","b",1,null]'
    assert default_converter.encode({1: {"b", "a"}}).data == b'{"1":["a","b"]}'


def test_union_prefers_the_dataclass_with_matching_fields() -> None:
    payload = default_converter.encode(Dog("a", "pug"))
    assert default_converter.decode(payload, Cat | Dog) == Dog("a", "pug")
    assert default_converter.decode(payload, Dog | Cat) == Dog("a", "pug")


def test_ambiguous_value_is_decoded_as_the_first_type_of_a_union() -> None:
    """To Python, `str | UUID` and `UUID | str` are equal."""
    payload = default_converter.encode(ID)
    for _ in range(2):
        assert default_converter.decode(payload, UUID | str) == ID
        assert default_converter.decode(payload, str | UUID) == str(ID)


def test_overridden_encode_is_used_for_argument_lists() -> None:
    class Upper(Converter):
        def encode(self, value: Any) -> Payload:
            return super().encode(value.upper() if isinstance(value, str) else value)

    assert Upper().encode_all(["a", 1]) == (Payload(b'"A"'), Payload(b"1"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_random_json_values_round_trip(value: Any) -> None:
    assert default_converter.decode(default_converter.encode(value)) == value


@given(st.dictionaries(st.integers() | st.booleans(), st.sets(st.text() | st.integers() | st.booleans())))
def test_set_encoding_does_not_depend_on_insertion_order(value: Any) -> None:
    turned: dict[Any, set[Any]] = {key: set() for key in value}
    for key, items in value.items():
        for item in sorted(items, key=repr, reverse=True):
            turned[key].add(item)
    assert default_converter.encode(turned) == default_converter.encode(value)
