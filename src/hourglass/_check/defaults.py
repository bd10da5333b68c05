"""Parameters whose default is a list, a dict or a set: one object, made once, that every call without that argument shares."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hourglass._check.scopes import Scope
from hourglass._check.sharing import MUTATORS

_CONTAINERS = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp


def default_changed(node: ast.AST, scope: Scope) -> Iterator[str]:
    """The parameters of a function whose shared default a statement or call changes itself."""
    name = _changed(node)
    if (
        name and name in _shared(scope) and len(scope.names.get(name, ())) == 1
    ):  # bound anew, it may be a copy
        yield name


def _changed(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in MUTATORS:
            return name
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))]):
            return name
        case ast.AugAssign(target=ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name))):
            return name
        case ast.Delete(targets=[ast.Subscript(value=ast.Name(id=name))]):
            return name
        case _:
            return ""


def _shared(scope: Scope) -> set[str]:
    node = scope.node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    given = node.args
    places = [*given.posonlyargs, *given.args]
    pairs = [
        *zip(reversed(places), reversed(given.defaults), strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return {parameter.arg for parameter, default in pairs if isinstance(default, _CONTAINERS)}
