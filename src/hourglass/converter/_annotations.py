"""Annotations of a function to types: strings, classes local to a function, wrapped and partial functions.

An annotation that cannot be resolved is Any for its own parameter and harms no other. Names are looked up
where Python would: the function's globals, its closure, and the scopes around its definition, of which only
the names that its annotations use are kept, and only while the definition runs are they to be had.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

_NOTHING_TO_CHECK = (typing.NoReturn, typing.Never, getattr(typing, "Self", None))


def innermost(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that an author wrote, below partials, wrappers, bound methods and callable objects."""
    while True:
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif (wrapped := getattr(fn, "__wrapped__", None)) is not None:
            fn = wrapped
        elif isinstance(fn, types.MethodType):
            fn = fn.__func__
        elif isinstance(fn, type):
            return fn.__init__  # type: ignore[misc,no-any-return]
        elif not isinstance(fn, types.FunctionType) and isinstance(
            call := getattr(type(fn), "__call__", None),  # noqa: B004
            types.FunctionType,
        ):
            return call
        else:
            return fn


def scope_of(fn: Callable[..., Any], frame: types.FrameType | None) -> dict[str, Any]:
    """The names that a function's string annotations need, as found around its definition."""
    wanted = _names_in(getattr(fn, "__annotations__", {}))
    own = getattr(fn, "__globals__", None)
    if not wanted or own is None:
        return {}
    found = _closure(fn, wanted)
    while frame is not None and len(found) < len(wanted):
        if frame.f_globals is own and frame.f_locals is not own:
            names = frame.f_locals
            found.update({name: names[name] for name in wanted - found.keys() if name in names})
        frame = frame.f_back
    return found


def _closure(fn: Callable[..., Any], wanted: frozenset[str]) -> dict[str, Any]:
    try:
        cells = inspect.getclosurevars(fn).nonlocals
    except (TypeError, ValueError):
        return {}
    return {name: value for name, value in cells.items() if name in wanted}


def _names_in(annotations: Mapping[str, Any]) -> frozenset[str]:
    """Every name that a string annotation mentions."""
    names: set[str] = set()
    for annotation in annotations.values():
        if isinstance(annotation, str):
            try:
                tree = ast.parse(annotation, mode="eval")
            except SyntaxError:
                continue
            names.update(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return frozenset(names)


def resolve(annotation: Any, fn: Callable[..., Any], scope: Mapping[str, Any]) -> Any:
    """One annotation as a type; Any where there is none, or none that can be resolved."""
    if annotation is inspect.Parameter.empty:
        return Any
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        resolved = typing.get_type_hints(
            holder, getattr(fn, "__globals__", {}), dict(scope), include_extras=True
        )["it"]
    except Exception:  # a name that exists for type checkers only, or anything an annotation can raise
        return Any
    return Any if resolved in _NOTHING_TO_CHECK or _is_variadic(resolved) else resolved


def _is_variadic(hint: Any) -> bool:
    """`*args: P.args` and `*args: *Ts`: what a decorator passes on, of any type."""
    return isinstance(hint, (typing.ParamSpecArgs, typing.TypeVarTuple)) or (
        typing.get_origin(hint) is typing.Unpack
    )
