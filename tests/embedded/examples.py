"""Example values of any type that messages and stored data contain."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import inspect

T = TypeVar("T")


def filled(kind: Any, depth: int = 0) -> Any:
    """Return a value of a type in which every field is set."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            return cls(**{field.name: filled(field.type, depth + 1) for field in fields})
        case inspect.DataclassType(cls=cls, fields=fields):  # it checks its numbers
            small = {field.name: 7 for field in fields if isinstance(field.type, inspect.IntType)}
            rest = {field.name: filled(field.type, depth + 1) for field in fields if field.name not in small}
            return cls(**small, **rest)
        case inspect.UnionType(types=types):
            there = [kind for kind in types if not isinstance(kind, inspect.NoneType)]
            none = len(there) < len(types)
            return None if none and depth > 6 else filled(there[0], depth)
        case inspect.VarTupleType(item_type=item):
            return (filled(item, depth + 1),) if depth <= 6 else ()
        case inspect.DictType(key_type=key, value_type=value):
            return {filled(key): filled(value, depth + 1)}
        case inspect.EnumType(cls=cls):
            return list(cls)[-1]
        case inspect.FrozenSetType(item_type=item):
            return frozenset({filled(item)})
        case inspect.BytesType():
            return b"\x00\xff"
        case inspect.StrType():
            return "text\u2192"
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return 2**62
        case inspect.FloatType():
            return 1.5
        case inspect.AnyType():  # suppliers and services are objects of their own process; an embedded engine takes none
            return None
    raise AssertionError(kind)


def example(kind: type[T]) -> T:
    value: T = filled(inspect.type_info(kind))
    return value
