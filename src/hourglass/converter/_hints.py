"""Type hints in terms of JSON: a hint's name, its wrapped type, the kind of JSON that it expects, and mismatches.

Pure functions of types, without payloads and encodings. This module also converts values of libraries that we support but
never import: protobuf messages and pydantic models. A value or type of a library exists only if the author has imported the
library, so we look in `sys.modules` and at the classes themselves. No lookup uses a name from a payload.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import json
import operator
import sys
import types
import typing
from typing import Annotated, Any, Final, Literal, NewType, TypeVar, Union

import msgspec

_LONGEST_PATH = 200


class ValuePath:
    """The position of a conversion within a value: `$.items[0].price`. The text is created only for messages.

    All positions of a conversion share `refused`, the values that match no member of a union. Without it, nested unions
    would try every combination of members for a bad value, and from 40 levels on this would never end.
    """

    __slots__ = ("_above", "_step", "refused")

    def __init__(self, above: ValuePath | None = None, step: str = "$") -> None:
        self._above = above
        self._step = step
        self.refused: dict[tuple[int, str] | None, Mismatch] = {} if above is None else above.refused

    def field(self, name: str) -> ValuePath:
        """Return the path of a field."""
        return ValuePath(self, f".{name}")

    def item(self, index: object) -> ValuePath:
        """Return the path of an item. Keys of dicts are contents, so the index of their items is shown as `...`."""
        return ValuePath(self, f"[{index}]")

    def __str__(self) -> str:
        steps: list[str] = []
        place: ValuePath | None = self
        while place is not None:
            steps.append(place._step)
            place = place._above
        return "".join(reversed(steps))


class Mismatch(ValueError):
    """A value does not match its type. `problem` mentions only types and shapes; `path` is the position.

    This is a `ValueError`, so that msgspec propagates it from its hooks.
    """

    def __init__(self, problem: str, path: ValuePath | str = "$") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = str(path)

    def __str__(self) -> str:
        return self.problem if self.path == "$" else f"{self.problem} at {self.path[:_LONGEST_PATH]}"


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
    """Return the JSON kind of a value for messages, without its contents."""
    return KINDS.get(type(value), type(value).__name__)


def type_name(hint: Any) -> str:
    """Return the name of a type, approximately as the author wrote it."""
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
    """Return the hint without wrappers that do not change the JSON form: Annotated, NewType, aliases, TypeVar."""
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
    """Whether values of the class become JSON objects with named fields."""
    return isinstance(origin, type) and (
        dataclasses.is_dataclass(origin)
        or typing.is_typeddict(origin)
        or issubclass(origin, msgspec.Struct)
        or hasattr(origin, "model_fields")
    )


def field_names(origin: Any) -> frozenset[str]:
    """Return the names of a record's fields in JSON."""
    if issubclass(origin, msgspec.Struct):
        return frozenset(origin.__struct_encode_fields__)
    if dataclasses.is_dataclass(origin):
        return frozenset(field.name for field in dataclasses.fields(origin))
    if hasattr(origin, "model_fields"):
        return frozenset(field.alias or name for name, field in origin.model_fields.items())
    return frozenset(origin.__required_keys__ | origin.__optional_keys__)


def expected_kinds(hint: Any) -> frozenset[str] | None:
    """Return the JSON kinds that values of this type are encoded to; None if any kind is possible."""
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
    """Return the types of a record's fields, with the parameters of a generic class filled in.

    Raise `NameError` for an annotation with a name that cannot be resolved in the class's module.
    """
    origin = typing.get_origin(hint)
    if origin is None:
        return _class_hints(hint)
    filled = dict(zip(origin.__parameters__, typing.get_args(hint), strict=False))
    return {name: _fill(field, filled) for name, field in _class_hints(origin).items()}


def _fill(hint: Any, filled: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return filled.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(filled.get(parameter, parameter) for parameter in parameters)]


def is_message(value: object) -> bool:
    """Whether this is a protobuf message."""
    module = sys.modules.get("google.protobuf.message")
    return module is not None and isinstance(value, module.Message)


def message_class(hint: Any) -> Any:
    """Return the protobuf message class that a hint requests, directly or through Optional; otherwise None."""
    module = sys.modules.get("google.protobuf.message")
    if module is None:
        return None
    hint = bare(hint)
    if is_union(hint):
        classes = [cls for member in hint.__args__ if (cls := message_class(member)) is not None]
        return classes[0] if len(classes) == 1 else None
    return hint if isinstance(hint, type) and issubclass(hint, module.Message) else None


def message_name(message: Any) -> str:
    """Return the full type name of a message or message class."""
    return str(message.DESCRIPTOR.full_name)


def message_to_plain(message: Any) -> Any:
    """Return a message in protobuf's JSON mapping, as builtin values. Keys are sorted, because the order of a map is
    undefined.
    """
    from google.protobuf import json_format

    return msgspec.to_builtins(json_format.MessageToDict(message), order="sorted")


def message_from_plain(value: Any, cls: Any, path: ValuePath | str) -> Any:
    """Return a message created from protobuf's JSON mapping."""
    from google.protobuf import json_format

    try:
        return json_format.ParseDict(value, cls())
    except Exception:  # ParseError quotes the content, and other errors may be raised, too
        raise Mismatch(f"not a {message_name(cls)} in protobuf's JSON form", path) from None


def message_from_binary(data: bytes, cls: Any) -> Any:
    """Return a message created from protobuf's binary form."""
    try:
        return cls.FromString(data)
    except Exception:
        raise Mismatch(f"not a {message_name(cls)} in protobuf's binary form") from None


def is_model(cls: Any) -> bool:
    """Whether this class is a pydantic model, or one of pydantic's dataclasses."""
    return "pydantic" in sys.modules and isinstance(cls, type) and hasattr(cls, "__pydantic_validator__")


def is_pydantic_type(cls: Any) -> bool:
    """Whether this is a model, or a type that pydantic itself defines, for example `SecretStr` or `AnyUrl`."""
    if "pydantic" not in sys.modules or not isinstance(cls, type):
        return False
    return hasattr(cls, "__pydantic_validator__") or cls.__module__.partition(".")[0] in (
        "pydantic",
        "pydantic_core",
    )


def model_to_json(model: Any) -> bytes:
    """Return a model as JSON. Fields are written under their aliases, as validation expects."""
    return bytes(type(model).__pydantic_serializer__.to_json(model, by_alias=True))


def model_to_python(model: Any) -> Any:
    """Return a model as builtin Python values. Sets remain sets."""
    return type(model).__pydantic_serializer__.to_python(model, by_alias=True)


def pydantic_to_plain(value: Any) -> Any:
    """Return a model, or a value of one of pydantic's types, as builtin values."""
    cls = type(value)
    if hasattr(cls, "__pydantic_serializer__"):
        return cls.__pydantic_serializer__.to_python(value, mode="json", by_alias=True)
    return sys.modules["pydantic"].TypeAdapter(cls).dump_python(value, mode="json", by_alias=True)


def model_from_json(data: bytes, cls: Any, path: ValuePath | str = "$") -> Any:
    """Return a value of a pydantic type, created from JSON in pydantic's JSON mode."""
    errors: tuple[type[Exception], ...] = (sys.modules["pydantic_core"].ValidationError,)
    try:
        if hasattr(cls, "__pydantic_validator__"):
            return cls.__pydantic_validator__.validate_json(data)
        return sys.modules["pydantic"].TypeAdapter(cls).validate_json(data)
    except errors as error:
        # `from None`, because the original message quotes the input.
        raise Mismatch(*_summary(error, cls, path)) from None


def model_from_plain(value: Any, cls: Any, path: ValuePath | str) -> Any:
    """Return a value of a pydantic type, created from decoded JSON. The value is converted to JSON text first, because
    strict models accept more from text."""
    return model_from_json(json.dumps(value).encode(), cls, path)


def _summary(error: Any, cls: type, path: ValuePath | str) -> tuple[str, str]:
    """Return the first validation error, without the input that caused it, and the error's path."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    more = "" if error.error_count() == 1 else f" (and {error.error_count() - 1} more)"
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"not a valid {type_name(cls)}: {first['msg']}{more}", f"{path}{place}"
