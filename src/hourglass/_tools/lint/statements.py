"""The rules about single statements (`if` and `while`, `for`, `try`), and about workflows that call themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from hourglass._tools.lint import rules
from hourglass._tools.lint.catching import Catching
from hourglass._tools.lint.kinds import Durable, Kinds
from hourglass._tools.lint.order import changed_meanwhile
from hourglass._tools.lint.resolving import Position, ValueResolver
from hourglass._tools.lint.sharing import Sharing
from hourglass._tools.lint.values import External, Func

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


@dataclass(frozen=True)
class Analysis:
    """The analyses of a project that the walk through a function queries."""

    resolver: ValueResolver
    kinds: Kinds
    durable: Durable
    sharing: Sharing
    catching: Catching


@dataclass(frozen=True)
class StatementRules:
    """The rules about the statements of a function."""

    analysis: Analysis
    function: Func
    at: Position
    is_async: bool

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
            for name in self.at.externals(call.func) if isinstance(call, ast.Call) else ():
                inside = [*node.body, *node.orelse]
                if name in _DECIDED_BY_PROCESS and self.analysis.durable.issues_commands(inside, self.at):
                    shown = name.removeprefix("hourglass.")
                    yield rules.REPLAY_BRANCH, call, f"{shown}() decides which commands the workflow issues"

    def _loop(self, node: ast.For) -> Iterator[Broken]:
        changed = changed_meanwhile(node, self.function, self.analysis.resolver, self.analysis.kinds)
        if changed is not None and self.analysis.durable.waits(node.body, self.at):
            where = f"line {getattr(changed, 'lineno', 1)} changes during the wait"
            message = f"the loop waits in its body while it iterates over a collection that {where}"
            yield rules.CHANGED_MEANWHILE, node.iter, message

    def _try(self, node: ast.Try) -> Iterator[Broken]:
        for handler in self.analysis.catching.never_caught(node, self.at, is_async=self.is_async):
            by, wrapped = _WRAPPED_IN[handler.remote]
            message = f"the exception of {by} is the cause of {wrapped}, which `except {handler.name}` does not catch"
            yield rules.NEVER_CAUGHT, handler.node, message


def endless_call(function: Func, at: Position, kinds: Kinds) -> ast.Call | None:
    """Return the call of a workflow to itself that is always reached, or None."""
    node = function.node
    if isinstance(node, ast.Lambda):
        return None
    for call in _certain_calls(node.body):
        if _is_itself(call, function, at, kinds):
            return call
        if not _continues(call, at, kinds):
            return None
    return None


def _is_itself(call: ast.Call, function: Func, at: Position, kinds: Kinds) -> bool:
    for value in at.values(call.func):
        match value:
            case Func(node=node) if node is function.node and kinds.is_boundary(value):
                return True
            case External("hourglass.workflow.execute_child_workflow") if call.args:
                callees = at.values(call.args[0])
                return any(
                    isinstance(candidate, Func) and candidate.node is function.node for candidate in callees
                )
            case _:
                pass
    return False


def _continues(call: ast.Call, at: Position, kinds: Kinds) -> bool:
    """Whether a call is known to return, or to fail only for reasons that the workflow does not plan for."""
    return all(
        kinds.is_boundary(value)
        or (isinstance(value, External) and value.name != "hourglass.workflow.continue_as_new")
        for value in at.values(call.func)
    )


def _certain_calls(statements: list[ast.stmt]) -> Iterator[ast.Call]:
    """Yield the calls that are always made, in order, up to the first statement where the function may end."""
    for statement in statements:
        match statement:
            case ast.Expr() | ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                yield from _called_in(statement)
            case ast.Return(value=value):
                yield from _called_in(value) if value is not None else ()
                return
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Pass():
                pass
            case _:
                return


def _called_in(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the unconditional calls in an expression, arguments first."""
    match node:
        case ast.BoolOp(values=[first, *_]) | ast.IfExp(test=first):
            yield from _called_in(first)
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            pass
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _called_in(child)
            if isinstance(node, ast.Call):
                yield node
