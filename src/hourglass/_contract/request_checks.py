"""Validation of requests: the last check before a request is sent, on every engine.

Options are checked earlier, with messages in the author's terms. This check covers all other fields, and requests that
interceptors have changed. The check of each field is derived from its annotation, once for each class.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeAlias

import msgspec

from hourglass._contract.service import Request
from hourglass._evaluator.options import INT64, check_text
from hourglass.converter import Failure, Payload
from hourglass.errors import UsageError

Check: TypeAlias = Callable[[Any, str], None]

_LEAST = -INT64 - 1

_PLAIN: tuple[type, ...] = (Payload, Failure)
"""Types that only the converter creates. Their values are not checked."""


def check_request(request: Request[Any]) -> None:
    """Raise `UsageError` if a value of the request has the wrong type, is text that UTF-8 cannot encode, or is an
    integer of more than 64 bits.
    """
    _check_fields(request)


def _check_fields(request: msgspec.Struct) -> None:
    for name, default, check in _checked_fields(type(request)):
        value = getattr(request, name)
        if value is not default:
            check(value, name)


@cache
def _checked_fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any, Check], ...]:
    """Return the name, the default and the check of each field that has a check."""
    hints = typing.get_type_hints(kind)
    return tuple(
        (field.name, field.default, check)
        for field in msgspec.structs.fields(kind)
        if field.name in hints and (check := _check_of(hints[field.name])) is not None
    )


def _check_of(hint: Any) -> Check | None:
    """Return the check for an annotation, or None if every value is valid."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        members = [argument for argument in arguments if argument is not type(None)]
        inner = _check_of(members[0]) if len(members) == 1 else None
        return None if inner is None else _unless_none(inner)
    if origin is tuple:
        return _each(arguments[0]) if len(arguments) == 2 and arguments[1] is Ellipsis else None
    if origin is dict:
        return _names
    if not isinstance(hint, type) or hint in _PLAIN:
        return None
    if issubclass(hint, Enum) or is_dataclass(hint):  # a dataclass checks its own fields
        return _instance(hint)
    if issubclass(hint, msgspec.Struct):
        return _struct(hint)
    return _SIMPLE.get(hint)


def _text(value: Any, what: str) -> None:
    if type(value) is not str or not value.isascii():
        check_text(value, what)


def _whole(value: Any, what: str) -> None:
    # Compares with the limits, because `in range` would iterate over the range for an enum's number.
    if not isinstance(value, int) or isinstance(value, bool) or not _LEAST <= value <= INT64:
        raise UsageError(f"{what} must be an int of at most 64 bits, not {_shown(value)}")


def _number(value: Any, what: str) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        raise UsageError(f"{what} must be a number, not {_shown(value)}")


def _names(value: Any, what: str) -> None:
    if not isinstance(value, dict):
        raise UsageError(f"{what} must be a dict of names to values, not {_shown(value)}")
    for name in value:
        _text(name, f"a name in {what}")


def _instance(kind: type) -> Check:
    def check(value: Any, what: str) -> None:
        if not isinstance(value, kind):
            raise UsageError(f"{what} must be of type {kind.__name__}, not {_shown(value)}")

    return check


def _unless_none(inner: Check) -> Check:
    def check(value: Any, what: str) -> None:
        if value is not None:
            inner(value, what)

    return check


def _each(hint: Any) -> Check | None:
    inner = _check_of(hint)
    if inner is None:
        return None

    def check(value: Any, what: str) -> None:
        if not isinstance(value, tuple):
            raise UsageError(f"{what} must be a list, not {_shown(value)}")
        for element in value:
            inner(element, what)

    return check


def _struct(kind: type[msgspec.Struct]) -> Check:
    def check(value: Any, what: str) -> None:
        if not isinstance(value, kind):
            raise UsageError(f"{what} must be of type {kind.__name__}, not {_shown(value)}")
        _check_fields(value)

    return check


def _shown(value: Any) -> str:
    """Return the form of a value for an error message: a number unless it is too long, otherwise only the type."""
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 200):
        return repr(value)
    return f"a value of type {type(value).__name__}"


_SIMPLE: dict[type, Check] = {
    str: _text,
    int: _whole,
    float: _number,
    bool: _instance(bool),
    bytes: _instance(bytes),
}
