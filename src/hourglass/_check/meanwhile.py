"""Loops that wait while they walk what others change: the collection, and who changes it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hourglass._check.kinds import Kinds
from hourglass._check.names import words
from hourglass._check.resolving import Resolver
from hourglass._check.values import Func

_RESIZING = words(
    "append appendleft extend insert remove pop popleft popitem clear add discard update setdefault"
)
_VIEWS = frozenset({"items", "values", "keys"})


def changed_meanwhile(loop: ast.For, function: Func, resolver: Resolver, kinds: Kinds) -> ast.AST | None:
    """The place where a handler or another task of the run changes what this loop walks; None if there is none."""
    collection = _collection(loop.iter)
    match collection:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return next(_by_others(name, function, resolver, kinds), None)
        case ast.Name(id=name):
            return next(_by_inner(name, function), None)
        case _:
            return None


def _collection(node: ast.expr) -> ast.expr:
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[]) if name in _VIEWS:
            return owner
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
            return _collection(inner)
        case _:
            return node


def _by_others(name: str, function: Func, resolver: Resolver, kinds: Kinds) -> Iterator[ast.AST]:
    """Handlers of the same object that change the attribute: other methods, and functions inside of this one."""
    if function.receiver is None:
        return
    for cls in resolver.members.bases(function.receiver):
        scope = cls.module.scope_of_class(cls.node, cls.scope)
        for method in cls.node.body:
            if (
                method is not function.node
                and kinds.is_handler_method(method, scope)
                and not _is_start(method)
            ):
                yield from _resizes(method, name, own=True)
    for inner in _inner_functions(function):
        yield from _resizes(inner, name, own=True)


def _is_start(method: ast.stmt) -> bool:
    return isinstance(method, ast.FunctionDef) and method.name == "__init__"


def _by_inner(name: str, function: Func) -> Iterator[ast.AST]:
    """Functions inside of this one that change its variable."""
    for inner in _inner_functions(function):
        bound = {each.arg for each in ast.walk(inner) if isinstance(each, ast.arg)}
        if name not in bound and not _assigns(inner, name):
            yield from _resizes(inner, name, own=False)


def _inner_functions(function: Func) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(function.node):
        if isinstance(node, ast.FunctionDef) and node is not function.node:
            yield node


def _assigns(function: ast.FunctionDef, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(function)
    )


def _resizes(function: ast.AST, name: str, *, own: bool) -> Iterator[ast.AST]:
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _RESIZING and _is(
                owner, name, own
            ):
                yield node
            case ast.Subscript(value=owner, ctx=ast.Store() | ast.Del()) if _is(owner, name, own):
                yield node
            case _:
                pass


def _is(node: ast.expr, name: str, own: bool) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=found):
            return own and found == name
        case ast.Name(id=found):
            return not own and found == name
        case _:
            return False
