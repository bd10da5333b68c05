"""The possible values of an expression. Names are resolved through scopes and imports, attributes through classes, and calls
by their results.

Must not know: rules. The resolver does not guess: a value that the source code does not determine is `Unknown`. Every
visible binding contributes its values, so an expression may have several. Where an expression depends on itself, its value
is `Unknown`.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hourglass._tools.lint.annotations import value_of
from hourglass._tools.lint.defining import own_nodes
from hourglass._tools.lint.external import CALLS, result_of_call
from hourglass._tools.lint.members import Members
from hourglass._tools.lint.modules import Module, Project
from hourglass._tools.lint.scopes import (
    Assigned,
    Binding,
    Defined,
    Element,
    Entered,
    Imported,
    NameScope,
    Parameter,
)
from hourglass._tools.lint.values import (
    SET,
    UNKNOWN,
    AnySet,
    Class,
    External,
    Func,
    Instance,
    Items,
    ModuleRef,
    NamespacePackage,
    Value,
    Values,
    external_names,
    words,
)

_BUILTINS = frozenset(dir(builtins))
_SET_METHODS = words("union intersection difference symmetric_difference copy")
_ITEM_METHODS = words("get pop setdefault popleft")
_VIEW_METHODS = words("values copy")
_SAME_ITEMS = words("list tuple sorted reversed iter")
_DEPTH = 40
_MOST = 12

NOTHING: Values = (UNKNOWN,)


class ValueResolver:
    """A resolver of expressions in the scopes of a project. Results are cached."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.members = Members(self)
        self._known: dict[tuple[ast.AST, Class | None], Values] = {}
        self._busy: set[tuple[ast.AST, Class | None]] = set()
        self._cut_short = False

    def values(self, node: ast.expr, scope: NameScope, receiver: Class | None = None) -> Values:
        """Return the possible values of an expression, at least one."""
        return self._once((node, receiver), lambda: self._values(node, scope, receiver))

    def _once(self, key: tuple[ast.AST, Class | None], find: Callable[[], Values]) -> Values:
        """Compute values, or return the cached values. The value of an expression that depends on itself is unknown."""
        if key in self._known:
            return self._known[key]
        if key in self._busy or len(self._busy) > _DEPTH:
            self._cut_short = True
            return NOTHING
        outer, self._cut_short = self._cut_short, False
        self._busy.add(key)
        try:
            values = _few(find())
        finally:
            self._busy.discard(key)
        # A result that was cut short by recursion is not cached, because resolving the expression separately may yield a
        # better result. The outermost expression cannot have been cut short.
        if not self._cut_short or not self._busy:
            self._known[key] = values
        self._cut_short = (self._cut_short or outer) and bool(self._busy)
        return values

    def is_set(self, node: ast.expr, scope: NameScope, receiver: Class | None = None) -> bool:
        """Whether an expression is a set under every binding."""
        return all(isinstance(value, AnySet) for value in self.values(node, scope, receiver))

    def lookup(
        self, name: str, scope: NameScope, line: int | None = None, receiver: Class | None = None
    ) -> Values:
        """Return the values of a name in a scope."""
        home = self.home(name, scope)
        if home is None:
            return self._from_stars(name, scope.module) or (
                (External(name),) if name in _BUILTINS else NOTHING
            )
        bindings = home.bindings(name, line if home is scope else None)
        return (
            tuple(value for binding in bindings for value in self._bound(binding, home, receiver)) or NOTHING
        )

    def home(self, name: str, scope: NameScope) -> NameScope | None:
        """Return the scope that binds a name, according to Python's rules, or None."""
        candidate: NameScope | None = scope
        while candidate is not None:
            if name in candidate.global_names:
                candidate = candidate.module.scope
            if name in candidate.names and (candidate.kind != "class" or candidate is scope):
                return candidate
            candidate = candidate.parent
        return None

    def _bound(self, binding: Binding, home: NameScope, receiver: Class | None) -> Values:
        match binding.meaning:
            case Assigned(value, annotation):
                if annotation is not None:
                    described = value_of(self, annotation, home)
                    if described != UNKNOWN:
                        return (described,)
                return self.values(value, home, receiver) if value is not None else NOTHING
            case Imported() as imported:
                return (self._imported(imported, home.module),)
            case Defined(ast.ClassDef() as node):
                return (Class(home.module, node, home),)
            case Defined(node):
                owner = Class(home.module, home.node, home.parent) if home.kind == "class" else receiver  # type: ignore[arg-type]
                return (Func(home.module, node, home, owner),)  # type: ignore[arg-type]
            case Element(iterable):
                return self.elements(self.values(iterable, home, receiver))
            case Entered(context):
                return self._entered(self.values(context, home, receiver))
            case Parameter(node, first):
                return self._parameter(node, first, home, receiver)
            case _:
                return NOTHING

    def _parameter(self, node: ast.arg, first: bool, home: NameScope, receiver: Class | None) -> Values:
        owner = home.parent
        if first and owner is not None and owner.kind == "class" and isinstance(owner.node, ast.ClassDef):
            decorators = {last_name(decorator) for decorator in getattr(home.node, "decorator_list", ())}
            cls = receiver or Class(owner.module, owner.node, owner.parent or owner.module.scope)
            if "classmethod" in decorators:
                return (cls,)
            if "staticmethod" not in decorators:
                return (Instance(cls),)
        if node.annotation is None or home.parent is None:
            return NOTHING
        return (value_of(self, node.annotation, home.parent),)

    def _imported(self, imported: Imported, module: Module) -> Value:
        reference = self.project.find(imported.module, imported.level, module.path)
        if imported.name is None:
            return reference if reference is not None else External(imported.module)
        match reference:
            case ModuleRef(target):
                return self._member(target, imported.name, module)
            case NamespacePackage(directory):
                return self.project.below(Path(directory), imported.name) or UNKNOWN
            case None:
                return UNKNOWN if imported.level else External(f"{imported.module}.{imported.name}")

    def _member(self, target: Module, name: str, importer: Module | None = None) -> Value:
        if target is not importer and self.home(name, target.scope) is not None:
            return _one(self.lookup(name, target.scope))
        if target.path.name == "__init__.py":
            below = self.project.below(target.path.parent, name)
            if below is not None:
                return below
        starred = self._from_stars(name, target)
        return _one(starred) if starred else UNKNOWN

    def _from_stars(self, name: str, module: Module) -> Values:
        """Return the values of a name that `from module import *` may have imported."""
        for star in module.scope.stars:
            target = self.project.find(star.module, star.level, module.path)
            if isinstance(target, ModuleRef) and target.module is not module:
                value = self._member(target.module, name)
                if value != UNKNOWN:
                    return (value,)
            elif target is None and f"{star.module}.{name}" in CALLS:
                return (External(f"{star.module}.{name}"),)
        return ()

    def _values(self, node: ast.expr, scope: NameScope, receiver: Class | None) -> Values:
        match node:
            case ast.Name(id=name):
                return self.lookup(name, scope, node.lineno, receiver)
            case ast.Attribute(value=owner, attr=name):
                bases = self.values(owner, scope, receiver)
                return tuple(value for base in bases for value in self.attribute(base, name))
            case ast.Call():
                return self._call(node, scope, receiver)
            case ast.Set() | ast.SetComp():
                return (SET,)
            case ast.Lambda():
                return (Func(scope.module, node, scope, receiver),)
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return (Items(self._several(parts, scope, receiver)),)
            case ast.Dict(values=parts):
                return (Items(self._several(parts, scope, receiver)),)
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.DictComp(value=element):
                return (Items(self.values(element, scope, receiver)),)
            case ast.Subscript(value=owner):
                return self.elements(self.values(owner, scope, receiver))
            case ast.IfExp(body=first, orelse=second):
                return self.values(first, scope, receiver) + self.values(second, scope, receiver)
            case ast.BoolOp(values=parts):
                return self._several(parts, scope, receiver)
            case ast.NamedExpr(value=inner) | ast.Await(value=inner) | ast.Starred(value=inner):
                return self.values(inner, scope, receiver)
            case ast.BinOp():
                return self._operation(node, scope, receiver)
            case _:
                return NOTHING

    def _several(self, nodes: list[ast.expr], scope: NameScope, receiver: Class | None) -> Values:
        return _few(
            tuple(value for expression in nodes for value in self.values(expression, scope, receiver))
        )

    def _operation(self, node: ast.BinOp, scope: NameScope, receiver: Class | None) -> Values:
        if isinstance(node.op, ast.Div):  # `/` joins paths
            return self.values(node.left, scope, receiver)
        if not isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
            return NOTHING
        return (SET,) if self.is_set(node.left, scope, receiver) or _is_view(node.left) else NOTHING

    def _call(self, node: ast.Call, scope: NameScope, receiver: Class | None) -> Values:
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            bases = self.values(node.func.value, scope, receiver)
            if name in _SET_METHODS and all(isinstance(candidate, AnySet) for candidate in bases):
                return (SET,)
            if name in _ITEM_METHODS and any(isinstance(candidate, Items) for candidate in bases):
                return self.elements(bases)
            if name in _VIEW_METHODS and any(isinstance(candidate, Items) for candidate in bases):
                return bases
        callees = self.values(node.func, scope, receiver)
        return tuple(
            value for candidate in callees for value in self._result(candidate, node, scope, receiver)
        )

    def _result(self, called: Value, node: ast.Call, scope: NameScope, receiver: Class | None) -> Values:
        match called:
            case Class():
                return (Instance(called),)
            case External("set" | "frozenset"):
                return (SET,)
            case External("super") if receiver is not None:
                return (Instance(receiver),)
            case External(name) if name in _SAME_ITEMS and node.args:
                return tuple(
                    candidate if isinstance(candidate, Items) else UNKNOWN
                    for candidate in self.values(node.args[0], scope, receiver)
                )
            case External("getattr") if name := _constant(node.args[1:2]):
                bases = self.values(node.args[0], scope, receiver)
                return tuple(value for base in bases for value in self.attribute(base, name))
            case External("functools.partial") if node.args:
                return self.values(node.args[0], scope, receiver)
            case External(name):
                return (External(result_of_call(name)),)
            case Func():
                return self.returned(called)
            case _:
                return NOTHING

    def returned(self, function: Func) -> Values:
        """Return the possible results of a function, from its annotation or else from its return statements."""
        # Cached by the function's parameters because, for a lambda, the node itself is the key of the function's value.
        return self._once((function.node.args, function.receiver), lambda: self._returned(function))

    def _returned(self, function: Func) -> Values:
        node = function.node
        inner = function.body_scope
        if isinstance(node, ast.Lambda):
            return self.values(node.body, inner, function.receiver)
        if node.returns is not None:
            return (value_of(self, node.returns, function.scope),)
        ends = [
            statement.value
            for statement in own_nodes(node)
            if isinstance(statement, ast.Return) and statement.value is not None
        ]
        return tuple(value for end in ends for value in self.values(end, inner, function.receiver)) or NOTHING

    def _entered(self, values: Values) -> Values:
        """Return the values that `with … as` binds. Files, pools and most other context managers return themselves."""
        result: list[Value] = []
        for value in values:
            entering = (
                self.members.inherited(value.cls, "__enter__", value.cls)
                if isinstance(value, Instance)
                else ()
            )
            for method in entering:
                result += self.returned(method) if isinstance(method, Func) else NOTHING
            if not entering:
                result.append(value if isinstance(value, External | Instance) else UNKNOWN)
        return tuple(result)

    def elements(self, values: Values) -> Values:
        """Return the values that a loop over these values binds."""
        parts = (value.elements if isinstance(value, Items) else NOTHING for value in values)
        return tuple(part for elements in parts for part in elements) or NOTHING

    def attribute(self, base: Value, name: str) -> Values:
        """Return the values of an attribute."""
        match base:
            case External(owner):
                return (External(f"{owner}.{name}"),)
            case ModuleRef(module):
                return (self._member(module, name),)
            case NamespacePackage(directory):
                return (self.project.below(Path(directory), name) or UNKNOWN,)
            case Class():
                return self.members.inherited(base, name, base) or NOTHING
            case Instance(cls):
                return self.members.inherited(cls, name, cls) + self.members.assigned(cls, name) or NOTHING
            case _:
                return NOTHING

    def methods(self, cls: Class, *names: str) -> Iterator[Func]:
        """Yield the methods of a class with these names."""
        for name in names:
            for value in self.attribute(cls, name):
                if isinstance(value, Func):
                    yield value


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a project, where expressions have values: a scope, and in a method the class of `self`."""

    resolver: ValueResolver
    scope: NameScope
    receiver: Class | None = None

    @classmethod
    def inside(cls, function: Func, resolver: ValueResolver) -> Position:
        """Return the position in the body of a function."""
        return cls(resolver, function.body_scope, function.receiver)

    def values(self, node: ast.expr) -> Values:
        """Return the possible values of an expression, at least one."""
        return self.resolver.values(node, self.scope, self.receiver)

    def externals(self, node: ast.expr) -> Iterator[str]:
        """Yield the names of the objects outside the project that an expression may be."""
        return external_names(self.values(node))

    def is_set(self, node: ast.expr) -> bool:
        """Whether an expression is a set under every binding."""
        return self.resolver.is_set(node, self.scope, self.receiver)


def _few(values: Values) -> Values:
    """Remove duplicates, and limit the number of values: with many, an expression is practically unknown."""
    unique = tuple(dict.fromkeys(values)) or NOTHING
    return unique if len(unique) <= _MOST else (*unique[:_MOST], UNKNOWN)


def _constant(nodes: list[ast.expr]) -> str:
    match nodes:
        case [ast.Constant(value=str() as text)]:
            return text
        case _:
            return ""


def _is_view(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"


def last_name(node: ast.expr) -> str:
    """Return the last component of the name of an expression or of the function that it calls; "" if it has no name."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return last_name(function)
        case _:
            return ""


def _one(values: Values) -> Value:
    return next((value for value in values if value != UNKNOWN), UNKNOWN)
