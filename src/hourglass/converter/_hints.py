"""What a type hint is, seen from JSON: its name, what it wraps, and which kind of JSON it expects.

Pure questions about types. Knows nothing of payloads, encodings or values that are to be converted.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import operator
import types
import typing
from typing import Annotated, Any, Final, Literal, NewType, TypeVar, Union

import msgspec

KINDS: dict[type, str] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    bytes: "bytes",
    list: "array",
    dict: "object",
}
"""The kinds of decoded JSON values (and bytes), by exact class."""

_WRAPPERS = (Annotated, Final, typing.ClassVar, typing.Required, typing.NotRequired)
_UNIONS = (Union, types.UnionType)


def kind_of(value: object) -> str:
    """The JSON kind of a value, for messages: what it is, never what it holds."""
    return KINDS.get(type(value), type(value).__name__)


def type_name(hint: Any) -> str:
    """A type as its author wrote it, nearly."""
    if hint is None or hint is type(None):
        return "None"
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    if is_union(hint):
        return " | ".join(type_name(member) for member in typing.get_args(hint))
    return str(hint).replace("typing.", "")


def is_union(hint: Any) -> bool:
    """Whether the hint is a union, in either spelling."""
    return typing.get_origin(hint) in _UNIONS


def bare(hint: Any) -> Any:
    """The hint without what does not change how a value looks: Annotated, NewType, aliases, TypeVar."""
    while True:
        origin = typing.get_origin(hint)
        if origin in _WRAPPERS:
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, NewType):
            hint = hint.__supertype__
        elif isinstance(hint, TypeVar):
            hint = _of_typevar(hint)
        elif hint is None:
            return type(None)
        elif hint is object:
            return Any
        elif type(hint).__name__ == "TypeAliasType":  # `type X = …` of Python 3.12
            hint = hint.__value__
        else:
            return hint


def _of_typevar(hint: TypeVar) -> Any:
    if hint.__constraints__:
        return functools.reduce(operator.or_, hint.__constraints__)
    return Any if hint.__bound__ is None else hint.__bound__


def is_record(origin: Any) -> bool:
    """Whether the class is a JSON object with named fields."""
    return isinstance(origin, type) and (
        dataclasses.is_dataclass(origin)
        or typing.is_typeddict(origin)
        or issubclass(origin, msgspec.Struct)
        or hasattr(origin, "model_fields")
    )


def field_names(origin: Any) -> frozenset[str]:
    """The names that a record's fields have on the wire."""
    if issubclass(origin, msgspec.Struct):
        return frozenset(origin.__struct_encode_fields__)
    if dataclasses.is_dataclass(origin):
        return frozenset(field.name for field in dataclasses.fields(origin))
    if hasattr(origin, "model_fields"):
        return frozenset(field.alias or name for name, field in origin.model_fields.items())
    return frozenset(origin.__required_keys__ | origin.__optional_keys__)


def expected_kinds(hint: Any) -> frozenset[str] | None:
    """The JSON kinds in which values of this type are written; None where it may be any."""
    hint = bare(hint)
    origin = typing.get_origin(hint) or hint
    if origin in KINDS:
        return frozenset((KINDS[origin],)) if origin is not bytes else frozenset(("bytes", "str"))
    if origin is Literal:
        return frozenset(kind_of(value) for value in typing.get_args(hint))
    if not isinstance(origin, type):
        return None
    if issubclass(origin, enum.Enum):
        return frozenset(kind_of(member.value) for member in origin)
    if is_record(origin) or issubclass(origin, collections.abc.Mapping):
        return frozenset(("object",))
    if origin.__module__ in ("datetime", "uuid", "decimal"):
        return frozenset(("str",))
    if issubclass(origin, collections.abc.Iterable) and not issubclass(origin, (str, bytes)):
        return frozenset(("array",))
    return None


@functools.lru_cache(maxsize=1024)
def _class_hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def field_hints(hint: Any) -> dict[str, Any]:
    """The types of a record's fields, with the parameters of a generic class filled in.

    Raises NameError for an annotation whose names cannot be found from the class's module.
    """
    origin = typing.get_origin(hint)
    if origin is None:
        return _class_hints(hint)
    filled = dict(zip(origin.__parameters__, typing.get_args(hint), strict=False))
    return {name: _fill(field, filled) for name, field in _class_hints(origin).items()}


def _fill(hint: Any, filled: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return filled.get(hint, hint)
    wanted = getattr(hint, "__parameters__", ())
    if not wanted or isinstance(hint, type):
        return hint
    return hint[tuple(filled.get(parameter, parameter) for parameter in wanted)]
