"""The analysis of one function of workflow code, statement by statement. It finds broken rules, and the functions that the
function may call.

A function that is only mentioned counts as called, because it may be passed to `spawn`, `map` or `sorted(key=…)`, or stored
in a table. Code inside `with workflow.unsafe():`, or behind a check that the code runs outside a workflow, is skipped.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from hourglass._tools.lint import order, rules
from hourglass._tools.lint.external import BY_SETS, ON_LOOP, READS, is_function, rule_of_call
from hourglass._tools.lint.kinds import BY_REFERENCE
from hourglass._tools.lint.modules import Module
from hourglass._tools.lint.order import Ordering
from hourglass._tools.lint.resolving import Position
from hourglass._tools.lint.sharing import SharedUses
from hourglass._tools.lint.statements import Analysis, StatementRules, endless_call
from hourglass._tools.lint.values import Class, External, Func, Instance


@dataclass(frozen=True, slots=True)
class Hit:
    """A broken rule at a node. `via` names the calls from this function to the node, if the node is in another function."""

    code: str
    module: Module
    node: ast.AST
    message: str
    via: tuple[str, ast.AST] | None = None


@dataclass(slots=True)
class Seen:
    """The result of the walk through one function."""

    hits: list[Hit] = field(default_factory=list)
    calls: list[tuple[Func, ast.AST]] = field(default_factory=list)
    issues_commands: bool = False


_BUILT_WITH = ("__new__", "__init__", "__post_init__")


_UNSAFE = frozenset(("hourglass.workflow.unsafe", "hourglass.workflow.unsafe.sandbox_unrestricted"))


def check_function(function: Func, analysis: Analysis, *, is_root: bool, is_async: bool = False) -> Seen:
    """Analyse a function. `is_async` means that the function runs on a workflow's event loop, like every `async def`."""
    walk = _Walk(function, analysis, is_root, is_async or isinstance(function.node, ast.AsyncFunctionDef))
    walk.function()
    return walk.seen


class _Walk:
    def __init__(self, function: Func, analysis: Analysis, is_root: bool, is_async: bool) -> None:
        self.seen = Seen()
        self._is_async = is_async
        self._function = function
        self._analysis = analysis
        self._is_root = is_root
        self._module = function.module
        self._at = Position.inside(function, analysis.resolver)
        self._identity_calls: set[ast.AST] = set()
        """`id(…)` calls that are only used to compare identities."""
        self._by_reference: set[ast.AST] = set()
        """Names of activities and workflows that are passed by reference."""
        self._ordering = Ordering(self._at.is_set)
        self._statements = StatementRules(analysis, function, self._at, is_async=is_async)
        self._shared = SharedUses(analysis.sharing, self._at)

    def function(self) -> None:
        node = self._function.node
        if self._is_root:
            endless = endless_call(self._function, self._at, self._analysis.kinds)
            if endless is not None:
                owner = f"{self._at.receiver.node.name}." if self._at.receiver is not None else ""
                message = f"{owner}{self._function.name} calls itself unconditionally"
                self._hit(rules.ENDLESS, endless, message)
        for statement in self._function.body:
            self._visit(statement)
        for wrapper in self._analysis.kinds.decorators(self._function):
            self._follow(wrapper, node)

    def _hit(self, code: str, node: ast.AST, message: str) -> None:
        self.seen.hits.append(Hit(code, self._module, node, message))

    def _follow(self, function: Func, node: ast.AST) -> None:
        if not self._analysis.kinds.is_boundary(function):
            self.seen.calls.append((function, node))

    def _visit(self, node: ast.AST) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._definition(node)
                return
            case ast.With(items=items) if self._is_unsafe(items):
                return
            case ast.If(test=test) if (chosen := self._in_workflow(node)) is not None:
                self._visit(test)
                for statement in chosen:
                    self._visit(statement)
                return
            case ast.AnnAssign(target=target, value=value):
                self._changes(node)
                for part in (target, value):
                    if part is not None:
                        self._visit(part)
                return
            case _:
                self._node(node)
        for child in ast.iter_child_nodes(node):
            self._visit(child)

    def _node(self, node: ast.AST) -> None:
        self._order(self._ordering.at(node))
        self._identity_calls.update(order.compared_by_identity(node))
        for code, place, message in self._statements.broken(node):
            self._hit(code, place, message)
        match node:
            case ast.Call():
                self._call(node)
                self._changes(node)
            case ast.Name(ctx=ast.Load()) | ast.Attribute(ctx=ast.Load()):
                self._load(node)
            case ast.Assign() | ast.AugAssign() | ast.Delete():
                self._changes(node)
            case ast.With(items=items):
                self._enter(items)
            case ast.Return(value=ast.expr() as value) if self._is_root and self._ordering.is_set(value):
                self._hit(rules.SET_ORDER, value, "the result depends on the order of a set")
            case _:
                pass

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """Analyse the decorators and defaults of a nested definition. Its body is analysed when it is called."""
        for decorator in node.decorator_list:
            self._visit(decorator)
        if isinstance(node, ast.ClassDef):
            return
        for default in filter(None, [*node.args.defaults, *node.args.kw_defaults]):
            self._visit(default)
        if node.decorator_list:
            self._follow(Func(self._module, node, self._at.scope, self._at.receiver), node)

    def _is_unsafe(self, items: list[ast.withitem]) -> bool:
        return any(
            isinstance(item.context_expr, ast.Call)
            and any(name in _UNSAFE for name in self._at.externals(item.context_expr.func))
            for item in items
        )

    def _in_workflow(self, node: ast.If) -> list[ast.stmt] | None:
        """Return the branch of an `if` that runs inside a workflow, or None if the `if` does not test that."""
        test, chosen = node.test, node.body
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, chosen = test.operand, node.orelse
        if isinstance(test, ast.Call) and "hourglass.workflow.in_workflow" in self._at.externals(test.func):
            return chosen
        return None

    def _call(self, node: ast.Call) -> None:
        for value in self._at.values(node.func):
            match value:
                case External(name):
                    self._external(name, node)
                case Class():
                    self._build(value, node)
                case Instance(cls):
                    self._methods(cls, ("__call__",), node)
                case _:
                    pass
        self._out_of_tables(node.func)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        for argument in arguments:
            self._handed_on(argument)
            self._out_of_tables(argument)
        if self._analysis.durable.is_durable(node, self._at):
            self.seen.issues_commands = True
            for argument in arguments:
                if not isinstance(argument, ast.Starred) and self._ordering.is_set(argument):
                    self._hit(rules.SET_ORDER, argument, "the argument depends on the order of a set")

    def _external(self, name: str, node: ast.Call) -> None:
        if self._is_async and name in ON_LOOP:
            self._on_loop(name, node)
            return
        code = rule_of_call(name, node)
        if code == rules.IDENTITY and node in self._identity_calls:
            return
        if code is not None:
            self._hit(code, node, f"{_shown(name)}() {rules.RULES[code].title}")
            return
        if name in BY_REFERENCE and node.args:
            self._by_reference.add(node.args[0])
        self._order(self._ordering.at_call(node, name))

    def _on_loop(self, name: str, node: ast.Call) -> None:
        """Check a call of an asyncio function on a workflow's event loop. Only functions that use sets break a rule."""
        if name in BY_SETS:
            short = name.rpartition(".")[2]
            message = (
                f"{name}() processes tasks in the order of a set; hourglass.aio.workflow.{short} keeps the order of its "
                "arguments"
            )
            self._hit(rules.SET_ORDER, node, message)

    def _handed_on(self, argument: ast.expr) -> None:
        """Treat a function argument as called: `key=id`, `default_factory=uuid4`."""
        if isinstance(argument, ast.Name | ast.Attribute):
            for name in self._at.externals(argument):
                code = None if self._is_async and name in ON_LOOP else rule_of_call(name, None)
                if code is not None and is_function(name):
                    message = f"{_shown(name)} {rules.RULES[code].title}, and is passed on to be called"
                    self._hit(code, argument, message)

    def _out_of_tables(self, node: ast.expr) -> None:
        """Treat functions in `STEPS[name]` and `STEPS.get(name)` as called."""
        if isinstance(node, ast.Subscript | ast.Call):
            for value in self._at.values(node):
                if isinstance(value, Func) and not isinstance(value.node, ast.Lambda):
                    self._follow(value, node)

    def _load(self, node: ast.Name | ast.Attribute) -> None:
        if node in self._by_reference:
            return
        for value in self._at.values(node):
            match value:
                case Func() if isinstance(node, ast.Name | ast.Attribute):
                    self._follow(value, node)
                case External(name) if name in READS:
                    title = rules.RULES[READS[name]].title.replace("reads", "is a part of")
                    self._hit(READS[name], node, f"{name} {title}")
                case _:
                    pass
        for code, message in self._shared.read(node):
            self._hit(code, node, message)

    def _build(self, cls: Class, node: ast.Call) -> None:
        """Follow the creation of an object: its constructors and the default factories of its fields."""
        if self._analysis.kinds.is_boundary(cls):
            return
        self._methods(cls, _BUILT_WITH, node)
        for base in self._analysis.resolver.members.bases(cls):
            for factory in filter(None, map(_default_factory, base.node.body)):
                for value in self._analysis.resolver.values(factory, base.body_scope):
                    if isinstance(value, Func):
                        self._follow(value, node)
                    elif isinstance(value, External) and (code := rule_of_call(value.name, None)):
                        name = base.node.name
                        message = (
                            f"{_shown(value.name)}() {rules.RULES[code].title}, whenever a {name} is created"
                        )
                        self.seen.hits.append(Hit(code, base.module, factory, message, (name, node)))

    def _methods(self, cls: Class, names: tuple[str, ...], node: ast.AST) -> None:
        for method in self._analysis.resolver.methods(cls, *names):
            self._follow(method, node)

    def _enter(self, items: list[ast.withitem]) -> None:
        for item in items:
            for value in self._at.values(item.context_expr):
                if isinstance(value, Instance):
                    self._methods(value.cls, ("__enter__", "__exit__"), item.context_expr)
                elif isinstance(value, External) and not isinstance(item.context_expr, ast.Call):
                    code = rule_of_call(f"{value.name}.__enter__", None)
                    if code is not None:
                        self._hit(code, item.context_expr, f"a {value.name} {rules.RULES[code].title}")

    def _changes(self, node: ast.AST) -> None:
        for code, message in self._shared.changed(node):
            self._hit(code, node, message)

    def _order(self, uses: Iterator[tuple[ast.expr, str]]) -> None:
        for expression, how in uses:
            self._hit(rules.SET_ORDER, expression, f"{how} a set, in an order that differs between processes")


def _default_factory(node: ast.stmt) -> ast.expr | None:
    match node:
        case ast.AnnAssign(value=ast.Call(keywords=keywords)) | ast.Assign(value=ast.Call(keywords=keywords)):
            factories = (word.value for word in keywords if word.arg in ("default_factory", "factory"))
            return next(factories, None)
        case _:
            return None


def _shown(name: str) -> str:
    return name.replace("()", "")
