"""The bindings of each name, scope by scope, as written; names are not resolved here.

A scope is a module, a class body or a function. Variables of comprehensions and parameters of lambdas count as names of the
enclosing function. This is coarser than in Python, but sufficient to distinguish local and global names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from hourglass._tools.lint.values import FunctionNode

if TYPE_CHECKING:
    from hourglass._tools.lint.modules import Module


@dataclass(frozen=True, slots=True)
class Assigned:
    """`name = value`, with or without an annotation. An annotation alone has no value."""

    value: ast.expr | None
    annotation: ast.expr | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """`import module` or `from module import name`."""

    module: str
    name: str | None
    level: int


@dataclass(frozen=True, slots=True)
class Defined:
    """`def name` or `class name`."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Element:
    """The loop variable of an iteration."""

    iterable: ast.expr


@dataclass(frozen=True, slots=True)
class Entered:
    """The target of `with … as`."""

    context: ast.expr


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the function. The `first` parameter may be `self`."""

    node: ast.arg
    first: bool


@dataclass(frozen=True, slots=True)
class Opaque:
    """A binding that the resolver does not analyse, for example a part of an unpacked value or an exception."""


Meaning: TypeAlias = Assigned | Imported | Defined | Element | Entered | Parameter | Opaque


@dataclass(frozen=True, slots=True)
class Binding:
    """A place where a name is bound. A `settled` binding is unconditional and hides all earlier bindings."""

    meaning: Meaning
    line: int
    settled: bool = False
    everywhere: bool = False


@dataclass(eq=False)
class NameScope:
    """The names of a module, a class body or a function."""

    module: Module
    kind: Literal["module", "class", "function"]
    node: ast.AST
    parent: NameScope | None
    names: dict[str, list[Binding]] = field(default_factory=dict)
    stars: list[Imported] = field(default_factory=list)
    global_names: set[str] = field(default_factory=set)
    outer_names: set[str] = field(default_factory=set)

    def bind(self, name: str, binding: Binding) -> None:
        """Add a binding of a name."""
        self.names.setdefault(name, []).append(binding)

    def bindings(self, name: str, line: int | None) -> list[Binding]:
        """Return the bindings that are visible on a line.

        In a function, these are the last settled binding before the line, and all later ones before it.
        """
        all_bindings = self.names.get(name, [])
        if line is None or self.kind != "function":
            return all_bindings
        before = [binding for binding in all_bindings if binding.line < line or binding.everywhere]
        last = max((index for index, binding in enumerate(before) if binding.settled), default=None)
        if last is None:
            return all_bindings
        return before[last:] + [binding for binding in before[:last] if binding.everywhere]


def body_scope(
    module: Module,
    kind: Literal["module", "class"],
    node: ast.Module | ast.ClassDef,
    parent: NameScope | None,
) -> NameScope:
    """Return the scope of a module or of a class body."""
    scope = NameScope(module, kind, node, parent)
    for statement in node.body:
        _statement(scope, statement, deep=False)
    return scope


def function_scope(module: Module, node: FunctionNode, parent: NameScope) -> NameScope:
    """Return the scope of a function."""
    scope = NameScope(module, "function", node, parent)
    for index, argument in enumerate(arguments_of(node.args)):
        scope.bind(argument.arg, Binding(Parameter(argument, index == 0), node.lineno - 1, settled=True))
    if isinstance(node, ast.Lambda):
        _expressions(scope, [node.body])
        return scope
    for statement in node.body:
        _statement(scope, statement, deep=True, settled=True)
    for name in scope.global_names | scope.outer_names:
        scope.names.pop(name, None)
    return scope


def arguments_of(arguments: ast.arguments) -> Iterator[ast.arg]:
    """Yield all parameters, the first positional one first."""
    yield from arguments.posonlyargs
    yield from arguments.args
    if arguments.vararg is not None:
        yield arguments.vararg
    yield from arguments.kwonlyargs
    if arguments.kwarg is not None:
        yield arguments.kwarg


def _statement(scope: NameScope, node: ast.stmt, *, deep: bool, settled: bool = False) -> None:
    end = node.end_lineno or node.lineno
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            scope.bind(node.name, Binding(Defined(node), node.lineno, settled))
            return
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                _target(scope, target, value, Binding(Opaque(), end, settled))
        case ast.AnnAssign(target=ast.Name(id=name), value=bound, annotation=annotation):
            scope.bind(name, Binding(Assigned(bound, annotation), end, settled))
        case ast.AugAssign(target=ast.Name(id=name)):
            scope.names.setdefault(name, [])
        case ast.Import(names=names):
            for alias in names:
                # `import a.b` binds a, `import a.b as c` binds c to a.b.
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                scope.bind(alias.asname or module, Binding(Imported(module, None, 0), node.lineno))
        case ast.ImportFrom(names=names):
            for alias in names:
                meaning = Imported(node.module or "", alias.name, node.level)
                if alias.name == "*":
                    scope.stars.append(meaning)
                else:
                    scope.bind(alias.asname or alias.name, Binding(meaning, node.lineno))
        case ast.Global(names=declared):
            scope.global_names.update(declared)
        case ast.Nonlocal(names=declared):
            scope.outer_names.update(declared)
        case ast.For(target=target, iter=iterable) | ast.AsyncFor(target=target, iter=iterable):
            _bind_names(scope, target, Element(iterable), node.lineno)
        case ast.With(items=items) | ast.AsyncWith(items=items):
            for item in items:
                if item.optional_vars is not None:
                    _bind_names(scope, item.optional_vars, Entered(item.context_expr), node.lineno)
        case ast.Delete() | ast.Try() | ast.Match() | _:
            pass
    if deep:
        _expressions(scope, [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)])
    _blocks(scope, node, deep=deep)


def _blocks(scope: NameScope, node: ast.stmt, *, deep: bool) -> None:
    """Bind the names in nested statements. These bindings are conditional."""
    for name in ("body", "orelse", "finalbody"):
        for inner in getattr(node, name, ()):
            _statement(scope, inner, deep=deep)
    for handler in getattr(node, "handlers", ()):
        if handler.name is not None:
            scope.bind(handler.name, Binding(Opaque(), handler.lineno))
        for inner in handler.body:
            _statement(scope, inner, deep=deep)
    for case in getattr(node, "cases", ()):
        for pattern in ast.walk(case.pattern):
            captured = getattr(pattern, "name", None) or getattr(pattern, "rest", None)
            if isinstance(captured, str):
                scope.bind(captured, Binding(Opaque(), case.pattern.lineno))
        for inner in case.body:
            _statement(scope, inner, deep=deep)


def _expressions(scope: NameScope, nodes: Sequence[ast.expr]) -> None:
    """Bind the names that expressions bind by `:=`, comprehensions and lambdas."""
    for outer in nodes:
        for node in ast.walk(outer):
            match node:
                case ast.NamedExpr(target=ast.Name(id=name), value=value):
                    scope.bind(name, Binding(Assigned(value), node.lineno, everywhere=True))
                case ast.comprehension(target=target, iter=iterable):
                    _bind_names(scope, target, Element(iterable), target.lineno, everywhere=True)
                case ast.Lambda(args=arguments):
                    for argument in arguments_of(arguments):
                        scope.bind(argument.arg, Binding(Opaque(), node.lineno, everywhere=True))
                case _:
                    pass


def _target(scope: NameScope, target: ast.expr, value: ast.expr, at: Binding) -> None:
    match target, value:
        case ast.Name(id=name), _:
            scope.bind(name, Binding(Assigned(value), at.line, at.settled))
        case (
            (ast.Tuple(elts=names) | ast.List(elts=names)),
            (ast.Tuple(elts=parts) | ast.List(elts=parts)),
        ) if len(names) == len(parts):
            for element, part in zip(names, parts, strict=True):
                _target(scope, element, part, at)
        case ((ast.Tuple(elts=names) | ast.List(elts=names)), _):
            for element in names:
                _bind_names(scope, element, Opaque(), at.line)
        case ast.Starred(value=inner), _:
            _bind_names(scope, inner, Opaque(), at.line)
        case _:
            pass


def _bind_names(
    scope: NameScope, target: ast.expr, meaning: Meaning, line: int, everywhere: bool = False
) -> None:
    match target:
        case ast.Name(id=name):
            scope.bind(name, Binding(meaning, line, everywhere=everywhere))
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                _bind_names(scope, part, Opaque(), line, everywhere)
        case ast.Starred(value=inner):
            _bind_names(scope, inner, Opaque(), line, everywhere)
        case _:
            pass
