"""Single values out of JSON, each class by its rule: what Temporal's Python SDK writes, and nothing lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from hourglass.converter._hints import kind_of, type_name
from hourglass.converter._mismatch import Mismatch, Place


def _no(value: Any, wanted: type, path: Place) -> Mismatch:
    return Mismatch(f"expected {type_name(wanted)}, got {kind_of(value)}", path)


def _none(value: Any, path: Place) -> None:
    if value is not None:
        raise _no(value, type(None), path)


def _bool(value: Any, path: Place) -> bool:
    if value is True or value is False:
        return bool(value)
    raise _no(value, bool, path)


def _int(value: Any, path: Place) -> int:
    """An int, also one that was written as 1.0; never one that would lose its fraction."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise _no(value, int, path)


def _float(value: Any, path: Place) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise Mismatch("a number out of range", path) from None
    raise _no(value, float, path)


def _str(value: Any, path: Place) -> str:
    if isinstance(value, str):
        return value
    raise _no(value, str, path)


def _bytes(value: Any, path: Place) -> bytes:
    """Bytes as they are, base64 as most languages write them, or numbers as Temporal's Python SDK does."""
    try:
        if isinstance(value, bytes):
            return value
        if isinstance(value, list):
            return bytes(value)
        return msgspec.convert(value, bytes)
    except (msgspec.ValidationError, ValueError, TypeError):
        raise _no(value, bytes, path) from None


def _datetime(value: Any, path: Place) -> datetime:
    if not isinstance(value, str):
        raise _no(value, datetime, path)
    try:
        return msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        pass
    try:
        # Other spellings of ISO 8601, offsets with seconds among them; a mere date is a `date`.
        return datetime.fromisoformat(value if len(value) > 10 else "no time")
    except ValueError:
        raise Mismatch("expected datetime, got another str", path) from None


def _by_msgspec(wanted: type) -> Callable[[Any, Place], Any]:
    def read(value: Any, path: Place) -> Any:
        try:
            return msgspec.convert(value, wanted)
        except (msgspec.ValidationError, ValueError, TypeError, OverflowError):
            found = f"another {kind_of(value)}" if isinstance(value, str) else kind_of(value)
            raise Mismatch(f"expected {wanted.__name__}, got {found}", path) from None

    return read


SCALARS: dict[type, Callable[[Any, Place], Any]] = {
    type(None): _none,
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    bytes: _bytes,
    bytearray: lambda value, path: bytearray(_bytes(value, path)),
    memoryview: lambda value, path: memoryview(_bytes(value, path)),
    datetime: _datetime,
    **{cls: _by_msgspec(cls) for cls in (date, time, timedelta, UUID, Decimal)},
}
"""How to read each class: a function of value and path. Raises Mismatch."""
