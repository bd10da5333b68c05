"""The rules about single statements: `if` and `while`, `for`, `try`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeAlias

from hourglass._tools.lint import rules
from hourglass._tools.lint.analysis import Analysis
from hourglass._tools.lint.order import changed_meanwhile
from hourglass._tools.lint.scopes import NameScope
from hourglass._tools.lint.values import Class, External, Func

Broken: TypeAlias = tuple[str, ast.AST, str]
"""A broken rule: its code, the node, and a message."""

_DECIDED_BY_PROCESS = (
    "hourglass.workflow.is_replaying",
    "logging.Logger.isEnabledFor",
    "logging.Logger.getEffectiveLevel",
    "hourglass.workflow.logger.isEnabledFor",
)

_WRAPPED_IN = {
    "activity": ("an activity", "an ActivityError"),
    "workflow": ("a child workflow", "a ChildWorkflowError"),
}


class StatementRules:
    """The rules about the statements of a function."""

    def __init__(
        self, analysis: Analysis, function: Func, scope: NameScope, receiver: Class | None, *, is_async: bool
    ) -> None:
        self._analysis = analysis
        self._function = function
        self._scope = scope
        self._receiver = receiver
        self._is_async = is_async

    def broken(self, node: ast.AST) -> Iterator[Broken]:
        """Yield the rules that a statement breaks."""
        match node:
            case ast.If() | ast.While():
                return self._branch(node)
            case ast.For():
                return self._loop(node)
            case ast.Try():
                return self._try(node)
            case _:
                return iter(())

    def _branch(self, node: ast.If | ast.While) -> Iterator[Broken]:
        for call in ast.walk(node.test):
            for name in self._externals(call.func) if isinstance(call, ast.Call) else ():
                inside = [*node.body, *node.orelse]
                if name in _DECIDED_BY_PROCESS and self._analysis.durable.issues_commands(
                    inside, self._scope, self._receiver
                ):
                    shown = name.removeprefix("hourglass.")
                    yield rules.REPLAY_BRANCH, call, f"{shown}() decides which commands the workflow issues"

    def _loop(self, node: ast.For) -> Iterator[Broken]:
        changed = changed_meanwhile(node, self._function, self._analysis.resolver, self._analysis.kinds)
        if changed is not None and self._analysis.durable.waits(node.body, self._scope, self._receiver):
            where = f"line {getattr(changed, 'lineno', 1)} changes during the wait"
            message = f"the loop waits in its body while it iterates over a collection that {where}"
            yield rules.CHANGED_MEANWHILE, node.iter, message

    def _try(self, node: ast.Try) -> Iterator[Broken]:
        for handler in self._analysis.catching.never_caught(
            node, self._scope, self._receiver, is_async=self._is_async
        ):
            by, wrapped = _WRAPPED_IN[handler.remote]
            message = f"the exception of {by} is the cause of {wrapped}, which `except {handler.name}` does not catch"
            yield rules.NEVER_CAUGHT, handler.node, message

    def _externals(self, node: ast.expr) -> Iterator[str]:
        values = self._analysis.resolver.values(node, self._scope, self._receiver)
        return (value.name for value in values if isinstance(value, External))
