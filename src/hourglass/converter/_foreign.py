"""Values of libraries that we support but never load: protobuf messages and pydantic models.

A value or type of theirs at hand means that its author has imported the library, so we look in
`sys.modules` and at the classes themselves. Nothing here is found by a name that came over the wire.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from hourglass.converter._hints import bare, is_union, type_name
from hourglass.converter._mismatch import Mismatch, ValuePath

# --- protobuf -------------------------------------------------------------------------------------


def is_message(value: object) -> bool:
    """Whether this is a protobuf message."""
    module = sys.modules.get("google.protobuf.message")
    return module is not None and isinstance(value, module.Message)


def message_class(hint: Any) -> Any:
    """The protobuf message class that a hint asks for, also through Optional; else None."""
    module = sys.modules.get("google.protobuf.message")
    if module is None:
        return None
    hint = bare(hint)
    if is_union(hint):
        found = [cls for member in hint.__args__ if (cls := message_class(member)) is not None]
        return found[0] if len(found) == 1 else None
    return hint if isinstance(hint, type) and issubclass(hint, module.Message) else None


def message_name(message: Any) -> str:
    """The full name of a message's type, or of a message class."""
    return str(message.DESCRIPTOR.full_name)


def message_to_plain(message: Any) -> Any:
    """A message in protobuf's JSON mapping, as builtin values."""
    from google.protobuf import json_format

    return json_format.MessageToDict(message)


def message_from_plain(value: Any, cls: Any, path: ValuePath | str) -> Any:
    """A message out of protobuf's JSON mapping."""
    from google.protobuf import json_format

    try:
        return json_format.ParseDict(value, cls())
    except Exception:  # ParseError quotes the content, and other kinds of errors leak through
        raise Mismatch(f"not a {message_name(cls)} in protobuf's JSON form", path) from None


def message_from_binary(data: bytes, cls: Any) -> Any:
    """A message out of protobuf's binary form."""
    try:
        return cls.FromString(data)
    except Exception:
        raise Mismatch(f"not a {message_name(cls)} in protobuf's binary form") from None


# --- pydantic -------------------------------------------------------------------------------------


def is_model(cls: Any) -> bool:
    """Whether this class is a pydantic model, or one of pydantic's dataclasses."""
    return "pydantic" in sys.modules and isinstance(cls, type) and hasattr(cls, "__pydantic_validator__")


def is_pydantic_type(cls: Any) -> bool:
    """Whether this is a model, or a type that pydantic itself brings, such as `SecretStr` or `AnyUrl`."""
    if "pydantic" not in sys.modules or not isinstance(cls, type):
        return False
    return hasattr(cls, "__pydantic_validator__") or cls.__module__.partition(".")[0] in (
        "pydantic",
        "pydantic_core",
    )


def model_to_json(model: Any) -> bytes:
    """A model as JSON, under its aliases: these are the names that validation wants back."""
    return bytes(type(model).__pydantic_serializer__.to_json(model, by_alias=True))


def pydantic_to_plain(value: Any) -> Any:
    """A model, or a value of a type that pydantic brings, as builtin values."""
    cls = type(value)
    if hasattr(cls, "__pydantic_serializer__"):
        return cls.__pydantic_serializer__.to_python(value, mode="json", by_alias=True)
    return sys.modules["pydantic"].TypeAdapter(cls).dump_python(value, mode="json", by_alias=True)


def model_from_json(data: bytes, cls: Any, path: ValuePath | str = "$") -> Any:
    """A value of a pydantic type out of JSON, in pydantic's JSON mode."""
    errors: tuple[type[Exception], ...] = (sys.modules["pydantic_core"].ValidationError,)
    try:
        if hasattr(cls, "__pydantic_validator__"):
            return cls.__pydantic_validator__.validate_json(data)
        return sys.modules["pydantic"].TypeAdapter(cls).validate_json(data)
    except errors as error:
        # From None: the error's own text quotes the input.
        raise Mismatch(*_summary(error, cls, path)) from None


def model_from_plain(value: Any, cls: Any, path: ValuePath | str) -> Any:
    """A value of a pydantic type out of decoded JSON; through text, from which strict models accept more."""
    return model_from_json(json.dumps(value).encode(), cls, path)


def _summary(error: Any, cls: type, path: ValuePath | str) -> tuple[str, str]:
    """The first complaint without the input that caused it, and its place."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    more = "" if error.error_count() == 1 else f" (and {error.error_count() - 1} more)"
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"not a valid {type_name(cls)}: {first['msg']}{more}", f"{path}{place}"
