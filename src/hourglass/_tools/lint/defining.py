"""Every function and class of a module, and the nodes of a function without its nested functions: all nodes, or only the
nodes on given lines.

Most code of a project is not workflow code. Therefore expressions are not searched here, and names are collected on demand.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

from hourglass._tools.lint.modules import Module
from hourglass._tools.lint.scopes import NameScope
from hourglass._tools.lint.values import Class, Func

_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Definitions:
    """The functions and classes of modules, cached by module."""

    def __init__(self) -> None:
        self._known: dict[Module, list[Func | Class]] = {}

    def of(self, module: Module) -> list[Func | Class]:
        """Return all functions and classes of a module, at any depth, with their scopes."""
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
                    # Most functions define no functions, so their names are collected only on demand.
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
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        yield from getattr(node, name, ())


def own_nodes(node: ast.AST) -> list[ast.AST]:
    """Return all nodes of a function except those of nested functions and classes."""
    nodes: list[ast.AST] = []
    todo = list(ast.iter_child_nodes(node))
    while todo:
        inner = todo.pop()
        nodes.append(inner)
        if not isinstance(inner, _NESTED):
            todo += ast.iter_child_nodes(inner)
    return nodes


def own_nodes_on(node: ast.AST, lines: list[int]) -> Iterator[ast.AST]:
    """Yield a function's own nodes on these lines."""
    todo = [node]
    while todo:
        for child in ast.iter_child_nodes(todo.pop()):
            if is_on(child, lines):
                yield child
                if not isinstance(child, _NESTED):
                    todo.append(child)


def is_on(node: ast.AST, lines: list[int]) -> bool:
    """Whether a node covers one of these lines. A node without a line number counts as covering them."""
    first = getattr(node, "lineno", None)
    if first is None:
        return True
    last = getattr(node, "end_lineno", first)
    return any(first <= line <= last for line in lines)
