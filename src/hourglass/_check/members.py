"""What classes of the project are made of: what they inherit, what stands in their bodies, what methods put on `self`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from hourglass._check.hints import value_of
from hourglass._check.values import Class, Func, Value

if TYPE_CHECKING:
    from hourglass._check.resolving import Resolver

Values: TypeAlias = tuple[Value, ...]
_Assignment: TypeAlias = tuple[ast.FunctionDef, ast.expr | None, ast.expr | None]
"""A method, and value and annotation of what it assigns to an attribute."""


class Members:
    """Answers about classes; remembers their attributes."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._attributes: dict[ast.ClassDef, dict[str, list[_Assignment]]] = {}

    def bases(self, cls: Class) -> list[Class]:
        """The class and those of the project that it inherits from, nearest first."""
        found: list[Class] = []
        todo = [cls]
        while todo:
            each = todo.pop(0)
            if any(each.node is known.node for known in found):
                continue
            found.append(each)
            for base in each.node.bases:
                bare = base.value if isinstance(base, ast.Subscript) else base
                todo += [
                    value for value in self._resolver.values(bare, each.scope) if isinstance(value, Class)
                ]
        return found

    def inherited(self, cls: Class, name: str, receiver: Class) -> Values:
        """What a class or one that it inherits from has under a name in its body; methods are bound to `receiver`."""
        for each in self.bases(cls):
            scope = each.module.scope_of_class(each.node, each.scope)
            if name in scope.names:
                found = self._resolver.lookup(name, scope)
                return tuple(
                    Func(value.module, value.node, value.scope, receiver)
                    if isinstance(value, Func)
                    else value
                    for value in found
                )
        return ()

    def assigned(self, cls: Class, name: str) -> Values:
        """What methods assign to an attribute of `self`."""
        found: list[Value] = []
        for each in self.bases(cls):
            scope = each.module.scope_of_class(each.node, each.scope)
            for method, value, annotation in self._own_attributes(each).get(name, ()):
                inner = each.module.scope_of_function(method, scope)
                if annotation is not None:
                    found.append(value_of(self._resolver, annotation, inner))
                elif value is not None:
                    found += self._resolver.values(value, inner, cls)
        return tuple(found)

    def _own_attributes(self, cls: Class) -> dict[str, list[_Assignment]]:
        if cls.node not in self._attributes:
            found: dict[str, list[_Assignment]] = {}
            for method in cls.node.body:
                for name, assignment in (
                    _self_assignments(method) if isinstance(method, ast.FunctionDef) else ()
                ):
                    found.setdefault(name, []).append(assignment)
            self._attributes[cls.node] = found
        return self._attributes[cls.node]


def _self_assignments(method: ast.FunctionDef) -> Iterator[tuple[str, _Assignment]]:
    """Each assignment to an attribute of `self` in a method."""
    for node in ast.walk(method):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if name := _own_attribute(target):
                        yield name, (method, value, None)
            case ast.AnnAssign(target=target, value=bound, annotation=annotation):
                if name := _own_attribute(target):
                    yield name, (method, bound, annotation)
            case _:
                pass


def _own_attribute(node: ast.expr) -> str:
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
        case _:
            return ""
