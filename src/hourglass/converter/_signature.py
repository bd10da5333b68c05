"""`Signature`: the encoding of a function's arguments.

Payloads are positional: keyword arguments are bound to their positions before they are sent, gaps are filled with defaults,
and trailing defaults are left to the receiver. Binding does not check types, because types matter only when arguments are
decoded. `reject_misfits` checks in advance whether arguments could be decoded.

Annotations are resolved to types, also if they are strings or name classes local to a function, and also for wrapped and
partial functions. An annotation that cannot be resolved becomes Any, and does not affect other parameters. Names are looked
up where Python would: in the function's globals, its closure, and the scopes around its definition. These scopes exist only
while the definition is executed, so the names that the annotations use are kept.

Invariant: after construction, a signature has all data for a plain positional call, so that binding needs a single
comparison. Must not know: workflows or activities. `what` is the name of the workflow or activity, for messages.
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Optional, get_args, get_origin

from hourglass.converter._converter import Converter, RawPayload
from hourglass.converter._data import Payload
from hourglass.errors import ArgumentError, DecodeError, DefinitionError, EncodeError

_NOTHING_TO_CHECK = (typing.NoReturn, typing.Never, getattr(typing, "Self", None))


def innermost(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the author's function below partials, wrappers, bound methods and callable objects."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif (wrapped := getattr(fn, "__wrapped__", None)) is not None:
            fn = wrapped
        elif isinstance(fn, types.MethodType):
            fn = fn.__func__
        elif isinstance(fn, type):
            return fn.__init__  # type: ignore[misc,no-any-return]
        elif not isinstance(fn, types.FunctionType) and isinstance(
            call := getattr(type(fn), "__call__", None),  # noqa: B004
            types.FunctionType,
        ):
            return call
        else:
            return fn


def scope_of(fn: Callable[..., Any], frame: types.FrameType | None) -> dict[str, Any]:
    """Return the names that a function's string annotations need, from the scopes around its definition."""
    used_names = _names_in(getattr(fn, "__annotations__", {}))
    own = getattr(fn, "__globals__", None)
    if not used_names or own is None:
        return {}
    scope = _closure(fn, used_names)
    while frame is not None and len(scope) < len(used_names):
        if frame.f_globals is own and frame.f_locals is not own:
            names = frame.f_locals
            scope.update({name: names[name] for name in used_names - scope.keys() if name in names})
        frame = frame.f_back
    return scope


def _closure(fn: Callable[..., Any], names: frozenset[str]) -> dict[str, Any]:
    try:
        cells = inspect.getclosurevars(fn).nonlocals
    except (TypeError, ValueError):
        return {}
    return {name: value for name, value in cells.items() if name in names}


def _names_in(annotations: Mapping[str, Any]) -> frozenset[str]:
    """Return all names used in string annotations."""
    names: set[str] = set()
    for annotation in annotations.values():
        if isinstance(annotation, str):
            try:
                tree = ast.parse(annotation, mode="eval")
            except SyntaxError:
                continue
            names.update(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return frozenset(names)


def resolve(annotation: Any, fn: Callable[..., Any], scope: Mapping[str, Any]) -> Any:
    """Return an annotation as a type. Return Any if there is no annotation, or if it cannot be resolved."""
    if annotation is inspect.Parameter.empty:
        return Any
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        resolved = typing.get_type_hints(
            holder, getattr(fn, "__globals__", {}), dict(scope), include_extras=True
        )["it"]
    except Exception:  # a name that exists only for type checkers, or any exception that an annotation raises
        return Any
    return Any if resolved in _NOTHING_TO_CHECK or _is_variadic(resolved) else resolved


def _is_variadic(hint: Any) -> bool:
    """Whether the hint belongs to `*args: P.args` or `*args: *Ts`, i.e. arguments of any type that a decorator passes on."""
    return isinstance(hint, (typing.ParamSpecArgs, typing.TypeVarTuple)) or (
        typing.get_origin(hint) is typing.Unpack
    )


_Kind = inspect.Parameter
_NO_KWARGS: Mapping[str, Any] = types.MappingProxyType({})


class Signature:
    """The parameters of a function, used to bind, encode and decode arguments."""

    def __init__(
        self,
        what: str,
        fn: Callable[..., Any],
        signature: inspect.Signature,
        scope: Mapping[str, Any],
        *,
        skip_first: bool,
    ) -> None:
        self.what = what
        self._fn = fn
        self._scope = scope
        self._return_annotation = signature.return_annotation
        parameters = list(signature.parameters.values())[1 if skip_first else 0 :]
        _reject_unsupported_parameters(what, parameters)
        self._positional = tuple(
            parameter
            for parameter in parameters
            if parameter.kind in (_Kind.POSITIONAL_ONLY, _Kind.POSITIONAL_OR_KEYWORD)
        )
        self._rest = next(
            (parameter for parameter in parameters if parameter.kind is _Kind.VAR_POSITIONAL), None
        )
        self._keyword_only = frozenset(p.name for p in parameters if p.kind is _Kind.KEYWORD_ONLY)
        self.parameters: tuple[str, ...] = tuple(parameter.name for parameter in self._positional)
        self.required = sum(parameter.default is _Kind.empty for parameter in self._positional)
        """The minimum number of arguments."""
        self._most = sys.maxsize if self._rest is not None else len(self._positional)

    @classmethod
    def of(cls, fn: Callable[..., Any], *, what: str, skip_first: bool = False) -> Signature:
        """Return the signature of a function. `skip_first` omits a method's `self`.

        Call this where the function is defined, because classes that are local there can be resolved only then.
        """
        try:
            signature = inspect.signature(fn)
        except (TypeError, ValueError) as error:
            raise DefinitionError(f"the parameters of {what} cannot be determined ({error})") from error
        inner = innermost(fn)
        scope = scope_of(inner, sys._getframe(1))
        return cls(what, inner, signature, scope, skip_first=skip_first)

    @property
    def takes_exactly_one(self) -> bool:
        """Whether the function takes exactly one argument."""
        return self._most == 1 and len(self._positional) == 1

    def __repr__(self) -> str:
        variadic = () if self._rest is None else (f"*{self._rest.name}",)
        return f"<Signature of {self.what}({', '.join((*self.parameters, *variadic))})>"

    # Types are resolved on first use, because modules may import each other in cycles.

    @cached_property
    def types(self) -> tuple[Any, ...]:
        """The types of `parameters`; Any if unknown."""
        return tuple(self._type_of(parameter) for parameter in self._positional)

    @cached_property
    def rest_type(self) -> Any:
        """The type of each argument beyond `parameters`, if the function has `*args`; otherwise Any."""
        return Any if self._rest is None else self._type_of(self._rest)

    @cached_property
    def return_type(self) -> Any:
        """The type of the result; Any if unknown."""
        return resolve(self._return_annotation, self._fn, self._scope)

    def _type_of(self, parameter: inspect.Parameter) -> Any:
        hint = resolve(parameter.annotation, self._fn, self._scope)
        if parameter.default is None and hint is not Any:
            return Optional[hint]  # noqa: UP045 - not every hint knows `|`. `x: str = None` means the same here
        return hint

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any] = _NO_KWARGS) -> list[Any]:
        """Return the arguments of a call in positional order. Raise ArgumentError."""
        if not kwargs and self.required <= len(args) <= self._most:
            return list(args)
        if len(args) > self._most:
            raise ArgumentError(f"{self.what} takes {self._takes()}, got {len(args)}")
        self._check_names(len(args), kwargs)
        return self._fill(args, kwargs)

    def _fill(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        last = max((i for i, name in enumerate(self.parameters) if name in kwargs), default=-1)
        bound = list(args)
        for parameter in self._positional[len(args) :]:
            position = len(bound)
            if parameter.name in kwargs:
                bound.append(kwargs[parameter.name])
            elif parameter.default is _Kind.empty:
                raise ArgumentError(
                    f"{self.what} is missing its argument {parameter.name!r}: it takes {self._takes()}"
                )
            elif position > last:
                break
            else:
                bound.append(parameter.default)
        return bound

    def _check_names(self, count: int, kwargs: Mapping[str, Any]) -> None:
        for name in kwargs:
            if name in self._keyword_only:
                raise ArgumentError(
                    f"{self.what}: the keyword-only argument {name!r} cannot be passed, because arguments are sent by "
                    "position"
                )
            if name not in self.parameters:
                raise ArgumentError(f"{self.what} has no argument {name!r}: it takes {self._takes()}")
            position = self.parameters.index(name)
            if position < count:
                raise ArgumentError(f"{self.what} got multiple values for argument {name!r}")
            if self._positional[position].kind is _Kind.POSITIONAL_ONLY:
                raise ArgumentError(f"{self.what}: {name!r} is positional-only")

    def _takes(self) -> str:
        """Return the number and names of the parameters, in words."""
        if self._rest is not None:
            names = ", ".join((*self.parameters, f"*{self._rest.name}"))
            return f"{self.required} or more arguments ({names})"
        if not self.parameters:
            return "no arguments"
        most = len(self.parameters)
        number = str(most) if most == self.required else f"{self.required} to {most}"
        plural = "" if number == "1" else "s"
        return f"{number} argument{plural} ({', '.join(self.parameters)})"

    def encode(
        self, converter: Converter, args: Sequence[Any], kwargs: Mapping[str, Any] = _NO_KWARGS
    ) -> tuple[Payload, ...]:
        """Encode the arguments of a call. Raise ArgumentError or EncodeError."""
        fits = not kwargs and self.required <= len(args) <= self._most
        values = args if fits else self.bind(args, kwargs)
        payloads: list[Payload] = []
        try:
            for value in values:
                payloads.append(converter.encode(value))
        except EncodeError as error:
            raise EncodeError(f"{self._name(len(payloads))}: {error}") from error.__cause__
        return tuple(payloads)

    def decode(self, converter: Converter, payloads: Sequence[Payload]) -> list[Any]:
        """Decode payloads to new arguments. Trailing defaults are left to the call. Raise `ArgumentError`."""
        count = len(payloads)
        if not self.required <= count <= self._most:
            raise ArgumentError(f"{self.what} takes {self._takes()}, got {count}")
        hints = self.types
        if count > len(hints):
            hints = hints + (self.rest_type,) * (count - len(hints))
        values: list[Any] = []
        try:
            for value in map(converter.decode, payloads, hints):
                values.append(value)
        except DecodeError as error:
            raise ArgumentError(f"{self._name(len(values))}: {error}") from error
        return values

    def reject_misfits(self, converter: Converter, args: Sequence[Any], payloads: Sequence[Payload]) -> None:
        """Raise ArgumentError for arguments that a receiver with this signature could not decode.

        A value is accepted if it is an instance of the parameter's class. For any other value, for example a dict for a
        dataclass, the converter decides. Types that Python cannot compare with a value, for example `list[int]`, are left to
        the receiver.
        """
        for position, (value, payload, hint) in enumerate(zip(args, payloads, self.types, strict=False)):
            if hint is Any or _is_of(value, hint):
                continue
            try:
                converter.decode(payload, hint)
            except DecodeError as error:
                raise ArgumentError(f"{self._name(position)}: {error}") from None

    def _name(self, position: int) -> str:
        if position < len(self.parameters):
            return f"argument {self.parameters[position]!r} of {self.what}"
        assert self._rest is not None
        return f"argument {self._rest.name!r}[{position - len(self.parameters)}] of {self.what}"


def _is_of(value: Any, hint: Any) -> bool:
    try:
        return isinstance(value, hint)
    except TypeError:
        return True


def _reject_unsupported_parameters(what: str, parameters: Sequence[inspect.Parameter]) -> None:
    for parameter in parameters:
        if parameter.kind is _Kind.VAR_KEYWORD:
            raise DefinitionError(f"{what} must not have **{parameter.name}: arguments are sent by position")
        if parameter.kind is _Kind.KEYWORD_ONLY and parameter.default is _Kind.empty:
            raise DefinitionError(
                f"{what}: the keyword-only parameter {parameter.name!r} has no default. Arguments are sent by position: "
                "move the parameter before the *, or give it a default"
            )


_TAKES_ALL = (list, Sequence, Collection, Iterable)


def raw_payloads(payloads: Sequence[Payload], converter: Converter) -> list[RawPayload]:
    """Return the arguments as `RawPayload` objects, without decoding them."""
    return [RawPayload(payload, converter) for payload in payloads]


def check_dynamic(signature: Signature, what: str) -> None:
    """Raise an error unless the function can be dynamic: its only parameter must be a sequence of `RawPayload`."""
    requirement = f"{what} is dynamic and must have one parameter, a Sequence[RawPayload] of all arguments"
    if not signature.takes_exactly_one:
        names = ", ".join(signature.parameters) or "none"
        raise DefinitionError(f"{requirement}; its parameters are: {names}")
    (hint,) = signature.types
    of = get_args(hint)
    if hint is not Any and (
        (get_origin(hint) or hint) not in _TAKES_ALL or of not in ((), (Any,), (RawPayload,))
    ):
        raise DefinitionError(f"{requirement}; {signature.parameters[0]!r} has another annotation")
