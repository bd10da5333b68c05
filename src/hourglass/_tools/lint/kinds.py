"""The kind of a function or class by its decorators, and the entry points of workflow code.

A decorator of the project that calls `workflow.defn` or `activity.defn` is treated like the decorator that it calls.
Activities and workflows are boundaries: their code is not part of the workflow that calls them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hourglass._tools.lint.defining import Definitions, own_nodes
from hourglass._tools.lint.modules import Module
from hourglass._tools.lint.resolving import Position, ValueResolver
from hourglass._tools.lint.scopes import NameScope
from hourglass._tools.lint.values import Class, External, Func, Value, words

Kind: TypeAlias = Literal["workflow", "activity", "handler", "cached", "property"]

_KINDS: dict[str, Kind] = {
    "hourglass.workflow.defn": "workflow",
    "hourglass.activity.defn": "activity",
    "hourglass.workflow.run": "handler",
    "hourglass.workflow.init": "handler",
    "hourglass.workflow.signal": "handler",
    "hourglass.workflow.query": "handler",
    "hourglass.workflow.update": "handler",
    "functools.cache": "cached",
    "functools.lru_cache": "cached",
    "functools.cached_property": "property",
    "property": "property",
}
_DEFINING = frozenset({"hourglass.workflow.defn", "hourglass.activity.defn"})


@dataclass(frozen=True, slots=True)
class Root:
    """An entry point of workflow code: a function, and the name displayed for it."""

    function: Func
    name: str
    is_async: bool = False  # the code runs on an event loop


class Kinds:
    """The kinds of functions and classes, computed on demand and cached."""

    def __init__(self, resolver: ValueResolver) -> None:
        self.definitions = Definitions()
        self._resolver = resolver
        self._known: dict[ast.AST, frozenset[Kind]] = {}

    def of(self, value: Func | Class) -> frozenset[Kind]:
        """Return the kinds that a function or class has because of its decorators."""
        node = value.node
        if isinstance(node, ast.Lambda):
            return frozenset()
        if node not in self._known:
            self._known[node] = frozenset(
                kind for decorator in node.decorator_list for kind in self._decorated(decorator, value.scope)
            )
        return self._known[node]

    def is_boundary(self, value: Value) -> bool:
        """Whether a call of the value runs an activity or a child workflow."""
        return isinstance(value, Func | Class) and not self.of(value).isdisjoint(("activity", "workflow"))

    def is_handler_method(self, method: ast.AST, scope: NameScope) -> bool:
        """Whether a method belongs to the workflow itself: run, init, a handler or a validator."""
        if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        return "handler" in self.of(Func(scope.module, method, scope))

    def decorators(self, function: Func) -> Iterator[Func]:
        """Yield the functions that decorators of the project return in place of a decorated function."""
        for expression in getattr(function.node, "decorator_list", ()):
            bare = expression.func if isinstance(expression, ast.Call) else expression
            for value in self._resolver.values(bare, function.scope):
                if isinstance(value, Func):
                    made = _returned_functions(value) if isinstance(expression, ast.Call) else [value]
                    for decorator in made:
                        yield from _returned_functions(decorator)

    def _decorated(self, node: ast.expr, scope: NameScope) -> Iterator[Kind]:
        if isinstance(node, ast.Attribute) and node.attr == "validator":
            yield "handler"
        bare = node.func if isinstance(node, ast.Call) else node
        for value in self._resolver.values(bare, scope):
            match value:
                case External(name) if name in _KINDS:
                    yield _KINDS[name]
                case Func():
                    yield from self._made_by(value)
                case _:
                    pass

    def _made_by(self, decorator: Func) -> Iterator[Kind]:
        """Yield the kinds that a decorator of the project assigns, determined by the functions that it calls."""
        scope = decorator.body_scope
        for node in ast.walk(decorator.node):
            if isinstance(node, ast.Attribute | ast.Name) and "defn" in (
                getattr(node, "attr", ""),
                getattr(node, "id", ""),
            ):
                for value in self._resolver.values(node, scope):
                    if isinstance(value, External) and value.name in _DEFINING:
                        yield _KINDS[value.name]

    def roots(self, module: Module) -> Iterator[Root]:
        """Yield every entry point of workflow code in a module."""
        for value in self.definitions.of(module):
            if "workflow" not in self.of(value):
                continue
            if isinstance(value, Func):
                yield Root(value, value.name, isinstance(value.node, ast.AsyncFunctionDef))
            else:
                yield from self._methods(value)
        if "defn" in module.text:
            yield from self._defined_by_call(module)

    def _methods(self, cls: Class) -> Iterator[Root]:
        """Yield the methods of a workflow class that are called from outside, including inherited ones."""
        methods: dict[str, Func] = {}
        for base in self._resolver.members.bases(cls):
            for method in base.node.body:
                if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name in methods:
                    continue
                if method.name in ("__init__", "__post_init__") or self.is_handler_method(
                    method, base.body_scope
                ):
                    methods[method.name] = Func(base.module, method, base.body_scope, cls)
        is_async = any(isinstance(base.node, ast.AsyncFunctionDef) for base in methods.values())
        for name, function in methods.items():
            yield Root(function, f"{cls.node.name}.{name}", is_async)

    def _defined_by_call(self, module: Module) -> Iterator[Root]:
        """Yield workflows defined by a call at module level: `workflow.defn(fn)` or `workflow.defn(name=…)(fn)`."""
        for statement in module.tree.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            for node in ast.walk(statement):
                if isinstance(node, ast.Call) and node.args and self._defines(node.func, module.scope):
                    for value in self._resolver.values(node.args[0], module.scope):
                        if isinstance(value, Func):
                            yield Root(value, value.name, isinstance(value.node, ast.AsyncFunctionDef))
                        elif isinstance(value, Class):
                            yield from self._methods(value)

    def _defines(self, node: ast.expr, scope: NameScope) -> bool:
        bare = node.func if isinstance(node, ast.Call) else node
        return External("hourglass.workflow.defn") in self._resolver.values(bare, scope)


def _returned_functions(function: Func) -> list[Func]:
    scope = function.body_scope
    nodes = own_nodes(function.node)
    returned = {
        statement.value.id
        for statement in nodes
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Name)
    }
    return [
        Func(function.module, node, scope, function.receiver)
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name in returned
    ]


_WAITING = frozenset(
    f"hourglass.workflow.{name}"
    for name in words(
        "sleep wait_condition wait wait_for gather map as_completed execute_activity "
        "execute_local_activity execute_child_workflow Channel.receive Task.result Lock.acquire "
        "Queue.get Queue.put Event.wait"
    )
) | {"hourglass.activity.Activity", "hourglass.activity.Activity.local"}
_ISSUING = (
    _WAITING
    | {
        f"hourglass.workflow.{name}"
        for name in words(
            "start_activity start_local_activity start_child_workflow spawn continue_as_new upsert_memo "
            "upsert_search_attributes uuid4 random patched"
        )
    }
    | {"hourglass.activity.Activity.start", "hourglass.activity.Activity.start_local"}
)
BY_REFERENCE = frozenset(
    f"hourglass.workflow.{name}"
    for name in words(
        "execute_activity start_activity execute_local_activity start_local_activity "
        "execute_child_workflow start_child_workflow continue_as_new"
    )
)
"""Functions with the name of an activity or workflow as the first argument. The named code runs elsewhere."""


class Durable:
    """Whether code issues commands or waits. Results are cached by function."""

    def __init__(self, resolver: ValueResolver, kinds: Kinds) -> None:
        self._resolver = resolver
        self._kinds = kinds
        self._known: dict[tuple[ast.AST, Class | None, bool], bool] = {}

    def issues_commands(self, nodes: Iterable[ast.AST], at: Position) -> bool:
        """Whether these statements issue commands."""
        return self._any(nodes, at, waiting=False)

    def waits(self, nodes: Iterable[ast.AST], at: Position) -> bool:
        """Whether handlers or other tasks of the run may run while these statements wait."""
        return self._any(nodes, at, waiting=True)

    def is_durable(self, call: ast.Call, at: Position) -> bool:
        """Whether a call is itself an activity, a child workflow or a primitive that issues a command."""
        return self._is_direct(call, at, waiting=False)

    def _any(self, nodes: Iterable[ast.AST], at: Position, *, waiting: bool) -> bool:
        return any(
            self._is_direct(inner, at, waiting=waiting)
            or any(
                self._function(value, waiting) for value in at.values(inner.func) if isinstance(value, Func)
            )
            for node in nodes
            for inner in (node, *own_nodes(node))
            if isinstance(inner, ast.Call)
        )

    def _is_direct(self, call: ast.Call, at: Position, *, waiting: bool) -> bool:
        names = _WAITING if waiting else _ISSUING
        for value in at.values(call.func):
            match value:
                case External(name) if name in names:
                    return True
                case Func() if self._kinds.is_boundary(value):
                    return True
                case _:
                    pass
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("start", "local", "start_local"):
            owners = at.values(call.func.value)
            return any(map(self._kinds.is_boundary, owners)) and (not waiting or call.func.attr == "local")
        return False

    def _function(self, function: Func, waiting: bool) -> bool:
        key = (function.node, function.receiver, waiting)
        if key not in self._known:
            self._known[key] = False  # stops the recursion for a function that calls itself
            at = Position.inside(function, self._resolver)
            self._known[key] = self._any(function.body, at, waiting=waiting)
        return self._known[key]
