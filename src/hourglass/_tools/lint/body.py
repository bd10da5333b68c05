"""The analysis of one function of workflow code, statement by statement: broken rules, and the functions it
leads to.

A function that is mentioned counts as called: it may be passed to `spawn`, `map` or `sorted(key=…)`, or be
stored in a table first. Code inside `with workflow.unsafe():`, or behind a check that it is not in a
workflow, does not count.

The rules on state that runs share come first: defaults of parameters (a list, a dict or a set is one object
that every call without that argument shares), and variables that each process computes at import from a
clock, randomness or its environment.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from hourglass._tools.lint import order, rules
from hourglass._tools.lint.catching import Catching
from hourglass._tools.lint.external import BY_SETS, ON_LOOP, READS, is_function, rule_of_call
from hourglass._tools.lint.kinds import BY_REFERENCE, Durable, Kinds
from hourglass._tools.lint.modules import Module
from hourglass._tools.lint.order import Ordering, changed_meanwhile
from hourglass._tools.lint.resolving import ValueResolver
from hourglass._tools.lint.scopes import NameScope
from hourglass._tools.lint.sharing import MUTATORS, Shared, Sharing
from hourglass._tools.lint.values import Class, External, Func, Instance, Value


@dataclass(frozen=True)
class Lens:
    """The analyses of a project that the walk through a function queries."""

    resolver: ValueResolver
    kinds: Kinds
    durable: Durable
    sharing: Sharing
    catching: Catching


@dataclass(frozen=True, slots=True)
class Hit:
    """A broken rule at a node. `via` names the calls between this function and a node in another function."""

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
    asks: bool = False


_CONTAINERS = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp


def default_changed(node: ast.AST, scope: NameScope) -> Iterator[str]:
    """Yield the parameters of a function whose shared default this statement or call changes."""
    name = _changed(node)
    # A name with several bindings may be a copy of the default.
    if name and name in _shared(scope) and len(scope.names.get(name, ())) == 1:
        yield name


def _changed(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in MUTATORS:
            return name
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))]):
            return name
        case ast.AugAssign(target=ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name))):
            return name
        case ast.Delete(targets=[ast.Subscript(value=ast.Name(id=name))]):
            return name
        case _:
            return ""


def _shared(scope: NameScope) -> set[str]:
    node = scope.node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    arguments = node.args
    places = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(places), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return {parameter.arg for parameter, default in pairs if isinstance(default, _CONTAINERS)}


_DIFFERS = frozenset({rules.CLOCK, rules.RANDOM, rules.ENVIRONMENT, rules.IDENTITY})


def made_at_import(variable: Shared, resolver: ValueResolver) -> str | None:
    """Return the part of a variable's value that differs between processes, or None if the value is constant."""
    for value in _values(variable):
        for node in ast.walk(value):
            if isinstance(node, ast.Call | ast.Attribute) and (source := _differs(node, variable, resolver)):
                return source
    return None


def _values(variable: Shared) -> Iterator[ast.expr]:
    """Yield the expressions assigned to a variable, except on lines whose comment silences the rule."""
    for binding in variable.module.scope.names.get(variable.name, ()):
        value = getattr(binding.meaning, "value", None)
        if isinstance(value, ast.expr) and binding.line not in variable.module.allowed:
            yield value


def _differs(node: ast.Call | ast.Attribute, variable: Shared, resolver: ValueResolver) -> str | None:
    target = node.func if isinstance(node, ast.Call) else node
    for value in resolver.values(target, variable.module.scope):
        name = value.name if isinstance(value, External) else ""
        if isinstance(node, ast.Call) and rule_of_call(name, node) in _DIFFERS:
            return f"{name.replace('()', '')}()"
        if READS.get(name) in _DIFFERS:
            return name
    return None


class SharedUses:
    """One function's uses of shared variables: those it changes, and reads of those that change elsewhere or
    differ by process.

    It receives the nodes of the function and yields the code and message of each broken rule.
    """

    def __init__(self, lens: Lens, scope: NameScope, receiver: Class | None) -> None:
        self._lens = lens
        self._scope = scope
        self._receiver = receiver
        self._changed: set[tuple[Shared, int]] = set()  # reported already; a change is worse than a read

    def changed(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        """Yield the rules that a statement or call breaks by changing shared variables."""
        for name in default_changed(node, self._scope):
            yield rules.GLOBALS, f"it changes the default of {name}, which all runs in a process share"
        for variable in self._lens.sharing.changes(node, self._scope, self._receiver):
            if not self._is_ours(variable):
                self._changed.add((variable, getattr(node, "lineno", 0)))
                yield rules.GLOBALS, f"it changes {variable.name}, which all runs in a process share"

    def read(self, node: ast.expr) -> Iterator[tuple[str, str]]:
        """Yield the rules that reading a variable breaks."""
        variable = self._lens.sharing.variable(node, self._scope, self._receiver)
        if variable is None or self._is_ours(variable) or (variable, node.lineno) in self._changed:
            return
        changed = self._lens.sharing.changed_at(variable)
        if changed is not None:
            module, place = changed
            line = getattr(place, "lineno", 1)
            if line not in module.allowed:
                by = f"{module.shown}:{line} changes while the program runs"
                yield rules.GLOBALS, f"it reads {variable.name}, which {by}"
            return
        made = made_at_import(variable, self._lens.resolver)
        if made is not None:
            yield rules.IMPORT_TIME, f"{variable.name} is made from {made} when its module is imported"

    def _is_ours(self, variable: Shared) -> bool:
        """Whether a variable holds a channel or another object of Hourglass that is meant to be shared."""
        if "." in variable.name:
            return False
        values = self._lens.resolver.lookup(variable.name, variable.module.scope)
        return any(isinstance(value, External) and value.name.startswith("hourglass.") for value in values)


_DECIDED_BY_PROCESS = (
    "hourglass.workflow.is_replaying",
    "logging.Logger.isEnabledFor",
    "logging.Logger.getEffectiveLevel",
    "hourglass.workflow.logger.isEnabledFor",
)
_BUILT_WITH = ("__new__", "__init__", "__post_init__")


_UNSAFE = frozenset(("hourglass.workflow.unsafe", "hourglass.workflow.unsafe.sandbox_unrestricted"))


def look(function: Func, lens: Lens, *, is_root: bool, is_async: bool = False) -> Seen:
    """Analyse a function. `is_async` means that it runs on a workflow's event loop; an `async def` always does."""
    walk = _Walk(function, lens, is_root, is_async or isinstance(function.node, ast.AsyncFunctionDef))
    walk.function()
    return walk.seen


class _Walk:
    def __init__(self, function: Func, lens: Lens, is_root: bool, is_async: bool) -> None:
        self.seen = Seen()
        self._is_async = is_async
        self._function = function
        self._lens = lens
        self._is_root = is_root
        self._module = function.module
        self._scope = function.module.scope_of_function(function.node, function.scope)
        self._receiver = function.receiver
        self._told_apart: set[ast.AST] = set()  # `id(…)` calls that only compare identities
        self._by_reference: set[ast.AST] = (
            set()
        )  # names of activities and workflows that are passed by reference
        self._ordering = Ordering(lambda node: lens.resolver.is_set(node, self._scope, self._receiver))
        self._shared = SharedUses(lens, self._scope, self._receiver)

    def function(self) -> None:
        """Analyse the body and the functions that decorators wrap around it."""
        node = self._function.node
        if self._is_root and not isinstance(node, ast.Lambda):
            self._endless(node)
        for statement in [node.body] if isinstance(node, ast.Lambda) else node.body:
            self._visit(statement)
        for wrapper in self._lens.kinds.decorators(self._function):
            self._follow(wrapper, node)

    def _values(self, node: ast.expr) -> tuple[Value, ...]:
        return self._lens.resolver.values(node, self._scope, self._receiver)

    def _externals(self, node: ast.expr) -> Iterator[str]:
        return (value.name for value in self._values(node) if isinstance(value, External))

    def _hit(self, code: str, node: ast.AST, message: str) -> None:
        self.seen.hits.append(Hit(code, self._module, node, message))

    def _follow(self, function: Func, node: ast.AST) -> None:
        if not self._lens.kinds.is_boundary(function):
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
        self._told_apart.update(order.telling_apart(node))
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
            case ast.If(test=test) | ast.While(test=test):
                self._branch(node, test)
            case ast.For():
                self._loop(node)
            case ast.Try():
                self._try(node)
            case ast.Return(value=ast.expr() as value) if self._is_root and self._ordering.is_set(value):
                self._hit(rules.SET_ORDER, value, "the result is sent in the order of a set")
            case _:
                pass

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        """Note a nested definition: it runs when it is called; handlers and other decorated functions may be
        called.
        """
        for decorator in node.decorator_list:
            self._visit(decorator)
        if isinstance(node, ast.ClassDef):
            return
        for default in [
            *node.args.defaults,
            *(value for value in node.args.kw_defaults if value is not None),
        ]:
            self._visit(default)
        if node.decorator_list:
            self._follow(Func(self._module, node, self._scope, self._receiver), node)

    def _is_unsafe(self, items: list[ast.withitem]) -> bool:
        return any(
            isinstance(item.context_expr, ast.Call)
            and any(name in _UNSAFE for name in self._externals(item.context_expr.func))
            for item in items
        )

    def _in_workflow(self, node: ast.If) -> list[ast.stmt] | None:
        """Return the branch that a workflow takes of an `if` that asks whether code runs in a workflow."""
        test, chosen = node.test, node.body
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, chosen = test.operand, node.orelse
        is_question = isinstance(test, ast.Call) and "hourglass.workflow.in_workflow" in self._externals(
            test.func
        )
        return chosen if is_question else None

    def _call(self, node: ast.Call) -> None:
        for value in self._values(node.func):
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
        if self._lens.durable.is_durable(node, self._scope, self._receiver):
            self.seen.asks = True
            for argument in arguments:
                if not isinstance(argument, ast.Starred) and self._ordering.is_set(argument):
                    self._hit(rules.SET_ORDER, argument, "the argument is sent in the order of a set")

    def _external(self, name: str, node: ast.Call) -> None:
        if self._is_async and name in ON_LOOP:
            self._on_loop(name, node)
            return
        code = rule_of_call(name, node)
        if code == rules.IDENTITY and node in self._told_apart:
            return
        if code is not None:
            self._hit(code, node, f"{_shown(name)}() {rules.RULES[code].title}")
            return
        if name in BY_REFERENCE and node.args:
            self._by_reference.add(node.args[0])
        self._order(self._ordering.at_call(node, name))

    def _on_loop(self, name: str, node: ast.Call) -> None:
        """Check a call of asyncio on a workflow's event loop: it is deterministic there, except for functions
        that use sets.
        """
        if name in BY_SETS:
            short = name.rpartition(".")[2]
            self._hit(
                rules.SET_ORDER,
                node,
                f"{name}() goes through tasks in the order of a set; hourglass.aio.workflow.{short} keeps the given one",
            )

    def _handed_on(self, argument: ast.expr) -> None:
        """Treat a function argument as called: `key=id`, `default_factory=uuid4`."""
        if isinstance(argument, ast.Name | ast.Attribute):
            for name in self._externals(argument):
                code = None if self._is_async and name in ON_LOOP else rule_of_call(name, None)
                if code is not None and is_function(name):
                    self._hit(
                        code,
                        argument,
                        f"{_shown(name)} {rules.RULES[code].title}, and is handed on to be called",
                    )

    def _out_of_tables(self, node: ast.expr) -> None:
        """Treat functions in `STEPS[name]` and `STEPS.get(name)` as called."""
        if isinstance(node, ast.Subscript | ast.Call):
            for value in self._values(node):
                if isinstance(value, Func) and not isinstance(value.node, ast.Lambda):
                    self._follow(value, node)

    def _load(self, node: ast.Name | ast.Attribute) -> None:
        if node in self._by_reference:
            return
        for value in self._values(node):
            match value:
                case Func() if isinstance(node, ast.Name | ast.Attribute):
                    self._follow(value, node)
                case External(name) if name in READS:
                    code = READS[name]
                    self._hit(
                        code, node, f"{name} {rules.RULES[code].title.replace('reads', 'is a part of')}"
                    )
                case _:
                    pass
        for code, message in self._shared.read(node):
            self._hit(code, node, message)

    def _build(self, cls: Class, node: ast.Call) -> None:
        """Follow the creation of an object: its constructors and the default factories of its fields."""
        if self._lens.kinds.is_boundary(cls):
            return
        self._methods(cls, _BUILT_WITH, node)
        for base in self._lens.resolver.members.bases(cls):
            scope = base.module.scope_of_class(base.node, base.scope)
            for statement in base.node.body:
                factory = _default_factory(statement)
                for value in self._lens.resolver.values(factory, scope) if factory is not None else ():
                    if isinstance(value, Func):
                        self._follow(value, node)
                    elif (
                        isinstance(value, External)
                        and (code := rule_of_call(value.name, None))
                        and factory is not None
                    ):
                        message = f"{_shown(value.name)}() {rules.RULES[code].title}, for each {base.node.name} that is made"
                        self.seen.hits.append(
                            Hit(code, base.module, factory, message, (base.node.name, node))
                        )

    def _methods(self, cls: Class, names: tuple[str, ...], node: ast.AST) -> None:
        for name in names:
            for value in self._lens.resolver.attribute(cls, name):
                if isinstance(value, Func):
                    self._follow(value, node)

    def _enter(self, items: list[ast.withitem]) -> None:
        for item in items:
            for value in self._values(item.context_expr):
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

    def _branch(self, node: ast.If | ast.While, test: ast.expr) -> None:
        for part in ast.walk(test):
            if isinstance(part, ast.Call):
                for name in self._externals(part.func):
                    inside = [*node.body, *node.orelse]
                    if name in _DECIDED_BY_PROCESS and self._lens.durable.asks(
                        inside, self._scope, self._receiver
                    ):
                        shown = name.removeprefix("hourglass.")
                        self._hit(rules.REPLAY_BRANCH, part, f"{shown}() decides what the workflow asks for")

    def _loop(self, node: ast.For) -> None:
        changed = changed_meanwhile(node, self._function, self._lens.resolver, self._lens.kinds)
        if changed is not None and self._lens.durable.waits(node.body, self._scope, self._receiver):
            where = f"line {getattr(changed, 'lineno', 1)} changes meanwhile"
            self._hit(
                rules.CHANGED_MEANWHILE, node.iter, f"the loop waits in its body while it walks what {where}"
            )

    def _try(self, node: ast.Try) -> None:
        for handler in self._lens.catching.never_caught(
            node, self._scope, self._receiver, is_async=self._is_async
        ):
            by, wrapped = _WRAPPED_IN[handler.remote]
            self._hit(
                rules.NEVER_CAUGHT,
                handler.node,
                f"what {by} raises is the cause of {wrapped}, which except {handler.name} lets pass",
            )

    def _endless(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Report a workflow that calls itself unconditionally: no branch and no deliberate exception comes
        first.
        """
        for call in _certain_calls(node.body):
            if self._is_itself(call):
                self._hit(rules.ENDLESS, call, f"{self._shown_name()} calls itself whatever happens")
                return
            if not self._goes_on(call):
                return

    def _is_itself(self, call: ast.Call) -> bool:
        for value in self._values(call.func):
            match value:
                case Func(node=node) if node is self._function.node and self._lens.kinds.is_boundary(value):
                    return True
                case External("hourglass.workflow.execute_child_workflow") if call.args:
                    callees = self._values(call.args[0])
                    return any(
                        isinstance(candidate, Func) and candidate.node is self._function.node
                        for candidate in callees
                    )
                case _:
                    pass
        return False

    def _shown_name(self) -> str:
        owner = self._receiver.node.name + "." if self._receiver is not None else ""
        return f"{owner}{self._function.name}"

    def _goes_on(self, call: ast.Call) -> bool:
        """Whether a call is known to return, or to fail only for reasons that the workflow does not plan for."""
        return all(
            self._lens.kinds.is_boundary(value)
            or (isinstance(value, External) and value.name != "hourglass.workflow.continue_as_new")
            for value in self._values(call.func)
        )


def _certain_calls(statements: list[ast.stmt]) -> Iterator[ast.Call]:
    """Yield the calls that are always made, in order, until the function may end."""
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


_WRAPPED_IN = {
    "activity": ("an activity", "an ActivityError"),
    "workflow": ("a child workflow", "a ChildWorkflowError"),
}


def _default_factory(node: ast.stmt) -> ast.expr | None:
    match node:
        case ast.AnnAssign(value=ast.Call(keywords=keywords)) | ast.Assign(value=ast.Call(keywords=keywords)):
            return next(
                (keyword.value for keyword in keywords if keyword.arg in ("default_factory", "factory")), None
            )
        case _:
            return None


def _shown(name: str) -> str:
    return name.replace("()", "")
