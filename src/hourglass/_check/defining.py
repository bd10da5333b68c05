"""Every function and class of a module, and the walk over a function's own nodes: all of them, or those on given
lines.

Most of a project is no workflow code: so nothing here looks at expressions, and names are collected only of what is needed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

from hourglass._check.modules import Module
from hourglass._check.scopes import NameScope
from hourglass._check.values import Class, Func

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Definitions:
    """The functions and classes of modules, found once each."""

    def __init__(self) -> None:
        self._known: dict[Module, list[Func | Class]] = {}

    def of(self, module: Module) -> list[Func | Class]:
        """All of a module, at whatever depth, with the scope that each stands in."""
        if module not in self._known:
            self._known[module] = list(_definitions(module))
        return self._known[module]


def _definitions(module: Module) -> Iterator[Func | Class]:
    todo: list[tuple[ast.AST, Callable[[], NameScope], Class | None]] = [
        (module.tree, lambda: module.scope, None)
    ]
    while todo:
        node, scope_of, owner = todo.pop()
        for child in _statements(node):
            match child:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    scope = scope_of()
                    yield Func(module, child, scope, owner)
                    # Most functions define nothing: their names are not looked at before they are needed.
                    todo.append((child, partial(module.scope_of_function, child, scope), owner))
                case ast.ClassDef():
                    scope = scope_of()
                    cls = Class(module, child, scope)
                    yield cls
                    todo.append((child, partial(module.scope_of_class, child, scope), cls))
                case _:
                    if hasattr(child, "body") or hasattr(child, "cases"):
                        todo.append((child, scope_of, owner))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """The statements right inside of one; handlers and cases count as such."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        yield from getattr(node, name, ())


def own_nodes(node: ast.AST) -> list[ast.AST]:
    """Everything in a function that is not in a function or class inside of it."""
    nodes: list[ast.AST] = []
    todo = list(ast.iter_child_nodes(node))
    while todo:
        inner = todo.pop()
        nodes.append(inner)
        if not isinstance(inner, _NESTED):
            todo += ast.iter_child_nodes(inner)
    return nodes


def own_nodes_on(node: ast.AST, lines: list[int]) -> Iterator[ast.AST]:
    """Those of a function's own nodes that stand on some of these lines."""
    todo = [node]
    while todo:
        for child in ast.iter_child_nodes(todo.pop()):
            if is_on(child, lines):
                yield child
                if not isinstance(child, _NESTED):
                    todo.append(child)


def is_on(node: ast.AST, lines: list[int]) -> bool:
    """Whether some of these lines are a node's; what has no line may have any."""
    first = getattr(node, "lineno", None)
    if first is None:
        return True
    last = getattr(node, "end_lineno", first)
    return any(first <= line <= last for line in lines)
