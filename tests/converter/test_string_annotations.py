"""Annotations that are strings: of this module, of a function's locals, of nowhere."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from hourglass.converter import Payload, Signature, default_converter

if TYPE_CHECKING:
    from nowhere import Missing  # type: ignore[import-not-found]

T = TypeVar("T")


@dataclasses.dataclass
class Order:
    id: str
    parts: list[Order] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Cat:
    name: str


@dataclasses.dataclass
class Zoo(Generic[T]):
    animals: list[Cat | Order]
    extra: T | None = None


def module_level(order: Order, later: Later, lost: Missing, number: int) -> list[Order]:
    return []


class Later:
    pass


def of(fn: Callable[..., Any]) -> Signature:
    """A decorator in between, as ours are."""
    return Signature.of(fn, what="it")


def test_names_of_the_module() -> None:
    """Names of the module are found, also those defined later; a missing one is Any for itself alone."""
    signature = of(module_level)
    assert signature.types == (Order, Later, Any, int)
    assert signature.return_type == list[Order]


def test_classes_of_the_enclosing_function() -> None:
    """A class that is local to the function around the definition is found, without a closure over it."""

    @dataclasses.dataclass
    class Local:
        n: int

    def fn(a: Local, b: list[Local], c: Unknown) -> Local | None:  # type: ignore[name-defined] # noqa: F821
        return None

    signature = of(fn)
    assert signature.types == (Local, list[Local], Any)
    assert signature.return_type == Local | None
    payloads = signature.encode(default_converter, (Local(1), [Local(2)], 3))
    assert signature.decode(default_converter, payloads) == [Local(1), [Local(2)], 3]


def test_classes_in_a_closure() -> None:
    """A class that the function uses is found through its closure, when nobody around is left."""

    def make() -> Callable[..., Any]:
        class Local:
            pass

        def fn(a: Local) -> None:
            Local()

        return fn

    assert of(make()).types[0].__name__ == "Local"


def test_methods_of_a_local_class() -> None:
    """In a local class, a method's annotations find what is local around the class."""

    class Item:
        pass

    class Cart:
        def add(self, item: Item) -> None: ...

        signature = Signature.of(add, what="add", skip_first=True)

    assert Cart.signature.types == (Item,)


def test_unneeded_locals_are_not_kept() -> None:
    """Only what annotations name is kept of the scopes around."""

    class Local:
        pass

    big = [0] * 10

    def fn(a: Local) -> None: ...

    assert big
    assert dict(of(fn)._scope) == {"Local": Local}


def test_noreturn_annotation() -> None:
    """A function that never returns has a result of any type."""

    def fn() -> NoReturn:
        raise AssertionError

    assert of(fn).return_type is Any


def test_dataclasses_with_string_annotations() -> None:
    """Records of this module are decoded in the fast and in the thorough way, generic and nested."""
    zoo = Zoo([Cat("a"), Order("b", [Order("c")])], 5)
    payload = default_converter.encode(zoo)
    assert default_converter.decode(payload, Zoo[int]) == zoo
    order = Order("a", [Order("b")])
    assert default_converter.decode(default_converter.encode(order), Order) == order
    assert default_converter.decode(Payload(b'{"id":"a"}'), Order) == Order("a")
