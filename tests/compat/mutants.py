"""Wrong programs made of right ones: each differs from its original in one place of its syntax tree.

Knows neither replays nor histories. A wrong program is a module loaded from a changed tree; it is never written to disk, and
its caller undoes the registrations of its decorators. Changes that could make a loop endless are left out.
"""

from __future__ import annotations

import ast
import copy
import importlib.abc
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, ModuleType
from typing import TypeAlias

Change: TypeAlias = Callable[[ast.AST, list[ast.AST], int], str]
"""Changes a node in its tree, given its ancestors; returns a description, or "" if it does not apply."""

EXTRA = "workflow.start_activity('echo', 'one too many', start_to_close_timeout=60)"
NAP = "workflow.sleep(77)"
CHANGED = "~"


@dataclass(frozen=True)
class Mutant:
    """A wrong program: the changed twin, the change and its line."""

    source: Path
    package: str
    workflow_type: str
    change: str
    line: int
    tree: ast.Module

    @property
    def name(self) -> str:
        """Its name in a report."""
        return f"{self.source.name}:{self.line} {self.workflow_type}: {self.change}"

    def load(self) -> ModuleType:
        """Return the module of the changed program."""
        loader = _Loader(str(self.source), self.tree)
        spec = importlib.util.spec_from_loader(f"{self.package}.changed_{self.source.stem}", loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module


class _Loader(importlib.abc.InspectLoader):
    def __init__(self, path: str, tree: ast.Module) -> None:
        self._path = path
        self._tree = tree

    def get_source(self, fullname: str) -> str:
        return ast.unparse(self._tree)

    def get_code(self, fullname: str) -> CodeType:
        return compile(ast.fix_missing_locations(self._tree), self._path, "exec", dont_inherit=True)


def mutants_of(
    source: Path, package: str, decorators: frozenset[str] = frozenset({"twin"})
) -> list[Callable[[], Mutant | None]]:
    """Return constructors of all wrong programs of the twins in a file; each returns None if its change does not
    apply."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    found: list[Callable[[], Mutant | None]] = []
    for position, node in enumerate(tree.body):
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        names = [
            _name(d) for d in node.decorator_list if isinstance(d, ast.Call) and _called(d) in decorators
        ]
        for workflow_type in filter(None, names):
            for place, change, variant in _places(node):
                make = partial(_made, source, package, tree, position, workflow_type, place, change, variant)
                found.append(make)
    return found


def _made(
    source: Path,
    package: str,
    tree: ast.Module,
    position: int,
    workflow_type: str,
    place: int,
    change: Change,
    variant: int,
) -> Mutant | None:
    definition = copy.deepcopy(tree.body[position])
    node, parents = _at(definition, place)
    line = getattr(node, "lineno", 0)
    told = "" if _in_signature(node, parents) else change(node, parents, variant)
    if not told:
        return None
    whole = copy.copy(tree)
    whole.body = [*tree.body[:position], definition, *tree.body[position + 1 :]]
    return Mutant(source, package, workflow_type, told, line, whole)


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")


def _name(call: ast.expr) -> str:
    assert isinstance(call, ast.Call)
    values = [*call.args, *[keyword.value for keyword in call.keywords if keyword.arg == "name"]]
    value = values[0] if values else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


# --- changes ----------------------------------------------------------------------------------------------------------


def _places(definition: ast.AST) -> Iterator[tuple[int, Change, int]]:
    """Yield every possible change: the position of the node, the change and its variant."""
    for place, node in enumerate(ast.walk(definition)):
        for change, kinds, variants in _CHANGES:
            if isinstance(node, kinds):
                yield from ((place, change, variant) for variant in range(variants))


def _at(root: ast.AST, place: int) -> tuple[ast.AST, list[ast.AST]]:
    """Return the node at a position, with its ancestors, outermost first."""
    around: dict[int, ast.AST] = {}
    found = root
    for position, node in enumerate(ast.walk(root)):
        if position == place:
            found = node
        for child in ast.iter_child_nodes(node):
            around[id(child)] = node
    parents: list[ast.AST] = []
    outer = found
    while id(outer) in around:
        outer = around[id(outer)]
        parents.append(outer)
    return found, parents[::-1]


def _in_signature(node: ast.AST, parents: list[ast.AST]) -> bool:
    """Return whether the node is part of a decorator, default or annotation, which are not executed."""
    chain = [*parents, node]
    for outer, inner in pairwise(chain):
        if isinstance(outer, (ast.FunctionDef, ast.ClassDef)) and inner not in outer.body:
            return True
        if isinstance(outer, ast.AnnAssign) and inner is outer.annotation:
            return True
    return False


def _in_loop(parents: list[ast.AST]) -> bool:
    for outer in reversed(parents):
        if isinstance(outer, ast.While):
            return True
        if isinstance(outer, ast.FunctionDef):
            return False
    return False


def _in_condition(parents: list[ast.AST]) -> bool:
    return any(isinstance(outer, (ast.Lambda, ast.While)) for outer in parents)


def _statement(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


def _bodies(node: ast.AST) -> list[list[ast.stmt]]:
    if isinstance(node, (ast.ClassDef, ast.Module)):
        return []
    return [
        body
        for name in ("body", "orelse", "finalbody")
        if isinstance(body := getattr(node, name, None), list)
    ]


def _drop(node: ast.AST, parents: list[ast.AST], variant: int) -> str:
    """Remove a statement that is a call."""
    return _each_statement(node, parents, variant, lambda stmt: [ast.Pass()], "left out")


def _double(node: ast.AST, parents: list[ast.AST], variant: int) -> str:
    """Execute a statement that is a call twice."""
    return _each_statement(node, parents, variant, lambda stmt: [stmt, copy.deepcopy(stmt)], "done twice")


def _each_statement(
    node: ast.AST,
    parents: list[ast.AST],
    variant: int,
    replace: Callable[[ast.stmt], list[ast.stmt]],
    what: str,
) -> str:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call) or not parents:
        return ""
    if _in_loop(parents):
        return ""
    for body in _bodies(parents[-1]):
        if node in body:
            at = body.index(node)
            body[at : at + 1] = replace(node)
            return f"{ast.unparse(node)[:60]} {what}"
    return ""


def _swap(node: ast.AST, parents: list[ast.AST], variant: int) -> str:
    """Swap two statements."""
    if not isinstance(node, (ast.Expr, ast.Assign)) or not parents or _in_loop(parents):
        return ""
    for body in _bodies(parents[-1]):
        if node in body and (at := body.index(node)) + 1 < len(body):
            after = body[at + 1]
            if isinstance(after, (ast.Expr, ast.Assign)):
                body[at], body[at + 1] = after, node
                return f"{ast.unparse(after)[:40]} before {ast.unparse(node)[:40]}"
    return ""


def _insert(node: ast.AST, parents: list[ast.AST], variant: int) -> str:
    """Insert a command before a statement or at the end of its block."""
    if not isinstance(node, ast.stmt) or not parents or isinstance(node, ast.FunctionDef):
        return ""
    text = EXTRA if variant % 2 == 0 else NAP
    for body in _bodies(parents[-1]):
        if node in body and isinstance(
            parents[-1], (ast.FunctionDef, ast.If, ast.With, ast.For, ast.Try, ast.While)
        ):
            at = body.index(node)
            if variant > 1:
                if at != len(body) - 1 or isinstance(node, (ast.Return, ast.Raise)):
                    return ""
                at += 1
            body.insert(at, _statement(text))
            return f"{text[:30]} {'after' if variant > 1 else 'before'} {ast.unparse(node)[:40]}"
    return ""


def _constant(node: ast.AST, parents: list[ast.AST], variant: int) -> str:
    """Change a constant."""
    if not isinstance(node, ast.Constant) or _in_condition(parents) or not parents:
        return ""
    if not any(isinstance(outer, (ast.Call, ast.Return, ast.Raise)) for outer in parents):
        return ""
    if isinstance(parents[-1], (ast.FormattedValue, ast.Subscript, ast.Compare)):
        return ""
    before = repr(node.value)
    match node.value:
        case bool():
            node.value = not node.value
        case str():
            node.value += CHANGED
        case int() | float():
            node.value = node.value * 2 + 1  # by more than what durations may differ by
        case _:
            return ""
    return f"{before} is {node.value!r}"


def _return(node: ast.AST, parents: list[ast.AST], variant: int) -> str:
    """Return another value, or raise instead."""
    if not isinstance(node, ast.Return):
        return ""
    told = ast.unparse(node)[:50]
    if variant == 0:
        value = node.value or ast.Constant(None)
        node.value = ast.List([value], ast.Load())
        return f"{told} in a list"
    if variant == 1:
        for body in _bodies(parents[-1]):
            if node in body:
                body[body.index(node)] = _statement(
                    "raise __import__('hourglass').errors.ApplicationError('wrong')"
                )
                return f"a failure in the place of {told}"
    return ""


def _raise(node: ast.AST, parents: list[ast.AST], variant: int) -> str:
    """Replace a raise by a return."""
    if not isinstance(node, ast.Raise) or node.exc is None:
        return ""
    for body in _bodies(parents[-1]):
        if node in body:
            body[body.index(node)] = _statement("return 'instead'")
            return f"no {ast.unparse(node)[:50]}"
    return ""


def _call(node: ast.AST, parents: list[ast.AST], variant: int) -> str:
    """Change a call: do not wait for it, swap its arguments, or skip a patch."""
    if not isinstance(node, ast.Call) or _in_condition(parents):
        return ""
    name = _called(node)
    if variant == 0 and len(node.args) > 2 and name in ("act", "start", "local"):
        node.args[1], node.args[2] = node.args[2], node.args[1]
        return f"arguments of {ast.unparse(node)[:50]} the other way round"
    if variant == 1 and name == "act" and isinstance(node.func, ast.Name) and not _in_loop(parents):
        node.func = _expression(
            "(lambda *a, **k: workflow.start_activity(*a, **{'start_to_close_timeout': 60, **k}))"
        )
        return f"{ast.unparse(node)[:50]} not waited for"
    if variant == 2 and name == "patched":
        node.func, node.args = ast.Name("bool", ast.Load()), [ast.Constant(1)]
        return "the patch is no longer asked for"
    return ""


def _expression(text: str) -> ast.expr:
    statement = ast.parse(text).body[0]
    assert isinstance(statement, ast.Expr)
    return statement.value


_CHANGES: tuple[tuple[Change, tuple[type[ast.AST], ...], int], ...] = (
    (_drop, (ast.Expr,), 1),
    (_double, (ast.Expr,), 1),
    (_swap, (ast.Expr, ast.Assign), 1),
    (_insert, (ast.stmt,), 4),
    (_constant, (ast.Constant,), 1),
    (_return, (ast.Return,), 2),
    (_raise, (ast.Raise,), 1),
    (_call, (ast.Call,), 3),
)
"""Each change, the types of nodes that it applies to, and the number of its variants."""
