"""Values as builtins of JSON, the slow and thorough way.

The fast encoder in `_json` gives up on what it does not know and says little. This walk takes what it can:
keys that are no strings, sets of mixed members, NaN; and names type and path of what it cannot. Invariants:
the same value gives the same result in every process (sets are sorted by their JSON text), and the value
itself is never changed.
"""

from __future__ import annotations

import base64
import collections.abc
import dataclasses
import enum
import json
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from hourglass.converter._foreign import is_message, is_pydantic_type, message_to_plain, pydantic_to_plain
from hourglass.errors import EncodeError

_SCALARS = frozenset((str, int, float, bool, type(None)))
_BINARY = (bytes, bytearray, memoryview)
_TEXTUAL = (datetime, date, time, timedelta, UUID, Decimal)
_UNSUPPORTED = object()


def simplify(value: Any) -> Any:
    """One step from a class that msgspec does not know to one that it does. Raises NotImplementedError."""
    result = _step(value)
    if result is _UNSUPPORTED:
        raise NotImplementedError(f"{type(value).__name__} has no JSON form")
    return result


def _step(value: Any) -> Any:
    """The order matters: enums are also ints, models and messages are also iterable."""
    if isinstance(value, (type, collections.abc.Iterator)):
        # An iterator can be read once only: encoding it twice, as verification does, would give two results.
        return _UNSUPPORTED
    if isinstance(value, enum.Enum):
        return value.value
    if is_message(value):
        return message_to_plain(value)
    if is_pydantic_type(type(value)):
        return pydantic_to_plain(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, collections.abc.Iterable):
        return list(value)
    return _UNSUPPORTED


def plain(value: Any, path: str = "$", above: tuple[int, ...] = ()) -> Any:
    """The value as str, int, float, bool, None, list and dict. `above` holds the ids of what contains it."""
    cls = type(value)
    if cls in _SCALARS:
        return value
    if id(value) in above:
        raise EncodeError(f"{cls.__name__} at {path} contains itself")
    inside = (*above, id(value))
    if isinstance(value, _BINARY):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, enum.Enum):
        return plain(value.value, path, inside)
    if isinstance(value, _TEXTUAL):
        return msgspec.to_builtins(value)
    if isinstance(value, dict):
        return _plain_dict(value, path, inside)
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item, f"{path}[...]", inside) for item in value), key=_json_text)
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{path}[{index}]", inside) for index, item in enumerate(value)]
    if (fields := _fields(value)) is not None:
        return _plain_record(fields, value, path, inside)
    simpler = _step(value)
    if simpler is _UNSUPPORTED:
        raise EncodeError(_unsupported(value, path))
    return plain(simpler, path, inside)


def _json_text(item: Any) -> str:
    return json.dumps(item, sort_keys=True)


def _fields(value: Any) -> dict[str, Any] | None:
    """The fields of a struct or a dataclass, under their names on the wire; None for everything else."""
    if isinstance(value, msgspec.Struct):
        pairs = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        found = {wire: getattr(value, name) for wire, name in pairs}
        config = value.__struct_config__
        if config.tag is not None and config.tag_field is not None:
            found = {config.tag_field: config.tag, **found}
        return {name: field for name, field in found.items() if field is not msgspec.UNSET}
    if is_pydantic_type(type(value)) or not dataclasses.is_dataclass(value):
        return None
    names = (field.name for field in dataclasses.fields(value))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _plain_record(fields: dict[str, Any], value: Any, path: str, inside: tuple[int, ...]) -> Any:
    result = {name: plain(field, f"{path}.{name}", inside) for name, field in fields.items()}
    if isinstance(value, msgspec.Struct) and value.__struct_config__.array_like:
        return list(result.values())
    return result


def _plain_dict(value: dict[Any, Any], path: str, inside: tuple[int, ...]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, item in value.items():
        text = _key(key, path)
        if text in result:
            raise EncodeError(f"two keys of the dict at {path} are the same text in JSON")
        result[text] = plain(item, f"{path}[...]", inside)
    return result


def _key(key: Any, path: str) -> str:
    """A key of a dict as JSON's text: numbers, true, false and null as `json.dumps` writes them."""
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, (int, float)) or key is None:
        return json.dumps(key)
    if isinstance(key, _TEXTUAL):
        return str(msgspec.to_builtins(key))
    raise EncodeError(f"a key of the dict at {path} is a {type(key).__name__}: JSON's keys are text")


def _unsupported(value: Any, path: str) -> str:
    if isinstance(value, collections.abc.Iterator):
        return f"{type(value).__name__} at {path} can be read only once: make it a list"
    cls = value.__name__ if isinstance(value, type) else type(value).__name__
    what = f"the class {cls}" if isinstance(value, type) else f"an object of class {cls}"
    return f"{what} at {path} has no JSON form: use a dataclass, or a converter of your own"
