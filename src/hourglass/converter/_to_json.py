"""Values as JSON: dicts in insertion order, fields in the order of their class, sets in a fixed order.

The iteration order of a set of strings differs between processes (`PYTHONHASHSEED`), and a replay compares arguments.
msgspec can sort sets, but then it also sorts the keys of dicts. Unsorted, it writes keys that are not strings in its own
way, and writes equal keys twice. It also writes an `OrderedDict` without its order after moves. So msgspec writes a value
first, and a walk over the value's containers looks for these three cases. Only a value with one of them, or a value that
msgspec rejects, is written in Python, by `plain`.

Cost, measured with CPython 3.11: the walk adds 1.3 µs to a small dict or dataclass (one step of a workflow takes 100 µs and
more), 0.3 ms to a list of 1,000 dicts of 3 fields (60 kB of JSON), and no time to a str or a number. A set of 8 strings in a dict
takes 7 µs, 100 of them 0.3 ms.

temporalio's default converter sorts keys, but its pydantic converter does not. Both read our output, and replays compare
values, not the order of keys.

NaN and the infinities are written as `NaN`, `Infinity` and `-Infinity`, as `temporalio` does. JSON forbids these values and
other languages reject them. But rejecting them here would stop workflows that Temporal's Python SDK runs, and writing null,
as msgspec does by default, would lose them silently.
"""

from __future__ import annotations

import base64
import collections
import collections.abc
import copy
import dataclasses
import enum
import functools
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any
from uuid import UUID

import msgspec

from hourglass.converter._hints import (
    is_message,
    is_model,
    is_pydantic_type,
    message_to_plain,
    model_to_json,
    model_to_python,
    pydantic_to_plain,
)
from hourglass.errors import EncodeError

_JSON_SCALARS = frozenset((str, int, float, bool, type(None)))
_BINARY = (bytes, bytearray, memoryview)
_TEXTUAL = (datetime, date, time, timedelta, UUID, Decimal)
_SCALARS = frozenset((*_JSON_SCALARS, *_BINARY, *_TEXTUAL))
_ORDERED_SETS = (collections.abc.KeysView, collections.abc.ItemsView, collections.abc.Sequence)
"""Kinds of `collections.abc.Set` that have their iteration order as part of the value."""
_STR = frozenset((str,))

_encode_finite = json.JSONEncoder(allow_nan=False).encode


class JsonEncoder:
    """An encoder of values to JSON. `simplify` converts a value of a class that JSON does not support by one step, or raises
    `NotImplementedError`.
    """

    def __init__(self, simplify: Callable[[Any], Any]) -> None:
        self._simplify = simplify
        self._write = msgspec.json.Encoder(enc_hook=self._hook).encode

    def encode(self, value: Any) -> bytes:
        """Return a value as JSON. Raise `EncodeError` with the value's type and path."""
        try:
            data = self._write(value)
        except Exception:
            return self._encode_plain(value)
        if type(value) in _JSON_SCALARS and type(value) is not float:
            return data
        # `find`, because `in` first tries to convert its operand to an integer, and that raises and swallows an exception.
        if _needs_care(value) or (data.find(b"null") >= 0 and self._has_non_finite(value)):
            return self._encode_plain(value)
        return data

    def plain(self, value: Any, path: str = "$", above: tuple[int, ...] = ()) -> Any:
        """Return the value as str, int, float, bool, None, list and dict. `above` contains the ids of the containers around
        the value.

        Accept values that msgspec rejects (keys that are not strings, NaN), and sort sets by the JSON text of their members.
        For an invalid value, raise an error with its type and path. The value itself is never changed.
        """
        cls = type(value)
        if cls in _JSON_SCALARS:
            return value
        if id(value) in above:
            raise EncodeError(f"{cls.__name__} at {path} contains itself")
        inside = (*above, id(value))
        if isinstance(value, _BINARY):
            return base64.b64encode(value).decode("ascii")
        if isinstance(value, enum.Enum):
            return self.plain(value.value, path, inside)
        if isinstance(value, _TEXTUAL):
            return msgspec.to_builtins(value)
        if isinstance(value, dict):
            return self._plain_dict(value, path, inside)
        if isinstance(value, (set, frozenset)):
            return _sort_members([self.plain(item, f"{path}[...]", inside) for item in value], _json_text)
        if isinstance(value, (list, tuple)):
            return [self.plain(item, f"{path}[{index}]", inside) for index, item in enumerate(value)]
        if (fields := _fields(value)) is not None:
            return self._plain_record(fields, value, path, inside)
        try:
            simpler = self._simplify(value)
        except NotImplementedError:
            raise EncodeError(_unsupported(value, path)) from None
        return self.plain(simpler, path, inside)

    def _hook(self, value: Any) -> Any:
        simpler = self._simplify(value)
        return self.plain(simpler) if _needs_care(simpler) else simpler

    def _encode_plain(self, value: Any) -> bytes:
        try:
            return json.dumps(self.plain(value), separators=(",", ":")).encode("ascii")
        except EncodeError:
            raise
        except RecursionError:
            raise EncodeError(f"{type(value).__name__} is nested too deeply for JSON") from None
        except Exception as error:
            raise EncodeError(f"{type(value).__name__} cannot be encoded as JSON: {error}") from error

    def _has_non_finite(self, value: Any) -> bool:
        """Whether a `null` in the encoded value may stand for NaN or infinity. Checked with the standard
        library's C encoder, which can reject them.
        """
        try:
            _encode_finite(msgspec.to_builtins(value, enc_hook=self._hook, str_keys=True))
        except Exception:
            return True
        return False

    def _plain_record(self, fields: dict[str, Any], value: Any, path: str, inside: tuple[int, ...]) -> Any:
        result = {name: self.plain(field, f"{path}.{name}", inside) for name, field in fields.items()}
        if isinstance(value, msgspec.Struct) and value.__struct_config__.array_like:
            return list(result.values())
        return result

    def _plain_dict(self, value: dict[Any, Any], path: str, inside: tuple[int, ...]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, item in value.items():
            text = _key(key, path)
            if text in result:
                raise EncodeError(f"two keys of the dict at {path} become the same str in JSON")
            result[text] = self.plain(item, f"{path}[...]", inside)
        return result


def encode_model(model: Any) -> bytes:
    """Return a pydantic model as JSON, with sets in sorted order."""
    data = model_to_json(model)
    if data.find(b"[") < 0:
        return data
    ordered = sort_sets(model)
    if ordered is not model:
        data = model_to_json(ordered)
    dumped = _model_to_python(ordered)
    if not _holds_set(dumped):
        return data
    return json.dumps(
        _sort_like(json.loads(data), dumped), separators=(",", ":"), ensure_ascii=False
    ).encode()


def _pydantic_to_plain(model: Any) -> Any:
    ordered = sort_sets(model)
    plain, dumped = pydantic_to_plain(ordered), _model_to_python(ordered)
    return _sort_like(plain, dumped) if _holds_set(dumped) else plain


def _model_to_python(model: Any) -> Any:
    """Return a model as builtin values. Sets remain sets. The author's serializers and computed fields may create sets that
    are in no field. Return None if the author's serializers only support JSON.
    """
    try:
        return model_to_python(model)
    except Exception:
        return None


def _sort_like(plain: Any, dumped: Any) -> Any:
    """Return the JSON data `plain` with lists sorted wherever `dumped`, the same value in Python, has a set."""
    if isinstance(plain, list):
        if isinstance(dumped, (set, frozenset)):
            return _sort_members(plain, _json_text)
        if isinstance(dumped, (list, tuple)) and len(plain) == len(dumped):
            return [_sort_like(item, like) for item, like in zip(plain, dumped, strict=True)]
    if isinstance(plain, dict) and isinstance(dumped, dict) and len(plain) == len(dumped):
        pairs = zip(plain.items(), dumped.values(), strict=True)
        return {key: _sort_like(item, like) for (key, item), like in pairs}
    return plain


def simplify(value: Any) -> Any:
    """Convert a value of a class that JSON does not support by one step. Raise `NotImplementedError` if that is impossible.

    The order of the checks matters, because enums may be ints, and models and messages are iterable.
    """
    if isinstance(value, (type, collections.abc.Iterator)):
        # An iterator can be read only once. Encoding it twice, as verification does, would give two different results.
        raise NotImplementedError(f"{type(value).__name__} cannot be represented in JSON")
    if isinstance(value, enum.Enum):
        return value.value
    if is_message(value):
        return message_to_plain(value)
    if is_pydantic_type(type(value)):
        return _pydantic_to_plain(value) if is_model(type(value)) else pydantic_to_plain(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, collections.abc.Set) and not isinstance(value, _ORDERED_SETS):
        return set(value)
    if isinstance(value, collections.abc.Iterable):
        return list(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be represented in JSON")


def _needs_care(value: Any) -> bool:
    """Whether the value contains, at any depth, a set, an `OrderedDict`, or a dict with a key that is not a string.

    The search proceeds level by level and class by class, so that most of the work is done in C. Objects of types that
    msgspec does not support are not inspected, because the hook converts them.
    """
    level: list[Any] = [value]
    while classes := set(map(type, level)) - _SCALARS:
        below: list[Any] = []
        cls: Any
        for cls in classes:
            items: list[Any] = [item for item in level if type(item) is cls]
            if issubclass(cls, (set, frozenset, collections.OrderedDict)):
                return True
            if issubclass(cls, dict):
                if not _STR.issuperset(map(type, chain.from_iterable(map(dict.keys, items)))):
                    return True
                below += chain.from_iterable(map(dict.values, items))
            elif issubclass(cls, (list, tuple)):
                below += chain.from_iterable(items)
            elif issubclass(cls, enum.Enum):
                below += [item.value for item in items]
            elif names := _field_names(cls):
                below += [getattr(item, name, None) for item in items for name in names]
        level = below
    return False


def _sort_members(members: list[Any], text: Callable[[Any], Any]) -> list[Any]:
    """Return the members of a set in an order that is the same in every process."""
    classes = set(map(type, members))
    if classes == {str} or classes == {int}:
        return sorted(members)
    # Not by `<`, because that is not a total order in every class: of two frozensets, neither may be less than the other.
    return sorted(members, key=text)


def _json_text(item: Any) -> str:
    return json.dumps(item, sort_keys=True)


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a record under their JSON names; None for all other values."""
    if isinstance(value, msgspec.Struct):
        pairs = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        fields = {wire: getattr(value, name) for wire, name in pairs}
        config = value.__struct_config__
        if config.tag is not None and config.tag_field is not None:
            fields = {config.tag_field: config.tag, **fields}
        return {name: field for name, field in fields.items() if field is not msgspec.UNSET}
    if is_pydantic_type(type(value)) or (names := _field_names(value.__class__)) is None:
        return None
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _key(key: Any, path: str) -> str:
    """Return a key of a dict as JSON text. Numbers, true, false and null are written as by `json.dumps`."""
    if isinstance(key, enum.Enum):
        key = key.value
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, (int, float)) or key is None:
        return json.dumps(key)
    if isinstance(key, _TEXTUAL):
        return str(msgspec.to_builtins(key))
    raise EncodeError(
        f"a key of the dict at {path} is of type {type(key).__name__}: keys must be str in JSON"
    )


def _unsupported(value: Any, path: str) -> str:
    if isinstance(value, collections.abc.Iterator) and not isinstance(value, io.IOBase):
        return f"{type(value).__name__} at {path} can be iterated only once: convert it to a list"
    cls = value.__name__ if isinstance(value, type) else type(value).__name__
    what = f"the class {cls}" if isinstance(value, type) else f"an object of class {cls}"
    return f"{what} at {path} cannot be represented in JSON: {_instead(value)}"


def _instead(value: Any) -> str:
    """Return advice for a value without a JSON form. Only its class is inspected."""
    cls = type(value)
    if isinstance(value, os.PathLike):
        return "pass str(path), and convert it to a Path where it is used"
    if isinstance(value, io.IOBase):
        return "an open file cannot be sent, so pass its path"
    if isinstance(value, BaseException):
        return "pass the information that is needed, such as str(error)"
    if hasattr(cls, "tolist"):
        return "pass value.tolist(), or a reference if the data is large"
    return "use a dataclass, or a custom converter"


class _SortedSet(set[Any]):
    """A set that iterates in sorted order. It is a subclass of set because serializers depend on the class.

    Pydantic serializes its models itself, with the author's own serializers. It receives a copy of the model with sets that
    iterate in sorted order, so that the serializers also see sorted sets.
    """

    in_order: list[Any]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.in_order)


class _SortedFrozenSet(frozenset[Any]):
    """A frozenset that iterates in sorted order."""

    in_order: list[Any]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.in_order)


def sort_sets(value: Any) -> Any:
    """Return a copy of the value with sets that iterate in sorted order, or the value itself if it contains no set. Used for
    values that pydantic encodes.
    """
    if not _holds_set(value):
        return value
    to_json = sys.modules["pydantic_core"].to_json
    return _sorted(value, functools.partial(to_json, fallback=repr))


def _holds_set(value: Any) -> bool:
    if isinstance(value, (set, frozenset)):
        return True
    if type(value) in _SCALARS:
        return False
    if isinstance(value, (dict, list, tuple, collections.deque)):
        items = value.values() if isinstance(value, dict) else value
        return not _SCALARS.issuperset(map(type, items)) and any(map(_holds_set, items))
    return any(_holds_set(getattr(value, name, None)) for name in _attribute_names(value))


def _sorted(value: Any, text: Callable[[Any], bytes]) -> Any:
    """Return a copy of the value with sets that iterate in the order of their members' text. Classes are preserved."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, (set, frozenset)):
        made = _SortedFrozenSet(value) if isinstance(value, frozenset) else _SortedSet(value)
        made.in_order = _sort_members([_sorted(member, text) for member in value], text)
        return made
    if isinstance(value, tuple):
        items = [_sorted(item, text) for item in value]
        make: Callable[[Any], Any] = getattr(value, "_make", tuple)
        return make(items)
    if isinstance(value, (dict, list, collections.deque)):
        copied: Any = copy.copy(value)
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            copied[key] = _sorted(item, text)
        return copied
    names = _attribute_names(value)
    if not names:
        return value
    copied = copy.copy(value)
    assign = msgspec.structs.force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
    for name in names:
        if hasattr(value, name):
            assign(copied, name, _sorted(getattr(value, name), text))
    return copied


def _attribute_names(record: Any) -> Iterable[str]:
    """Return the attribute names of a record or a pydantic model, and no names for other objects."""
    cls: Any = type(record)
    if (names := _field_names(cls)) is not None:
        return names
    if is_model(cls):
        # Besides its fields, a model may have extra values, and private ones that its own serializers read.
        return (*vars(record), "__pydantic_extra__", "__pydantic_private__")
    return ()


@functools.lru_cache(maxsize=1024)
def _field_names(cls: Any) -> tuple[str, ...] | None:
    """Return the field names of a struct, a dataclass or an attrs class; None for other classes."""
    if issubclass(cls, msgspec.Struct):
        return tuple(cls.__struct_fields__)
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    attributes = getattr(cls, "__attrs_attrs__", None)
    return None if attributes is None else tuple(attribute.name for attribute in attributes)


encode_json = JsonEncoder(simplify).encode
"""Return a value as JSON. Raise `EncodeError` with the value's type and path."""
