"""Signatures: binding of arguments to positions, and their conversion by annotation."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourglass.converter import Payload, Signature, default_converter
from hourglass.errors import ArgumentError, DecodeError, DefinitionError, EncodeError

P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass
class Order:
    id: str


def charge(order: Order, cents: int, currency: str = "EUR", note: str | None = None) -> str:
    return ""


def gather(first: int, *rest: Order) -> None: ...


def with_parameter_kinds(a: int, /, b: int = 2, *, quiet: bool = True) -> None: ...


def without_parameters() -> None: ...


CHARGE = Signature.of(charge, what="activity charge")
GATHER = Signature.of(gather, what="activity gather")


def test_signature_lists_parameter_names_types_and_return_type() -> None:
    assert CHARGE.what == "activity charge"
    assert CHARGE.parameters == ("order", "cents", "currency", "note")
    assert CHARGE.types == (Order, int, str, str | None)
    assert CHARGE.return_type is str
    assert CHARGE.required == 2
    assert GATHER.return_type is type(None)
    assert GATHER.rest_type is Order
    assert repr(GATHER) == "<Signature of activity gather(first, *rest)>"


@pytest.mark.parametrize(
    ("args", "kwargs", "bound"),
    [
        ((1, 2), {}, [1, 2]),
        ((1, 2, 3, 4), {}, [1, 2, 3, 4]),
        ((1,), {"cents": 2}, [1, 2]),
        ((), {"cents": 2, "order": 1}, [1, 2]),
        ((1, 2), {"note": "n"}, [1, 2, "EUR", "n"]),
        ((1,), {"currency": "USD", "cents": 2}, [1, 2, "USD"]),
    ],
)
def test_signature_binds_arguments_to_positions(args: Any, kwargs: Any, bound: list[Any]) -> None:
    """Gaps are filled with defaults; trailing defaults are omitted."""
    assert CHARGE.bind(args, kwargs) == bound


def test_signature_binds_variable_arguments() -> None:
    assert GATHER.bind((1, 2, 3)) == [1, 2, 3]
    assert GATHER.bind((), {"first": 1}) == [1]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        (
            (1,),
            {},
            "activity charge is missing its argument 'cents': it takes 2 to 4 arguments (order, cents",
        ),
        ((), {}, "is missing its argument 'order'"),
        ((), {"cents": 1}, "is missing its argument 'order'"),
        ((1, 2, 3, 4, 5), {}, "activity charge takes 2 to 4 arguments (order, cents, currency, note), got 5"),
        ((1, 2), {"order": 1}, "activity charge got multiple values for argument 'order'"),
        ((1, 2), {"cent": 1}, "activity charge has no argument 'cent'"),
    ],
)
def test_binding_error_names_function_and_parameter(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        CHARGE.bind(args, kwargs)
    assert message in str(caught.value)


def test_signature_respects_positional_only_and_keyword_only_parameters() -> None:
    signature = Signature.of(with_parameter_kinds, what="with_parameter_kinds")
    assert signature.parameters == ("a", "b")
    with pytest.raises(ArgumentError, match="'a' is positional-only"):
        signature.bind((), {"a": 1})
    with pytest.raises(ArgumentError, match="keyword-only argument 'quiet' cannot"):
        signature.bind((1,), {"quiet": False})
    with pytest.raises(ArgumentError, match="takes no arguments, got 1"):
        Signature.of(without_parameters, what="without_parameters").bind((1,))
    with pytest.raises(ArgumentError, match=r"takes 1 or more arguments .first, .rest., got 0"):
        GATHER.decode(default_converter, ())


def test_signature_rejects_required_keyword_only_and_double_star_parameters() -> None:
    def keyword(*, a: int) -> None: ...

    def keywords(**options: int) -> None: ...

    with pytest.raises(DefinitionError, match="workflow w: the keyword-only parameter 'a'"):
        Signature.of(keyword, what="workflow w")
    with pytest.raises(DefinitionError, match=r"must not have \*\*options"):
        Signature.of(keywords, what="workflow w")
    with pytest.raises(DefinitionError, match="cannot be determined"):
        Signature.of(5, what="five")  # type: ignore[arg-type]


def test_signature_decodes_arguments_to_annotated_types() -> None:
    payloads = CHARGE.encode(default_converter, (Order("o"),), {"cents": 5})
    assert payloads == (Payload(b'{"id":"o"}'), Payload(b"5"))
    assert CHARGE.decode(default_converter, payloads) == [Order("o"), 5]
    rest = GATHER.encode(default_converter, (1, Order("a"), Order("b")))
    assert GATHER.decode(default_converter, rest) == [1, Order("a"), Order("b")]


def test_argument_error_names_the_undecodable_argument_and_its_function() -> None:
    good = default_converter.encode(Order("o"))
    with pytest.raises(ArgumentError) as caught:
        CHARGE.decode(default_converter, (good, Payload(b'"x"')))
    assert (
        str(caught.value) == "argument 'cents' of activity charge: expected int, got str (json/plain as int)"
    )
    assert isinstance(caught.value.__cause__, DecodeError)
    with pytest.raises(
        ArgumentError, match=r"argument 'rest'\[1\] of activity gather: expected Order, got int"
    ):
        GATHER.decode(default_converter, (Payload(b"1"), good, Payload(b"1")))
    for count in (1, 5):
        with pytest.raises(ArgumentError, match=f"activity charge takes 2 to 4 arguments .*, got {count}"):
            CHARGE.decode(default_converter, (good,) * count)


def test_encode_error_names_the_argument_and_its_function() -> None:
    with pytest.raises(EncodeError, match="argument 'cents' of activity charge: an object of class object"):
        CHARGE.encode(default_converter, (1, object()))


def test_signature_omits_self() -> None:
    class Cart:
        def add(self, item: str, count: int = 1) -> int:
            return 0

    assert Signature.of(Cart.add, what="add", skip_first=True).parameters == ("item", "count")
    assert Signature.of(Cart().add, what="add").types == (str, int)


def test_signature_sees_through_decorators_partials_and_callable_objects() -> None:
    def noisy(fn: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(fn)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            return fn(*args, **kwargs)

        return wrapper

    class Caller:
        def __call__(self, order: Order, n: "int") -> str:
            return ""

    assert Signature.of(noisy(charge), what="w").types == CHARGE.types
    assert Signature.of(functools.partial(charge, Order("x")), what="p").types == (int, str, str | None)
    assert Signature.of(Caller(), what="c").types == (Order, int)
    assert Signature.of(Caller(), what="c").return_type is str


def test_parameter_with_default_none_accepts_none() -> None:
    """The annotation need not allow it."""

    def lax(a: str = None) -> None: ...  # type: ignore[assignment] # noqa: RUF013

    signature = Signature.of(lax, what="lax")
    assert signature.decode(default_converter, signature.encode(default_converter, (None,))) == [None]
    assert signature.decode(default_converter, (Payload(b'"x"'),)) == ["x"]


def test_unannotated_parameters_and_results_have_type_any() -> None:
    def free(a, b=1):  # type: ignore[no-untyped-def]
        return a

    signature = Signature.of(free, what="free")
    assert signature.types == (Any, Any)
    assert signature.return_type is Any


@given(st.data())
def test_signature_binds_random_calls_as_python_does(data: st.DataObject) -> None:
    names = ["a", "b", "c", "d"][: data.draw(st.integers(0, 4))]
    defaults = data.draw(st.integers(0, len(names)))
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=f"default {name}" if index >= len(names) - defaults else inspect.Parameter.empty,
        )
        for index, name in enumerate(names)
    ]

    def fn(*args: Any) -> None: ...

    fn.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    args = tuple(range(data.draw(st.integers(0, 5))))
    kwargs = {name: f"given {name}" for name in data.draw(st.sets(st.sampled_from("abcde")))}
    try:
        expected = fn.__signature__.bind(*args, **kwargs)  # type: ignore[attr-defined]
    except TypeError:
        with pytest.raises(ArgumentError):
            Signature.of(fn, what="fn").bind(args, kwargs)
        return
    bound = Signature.of(fn, what="fn").bind(args, kwargs)
    expected.apply_defaults()
    full = [expected.arguments[name] for name in names]
    assert full[: len(bound)] == bound
    assert all(
        value == f"default {name}"
        for name, value in zip(names, full, strict=True)
        if names.index(name) >= len(bound)
    )
