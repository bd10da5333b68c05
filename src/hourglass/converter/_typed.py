"""The slow but thorough conversion of decoded JSON to typed values.

It is used if msgspec does not support a type (unions of several dataclasses, enums of mixed values, `InitVar`), or has
rejected a value. In the second case it accepts all values that Temporal's Python SDK accepts (1.0 for an int, a list of
numbers for bytes, every ISO datetime), or reports the mismatch precisely. Messages mention types, kinds and paths, but never
contents.

`convert` dispatches by a table of (predicate, handler). A handler receives the value, the hint, the hint's class and the
path. Each scalar class has its own rule, and reads values as Temporal's Python SDK writes them, without loss.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import enum
import typing
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from hourglass.converter._hints import (
    Mismatch,
    ValuePath,
    bare,
    expected_kinds,
    field_hints,
    field_names,
    is_pydantic_type,
    is_record,
    is_union,
    kind_of,
    message_class,
    message_from_plain,
    model_from_plain,
    type_name,
)


def unexpected(value: Any, hint: Any, path: ValuePath) -> Mismatch:
    """Return the error for a value of the wrong kind."""
    return Mismatch(f"expected {type_name(hint)}, got {kind_of(value)}", path)


def _none(value: Any, path: ValuePath) -> None:
    if value is not None:
        raise unexpected(value, type(None), path)


def _bool(value: Any, path: ValuePath) -> bool:
    if value is True or value is False:
        return bool(value)
    raise unexpected(value, bool, path)


def _int(value: Any, path: ValuePath) -> int:
    """Return an int, also from a float without a fraction (1.0), but not from a number with a fraction."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise unexpected(value, int, path)


def _float(value: Any, path: ValuePath) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise Mismatch("a number out of range", path) from None
    raise unexpected(value, float, path)


def _str(value: Any, path: ValuePath) -> str:
    if isinstance(value, str):
        return value
    raise unexpected(value, str, path)


def _bytes(value: Any, path: ValuePath) -> bytes:
    """Return bytes: unchanged, from base64 as in most languages, or from a list of numbers as in Temporal's Python SDK."""
    try:
        if isinstance(value, bytes):
            return value
        if isinstance(value, list):
            return bytes(value)
        return msgspec.convert(value, bytes)
    except (msgspec.ValidationError, ValueError, TypeError):
        raise unexpected(value, bytes, path) from None


def _datetime(value: Any, path: ValuePath) -> datetime:
    if not isinstance(value, str):
        raise unexpected(value, datetime, path)
    try:
        return msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        pass
    try:
        # Other spellings of ISO 8601, for example offsets with seconds. A plain date is not a datetime.
        return datetime.fromisoformat(value if len(value) > 10 else "no time")
    except ValueError:
        raise Mismatch("expected datetime, got a str that is not ISO 8601", path) from None


def _by_msgspec(cls: type) -> Callable[[Any, ValuePath], Any]:
    def read(value: Any, path: ValuePath) -> Any:
        try:
            return msgspec.convert(value, cls)
        except (msgspec.ValidationError, ValueError, TypeError, OverflowError):
            kind = f"an invalid {kind_of(value)}" if isinstance(value, str) else kind_of(value)
            raise Mismatch(f"expected {cls.__name__}, got {kind}", path) from None

    return read


SCALARS: dict[type, Callable[[Any, ValuePath], Any]] = {
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
"""The rule for each scalar class: a function of value and path. It raises `Mismatch`."""


Handler: TypeAlias = Callable[[Any, Any, Any, ValuePath], Any]


def convert(value: Any, hint: Any, path: ValuePath | None = None) -> Any:
    """Convert decoded JSON to a value of type `hint`. Raise Mismatch."""
    path = ValuePath() if path is None else path
    hint = bare(hint)
    if hint is Any:
        return value
    if is_union(hint):
        return _union(value, hint, path)
    origin = typing.get_origin(hint) or hint
    if origin is Literal:
        return _literal(value, hint, path)
    if not isinstance(origin, type):
        raise Mismatch(f"values cannot be decoded as {type_name(hint)}", path)
    if (scalar := SCALARS.get(origin)) is not None:
        return scalar(value, path)
    for question, handler in _HANDLERS:
        if question(origin):
            return handler(value, hint, origin, path)
    raise Mismatch(f"{type_name(hint)} has no fields that can be decoded from JSON: use a dataclass", path)


def _literal(value: Any, hint: Any, path: ValuePath) -> Any:
    for choice in typing.get_args(hint):
        wire = choice.value if isinstance(choice, enum.Enum) else choice
        if type(wire) is type(value) and wire == value:
            return choice
    raise Mismatch(f"expected {type_name(hint)}, got an invalid {kind_of(value)}", path)


def _union(value: Any, hint: Any, path: ValuePath) -> Any:
    """Convert to the best-matching member of a union. Members of the value's JSON kind come first, ordered by the similarity
    of their fields."""
    key = (id(value), str(hint)) if isinstance(value, (dict, list)) else None
    if key in path.refused:
        raise path.refused[key]
    members = sorted(typing.get_args(hint), key=lambda member: _distance(value, member))
    near = [member for member in members if kind_of(value) in (expected_kinds(member) or ())]
    complaint = unexpected(value, hint, path)
    for member in members:
        try:
            return convert(value, member, path)
        except Mismatch as mismatch:
            if near == [member]:
                complaint = mismatch
    if key is not None:
        path.refused[key] = complaint
    raise complaint


def _distance(value: Any, member: Any) -> tuple[int, int, int]:
    """Return how far a value is from a member: by its kind, then by unknown fields, then by missing fields."""
    kinds = expected_kinds(member)
    off = 1 if kinds is None else int(kind_of(value) not in kinds) * 2
    origin = typing.get_origin(bare(member)) or bare(member)
    if off or not isinstance(value, dict) or not is_record(origin):
        return (off, 0, 0)
    names = field_names(origin)
    return (off, len(value.keys() - names), len(names - value.keys()))


def _enum(value: Any, hint: Any, origin: Any, path: ValuePath) -> Any:
    for member in origin:
        if member.value == value and type(member.value) is type(value):
            return member
    try:
        # For combined flags, values encoded as lists, and enums with their own `_missing_`.
        return origin(tuple(value) if isinstance(value, list) else value)
    except (ValueError, TypeError):
        raise Mismatch(f"expected {type_name(hint)}, got an invalid {kind_of(value)}", path) from None


def _hints_of(hint: Any, path: ValuePath) -> dict[str, Any]:
    try:
        return field_hints(hint)
    except (NameError, AttributeError) as error:
        raise Mismatch(f"a type annotation of {type_name(hint)} cannot be resolved ({error})", path) from None


def _dataclass(value: Any, hint: Any, origin: Any, path: ValuePath) -> Any:
    if not isinstance(value, dict):
        raise unexpected(value, hint, path)
    hints = _hints_of(hint, path)
    arguments: dict[str, Any] = {}
    later: dict[str, Any] = {}
    for field in dataclasses.fields(origin):
        if field.name in value:
            converted = convert(value[field.name], hints[field.name], path.field(field.name))
            (arguments if field.init else later)[field.name] = converted
        elif field.init and field.default is field.default_factory is dataclasses.MISSING:
            raise Mismatch(f"{type_name(hint)}: field {field.name!r} is missing", path)
    try:
        made = origin(**arguments)
        for name, converted in later.items():
            object.__setattr__(made, name, converted)  # also works for frozen classes
    except Exception as error:
        raise Mismatch(f"{type_name(hint)} rejected its fields ({type(error).__name__})", path) from error
    return made


def _typed_dict(value: Any, hint: Any, origin: Any, path: ValuePath) -> Any:
    if not isinstance(value, dict):
        raise unexpected(value, hint, path)
    hints = _hints_of(hint, path)
    for name in origin.__required_keys__ - value.keys():
        raise Mismatch(f"{type_name(hint)}: key {name!r} is missing", path)
    return {name: convert(value[name], hints[name], path.field(name)) for name in hints if name in value}


def _named_tuple(value: Any, hint: Any, origin: Any, path: ValuePath) -> Any:
    if not isinstance(value, list):
        raise unexpected(value, hint, path)
    names = origin._fields
    if not len(names) - len(origin._field_defaults) <= len(value) <= len(names):
        raise Mismatch(f"expected {type_name(hint)}, got an array of length {len(value)}", path)
    hints = _hints_of(hint, path)
    pairs = enumerate(zip(names, value, strict=False))
    return origin(*(convert(item, hints.get(name, Any), path.item(index)) for index, (name, item) in pairs))


def _struct(value: Any, hint: Any, origin: Any, path: ValuePath) -> Any:
    """Convert a struct with msgspec, including renamed fields, tags and arrays."""
    try:
        return msgspec.convert(value, hint, str_keys=True, dec_hook=lambda inner, item: convert(item, inner))
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `$")
        if problem.startswith("Invalid enum value"):
            problem = "Invalid enum value"  # the rest of the message is content
        raise Mismatch(f"{type_name(hint)}: {problem}", str(path) + place.rstrip("`")) from None
    except TypeError as error:
        raise Mismatch(f"{type_name(hint)} cannot be decoded: {error}", path) from None


def _model(value: Any, hint: Any, origin: Any, path: ValuePath) -> Any:
    if isinstance(value, bytes):  # from `binary/plain`, because JSON has no bytes
        raise unexpected(value, hint, path)
    return model_from_plain(value, origin, path)


def _message(value: Any, hint: Any, origin: Any, path: ValuePath) -> Any:
    return message_from_plain(value, origin, path)


def _mapping(value: Any, hint: Any, origin: Any, path: ValuePath) -> Any:
    if not isinstance(value, dict):
        raise unexpected(value, hint, path)
    key_hint, item_hint = (*typing.get_args(hint), Any, Any)[:2]
    if origin is collections.Counter:
        item_hint = int
    inner = path.item("...")
    made = {_key(key, key_hint, path): convert(item, item_hint, inner) for key, item in value.items()}
    if issubclass(origin, collections.defaultdict):
        return origin(None, made)
    return origin(made) if issubclass(origin, dict) and origin is not dict else made


def _key(text: str, hint: Any, path: ValuePath) -> Any:
    """Return the key of a JSON object, a str, as its original type: a number, true, false or null."""
    hint = bare(hint)
    try:
        return convert(text, hint, path)
    except Mismatch as mismatch:
        kinds = expected_kinds(hint)
        try:
            value = msgspec.json.decode(text.encode())
        except (msgspec.DecodeError, UnicodeError):
            raise Mismatch(f"a key: {mismatch.problem}", path) from None
        if kinds is not None and kind_of(value) not in kinds and not is_union(hint):
            raise Mismatch(f"a key: {mismatch.problem}", path) from None
        return convert(value, hint, path)


def _tuple(value: Any, hint: Any, origin: Any, path: ValuePath) -> Any:
    if not isinstance(value, list):
        raise unexpected(value, hint, path)
    hints = typing.get_args(hint)
    if hint is origin or hints[-1:] == (Ellipsis,):
        item_hint = hints[0] if hints else Any
        return tuple(convert(item, item_hint, path.item(index)) for index, item in enumerate(value))
    if len(hints) != len(value):
        raise Mismatch(f"expected an array of length {len(hints)}, got {len(value)}", path)
    pairs = enumerate(zip(value, hints, strict=True))
    return tuple(convert(item, item_hint, path.item(index)) for index, (item, item_hint) in pairs)


def _items(value: Any, hint: Any, path: ValuePath) -> list[Any]:
    if not isinstance(value, list):
        raise unexpected(value, hint, path)
    item_hint = (*typing.get_args(hint), Any)[0]
    return [convert(item, item_hint, path.item(index)) for index, item in enumerate(value)]


def _set(value: Any, hint: Any, origin: Any, path: ValuePath) -> Any:
    items = _items(value, hint, path)
    try:
        return frozenset(items) if issubclass(origin, frozenset) else set(items)
    except TypeError:
        raise Mismatch(f"expected {type_name(hint)}, got unhashable items", path) from None


def _sequence(value: Any, hint: Any, origin: Any, path: ValuePath) -> Any:
    items = _items(value, hint, path)
    return collections.deque(items) if issubclass(origin, collections.deque) else items


def _subclass(value: Any, hint: Any, origin: Any, path: ValuePath) -> Any:
    """Convert to an author's own subclass of str, int or float."""
    base = next(cls for cls in (str, int, float) if issubclass(origin, cls))
    return origin(SCALARS[base](value, path))


def _is(*bases: type) -> Callable[[Any], bool]:
    return lambda origin: issubclass(origin, bases)


# In order, because special types are also instances of later types.
_HANDLERS: tuple[tuple[Callable[[Any], bool], Handler], ...] = (
    (is_pydantic_type, _model),
    (lambda origin: message_class(origin) is not None, _message),
    (_is(msgspec.Struct), _struct),
    (typing.is_typeddict, _typed_dict),
    (dataclasses.is_dataclass, _dataclass),
    (_is(enum.Enum), _enum),
    (lambda origin: issubclass(origin, tuple) and hasattr(origin, "_fields"), _named_tuple),
    (_is(Mapping), _mapping),
    (_is(tuple), _tuple),
    (_is(set, frozenset, collections.abc.Set), _set),
    (_is(str, int, float), _subclass),
    (_is(collections.abc.Iterable), _sequence),
)
