"""The members of classes of a project: inherited names, names in class bodies, and attributes that methods assign to `self`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from hourglass._tools.lint.annotations import value_of
from hourglass._tools.lint.values import Class, Func, Value, Values

if TYPE_CHECKING:
    from hourglass._tools.lint.resolving import ValueResolver

_Assignment: TypeAlias = tuple[ast.FunctionDef, ast.expr | None, ast.expr | None]
"""An assignment to an attribute: the method, the assigned value, and the annotation."""


class Members:
    """The members of classes. Attributes assigned to `self` are cached."""

    def __init__(self, resolver: ValueResolver) -> None:
        self._resolver = resolver
        self._attributes: dict[ast.ClassDef, dict[str, list[_Assignment]]] = {}

    def bases(self, cls: Class) -> list[Class]:
        """Return the class and its base classes in the project, nearest first."""
        result: list[Class] = []
        todo = [cls]
        while todo:
            current = todo.pop(0)
            if any(current.node is visited.node for visited in result):
                continue
            result.append(current)
            for base in current.node.bases:
                bare = base.value if isinstance(base, ast.Subscript) else base
                todo += [
                    value for value in self._resolver.values(bare, current.scope) if isinstance(value, Class)
                ]
        return result

    def inherited(self, cls: Class, name: str, receiver: Class) -> Values:
        """Return the values of a name in the body of a class or its base classes. Methods are bound to `receiver`."""
        for base in self.bases(cls):
            if name in base.body_scope.names:
                values = self._resolver.lookup(name, base.body_scope)
                return tuple(
                    replace(value, receiver=receiver) if isinstance(value, Func) else value
                    for value in values
                )
        return ()

    def assigned(self, cls: Class, name: str) -> Values:
        """Return the values that methods assign to an attribute of `self`."""
        result: list[Value] = []
        for base in self.bases(cls):
            for method, value, annotation in self._own_attributes(base).get(name, ()):
                inner = base.module.scope_of_function(method, base.body_scope)
                if annotation is not None:
                    result.append(value_of(self._resolver, annotation, inner))
                elif value is not None:
                    result += self._resolver.values(value, inner, cls)
        return tuple(result)

    def _own_attributes(self, cls: Class) -> dict[str, list[_Assignment]]:
        if cls.node not in self._attributes:
            assignments: dict[str, list[_Assignment]] = {}
            for method in cls.node.body:
                for name, assignment in (
                    _self_assignments(method) if isinstance(method, ast.FunctionDef) else ()
                ):
                    assignments.setdefault(name, []).append(assignment)
            self._attributes[cls.node] = assignments
        return self._attributes[cls.node]


def _self_assignments(method: ast.FunctionDef) -> Iterator[tuple[str, _Assignment]]:
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
