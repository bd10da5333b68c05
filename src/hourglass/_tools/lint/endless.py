"""Workflows that call themselves unconditionally."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import TypeAlias

from hourglass._tools.lint.kinds import Kinds
from hourglass._tools.lint.values import External, Func, Values

ValuesOf: TypeAlias = Callable[[ast.expr], Values]


def endless_call(function: Func, values_of: ValuesOf, kinds: Kinds) -> ast.Call | None:
    """Return the call of a workflow to itself that is always reached, or None."""
    node = function.node
    if isinstance(node, ast.Lambda):
        return None
    for call in _certain_calls(node.body):
        if _is_itself(call, function, values_of, kinds):
            return call
        if not _continues(call, values_of, kinds):
            return None
    return None


def _is_itself(call: ast.Call, function: Func, values_of: ValuesOf, kinds: Kinds) -> bool:
    for value in values_of(call.func):
        match value:
            case Func(node=node) if node is function.node and kinds.is_boundary(value):
                return True
            case External("hourglass.workflow.execute_child_workflow") if call.args:
                callees = values_of(call.args[0])
                return any(
                    isinstance(candidate, Func) and candidate.node is function.node for candidate in callees
                )
            case _:
                pass
    return False


def _continues(call: ast.Call, values_of: ValuesOf, kinds: Kinds) -> bool:
    """Whether a call is known to return, or to fail only for reasons that the workflow does not plan for."""
    return all(
        kinds.is_boundary(value)
        or (isinstance(value, External) and value.name != "hourglass.workflow.continue_as_new")
        for value in values_of(call.func)
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
