"""Which calls are durable: those that ask the engine for something or wait, directly or in functions of the project
that they call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from hourglass._check.defining import own_nodes
from hourglass._check.kinds import Kinds
from hourglass._check.resolving import ValueResolver
from hourglass._check.scopes import NameScope
from hourglass._check.values import Class, External, Func, words

_WAITING = frozenset(
    f"hourglass.workflow.{name}"
    for name in words(
        "sleep wait_condition wait wait_for gather map as_completed execute_activity "
        "execute_local_activity execute_child_workflow Channel.receive Task.result Lock.acquire "
        "Queue.get Queue.put Event.wait"
    )
) | {"hourglass.activity.Activity", "hourglass.activity.Activity.local"}
_ASKING = (
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
"""Calls whose first argument names an activity or a workflow: it runs elsewhere."""


class Durable:
    """Answers whether code asks for something, or waits; remembers it by function."""

    def __init__(self, resolver: ValueResolver, kinds: Kinds) -> None:
        self._resolver = resolver
        self._kinds = kinds
        self._known: dict[tuple[ast.AST, Class | None, bool], bool] = {}

    def asks(self, nodes: Iterable[ast.AST], scope: NameScope, receiver: Class | None) -> bool:
        """Whether these statements ask the engine for anything."""
        return self._any(nodes, scope, receiver, waiting=False)

    def waits(self, nodes: Iterable[ast.AST], scope: NameScope, receiver: Class | None) -> bool:
        """Whether handlers or other tasks of the run get a turn while these statements run."""
        return self._any(nodes, scope, receiver, waiting=True)

    def is_durable(self, call: ast.Call, scope: NameScope, receiver: Class | None) -> bool:
        """Whether a call itself is one of an activity, a child workflow or a primitive that asks."""
        return self._is_direct(call, scope, receiver, waiting=False)

    def _any(
        self, nodes: Iterable[ast.AST], scope: NameScope, receiver: Class | None, *, waiting: bool
    ) -> bool:
        return any(
            self._is_direct(each, scope, receiver, waiting=waiting)
            or self._is_inside(each, scope, receiver, waiting)
            for node in nodes
            for each in (node, *own_nodes(node))
            if isinstance(each, ast.Call)
        )

    def _is_direct(self, call: ast.Call, scope: NameScope, receiver: Class | None, *, waiting: bool) -> bool:
        names = _WAITING if waiting else _ASKING
        for value in self._resolver.values(call.func, scope, receiver):
            match value:
                case External(name) if name in names:
                    return True
                case Func() if self._kinds.is_boundary(value):
                    return True
                case _:
                    pass
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("start", "local", "start_local"):
            owners = self._resolver.values(call.func.value, scope, receiver)
            return any(map(self._kinds.is_boundary, owners)) and (not waiting or call.func.attr == "local")
        return False

    def _is_inside(self, call: ast.Call, scope: NameScope, receiver: Class | None, waiting: bool) -> bool:
        for value in self._resolver.values(call.func, scope, receiver):
            if isinstance(value, Func) and self._function(value, waiting):
                return True
        return False

    def _function(self, function: Func, waiting: bool) -> bool:
        key = (function.node, function.receiver, waiting)
        if key not in self._known:
            self._known[key] = False  # while it is being looked into: a function that calls itself
            inner = function.module.scope_of_function(function.node, function.scope)
            body = [function.node.body] if isinstance(function.node, ast.Lambda) else function.node.body
            self._known[key] = self._any(body, inner, function.receiver, waiting=waiting)
        return self._known[key]
