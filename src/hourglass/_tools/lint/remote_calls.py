"""Calls of activities and child workflows, as they appear in code."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Literal, TypeAlias

from hourglass._tools.lint.kinds import Kinds
from hourglass._tools.lint.values import Class, External, Func, Value, Values, words

Remote: TypeAlias = Literal["activity", "workflow"]
"""The kind of remote call: an activity or a child workflow."""

_ACTIVITIES = words("execute_activity execute_local_activity step")
_CHILDREN = words("execute_child_workflow")
_STARTS: dict[str, Remote] = {
    "start_activity": "activity",
    "start_local_activity": "activity",
    "start_step": "activity",
    "start_child_workflow": "workflow",
}


class RemoteCalls:
    """Recognizes remote calls. `values_of` returns the values of an expression at the current position of the walk."""

    def __init__(self, values_of: Callable[[ast.expr], Values], kinds: Kinds, *, is_async: bool) -> None:
        self._values_of = values_of
        self._kinds = kinds
        self._is_async = is_async

    def awaited(self, node: ast.Call) -> Remote | None:
        """Return the kind of remote call that this call waits for, or None if it may be a different call."""
        values = self._values_of(node.func)
        are_classes = any(isinstance(value, Class) for value in values)
        if all(map(self._kinds.is_boundary, values)) and not are_classes:
            return self.kind(values[0])
        names = {workflow_function(value) for value in values}
        if len(names) == 1:
            (name,) = names
            if self._is_async and "local" in name:
                return None  # the failure is not wrapped there
            if name in _ACTIVITIES:
                return "activity"
            if name in _CHILDREN:
                return "workflow"
        match node.func:
            case ast.Attribute(value=owner, attr="local") if not self._is_async:
                return self._boundary(owner)
            case ast.Call(func=ast.Attribute(value=owner, attr="options")):
                return self._boundary(owner)
            case _:
                return None

    def started(self, node: ast.expr) -> Remote | None:
        """Return the kind of remote call that an expression starts, or None."""
        if not isinstance(node, ast.Call):
            return None
        for value in self._values_of(node.func):
            if (remote := _STARTS.get(workflow_function(value))) is not None:
                return remote
        match node.func:
            case ast.Attribute(value=owner, attr="start" | "start_local"):
                return self._boundary(owner)
            case _:
                return None

    def is_copy(self, function: ast.expr) -> bool:
        """Whether a function is `charge.options`, a method that only returns a copy of an activity or workflow."""
        return (
            isinstance(function, ast.Attribute)
            and function.attr == "options"
            and self._boundary(function.value) is not None
        )

    def _boundary(self, owner: ast.expr) -> Remote | None:
        values = self._values_of(owner)
        return self.kind(values[0]) if all(map(self._kinds.is_boundary, values)) else None

    def kind(self, value: Value) -> Remote:
        """Return the kind of an activity or a workflow."""
        is_activity = isinstance(value, Func | Class) and "activity" in self._kinds.of(value)
        return "activity" if is_activity else "workflow"


def workflow_function(value: Value) -> str:
    """Return the name of a function of `hourglass.workflow`, or "" for all other values."""
    if isinstance(value, External) and value.name.startswith("hourglass.workflow."):
        return value.name.removeprefix("hourglass.workflow.")
    return ""
