"""Where one function uses the order of a set. Remembers, on a walk from the outside in, where no order matters."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from hourglass._check import order


class Ordering:
    """Told of every node of a function, outer ones first; says which expressions are sets whose order is used, and how."""

    def __init__(self, is_set: Callable[[ast.expr], bool]) -> None:
        self.is_set = is_set
        self._free: set[ast.AST] = set()

    def at(self, node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
        """The sets whose order a node uses by what it is."""
        self._free.update(self._freed_by(node))
        for expression, how in order.ordered_by_syntax(node):
            if node not in self._free and self.is_set(expression):
                yield expression, how
        for expression, how in order.ordered_by_comprehension(node, self._free):
            if self.is_set(expression):
                yield expression, how

    def at_call(self, node: ast.Call, name: str) -> Iterator[tuple[ast.expr, str]]:
        """The sets whose order a function outside the project uses."""
        if name in order.INSENSITIVE or node in self._free:
            self._free.update(order.bare(node.args))
            return
        for expression, how in order.ordered_by_call(node, name):
            if self.is_set(expression):
                yield expression, how

    def _freed_by(self, node: ast.AST) -> Iterator[ast.AST]:
        match node:
            case ast.Set(elts=parts):
                yield from order.bare(parts)
            case ast.Call(func=ast.Attribute(value=owner), args=parts) if self.is_set(owner):
                yield from order.bare(parts)
            case ast.SetComp(generators=generators):
                yield from (each.iter for each in generators)
            case ast.GeneratorExp(generators=generators) | ast.ListComp(generators=generators):
                if node in self._free:
                    yield from (each.iter for each in generators)
            case ast.For(body=body) if order.only_collects(body, self.is_set):
                yield node
            case _:
                pass
