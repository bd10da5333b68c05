"""The value that an annotation describes: an object of a class, a set, or a container of them."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from hourglass._tools.lint.scopes import NameScope
from hourglass._tools.lint.values import SET, UNKNOWN, Class, External, Instance, Items, Value, words

if TYPE_CHECKING:
    from hourglass._tools.lint.resolving import ValueResolver

_SETS = words(
    "set frozenset typing.Set typing.FrozenSet typing.AbstractSet typing.MutableSet "
    "collections.abc.Set collections.abc.MutableSet"
)
_WRAPPERS = words(
    "typing.Optional typing.Annotated typing.Final typing.ClassVar typing.Required "
    "typing.NotRequired dataclasses.InitVar"
)
_CONTAINERS = words(
    "list tuple collections.deque typing.List typing.Tuple typing.Sequence typing.Iterable "
    "typing.Iterator typing.Collection collections.abc.Sequence collections.abc.Iterable "
    "collections.abc.Iterator collections.abc.Collection"
)
_MAPPINGS = words(
    "dict collections.defaultdict collections.OrderedDict typing.Dict typing.Mapping "
    "typing.MutableMapping collections.abc.Mapping collections.abc.MutableMapping"
)
_TYPES = frozenset({"type", "typing.Type"})


def value_of(resolver: ValueResolver, node: ast.expr, scope: NameScope) -> Value:
    """Return the value that an annotation describes."""
    match node:
        case ast.Constant(value=str(text)):
            return _quoted(resolver, text, scope)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _first_known(value_of(resolver, left, scope), value_of(resolver, right, scope))
        case ast.Subscript(value=owner, slice=inside):
            return _subscripted(resolver, owner, inside, scope)
        case ast.Name() | ast.Attribute():
            return _named(resolver, node, scope)
        case _:
            return UNKNOWN


def _quoted(resolver: ValueResolver, text: str, scope: NameScope) -> Value:
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return UNKNOWN
    return UNKNOWN if isinstance(parsed, ast.Constant) else value_of(resolver, parsed, scope)


def _named(resolver: ValueResolver, node: ast.expr, scope: NameScope) -> Value:
    for value in resolver.values(node, scope):
        match value:
            case Class():
                return Instance(value)
            case External(name) if name in _SETS:
                return SET
            case External(name) if name[:1].isupper() or "." in name:
                return value
            case _:
                pass
    return UNKNOWN


def _subscripted(resolver: ValueResolver, owner: ast.expr, inside: ast.expr, scope: NameScope) -> Value:
    for outer in resolver.values(owner, scope):
        parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        match outer:
            case External(name) if name in _SETS:
                return SET
            case External(name) if name in _WRAPPERS and parts:
                return value_of(resolver, parts[0], scope)
            case External("typing.Union"):
                return _first_known(*(value_of(resolver, part, scope) for part in parts))
            case External(name) if name in _CONTAINERS and parts:
                return Items((value_of(resolver, parts[0], scope),))
            case External(name) if name in _MAPPINGS and parts:
                return Items((value_of(resolver, parts[-1], scope),))
            case External(name) if name in _TYPES and parts:
                described = value_of(resolver, parts[0], scope)
                return described.cls if isinstance(described, Instance) else UNKNOWN
            case Class():
                return Instance(outer)
            case _:
                pass
    return UNKNOWN


def _first_known(*values: Value) -> Value:
    return next((value for value in values if value not in (UNKNOWN, External("None"))), UNKNOWN)
