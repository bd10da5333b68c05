"""String annotations of signatures: names of the module, of a function's locals, and missing names."""

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


def signature_of(fn: Callable[..., Any]) -> Signature:
    """Return the signature from a nested call, as decorators do."""
    return Signature.of(fn, what="it")


def test_signature_resolves_string_annotations_of_its_module() -> None:
    """Names that are defined later are resolved. A missing name makes only its own type Any."""
    signature = signature_of(module_level)
    assert signature.types == (Order, Later, Any, int)
    assert signature.return_type == list[Order]


def test_signature_resolves_local_classes_without_a_closure() -> None:
    @dataclasses.dataclass
    class Local:
        n: int

    def fn(a: Local, b: list[Local], c: Unknown) -> Local | None:  # type: ignore[name-defined] # noqa: F821
        return None

    signature = signature_of(fn)
    assert signature.types == (Local, list[Local], Any)
    assert signature.return_type == Local | None
    payloads = signature.encode(default_converter, (Local(1), [Local(2)], 3))
    assert signature.decode(default_converter, payloads) == [Local(1), [Local(2)], 3]


def test_signature_resolves_local_classes_through_the_closure() -> None:
    """The scope that defined the class has ended."""

    def make() -> Callable[..., Any]:
        class Local:
            pass

        def fn(a: Local) -> None:
            Local()

        return fn

    assert signature_of(make()).types[0].__name__ == "Local"


def test_signature_of_a_method_resolves_locals_around_its_class() -> None:
    class Item:
        pass

    class Cart:
        def add(self, item: Item) -> None: ...

        signature = Signature.of(add, what="add", skip_first=True)

    assert Cart.signature.types == (Item,)


def test_signature_keeps_only_the_locals_that_annotations_name() -> None:
    class Local:
        pass

    big = [0] * 10

    def fn(a: Local) -> None: ...

    assert big
    assert dict(signature_of(fn)._scope) == {"Local": Local}


def test_noreturn_annotation_allows_any_result() -> None:
    def fn() -> NoReturn:
        raise AssertionError

    assert signature_of(fn).return_type is Any


def test_dataclasses_with_string_annotations_round_trip() -> None:
    zoo = Zoo([Cat("a"), Order("b", [Order("c")])], 5)
    payload = default_converter.encode(zoo)
    assert default_converter.decode(payload, Zoo[int]) == zoo
    order = Order("a", [Order("b")])
    assert default_converter.decode(default_converter.encode(order), Order) == order
    assert default_converter.decode(Payload(b'{"id":"a"}'), Order) == Order("a")
