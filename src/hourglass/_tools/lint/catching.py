"""Exception handlers that never catch.

An exception that an activity or a child workflow raises reaches the workflow as the cause of an
`ActivityError` or a `ChildWorkflowError`, so `except Declined:` around the call never matches.

A false alarm would make authors break working code. So a handler is reported only if all other code in the `try` body is
known and raises no matching exception. Calls are followed through the project. An unknown call, `raise` or context manager
ends the search without a report. So does another handler of the same `try` that names the wrapping error: its author knows
the rule, and uses the other handlers for calls outside a workflow, where exceptions are not wrapped.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from hourglass._tools.lint.defining import own_nodes
from hourglass._tools.lint.kinds import Kinds
from hourglass._tools.lint.modules import OURS
from hourglass._tools.lint.resolving import Position, ValueResolver
from hourglass._tools.lint.scopes import Assigned
from hourglass._tools.lint.values import UNKNOWN, Class, External, Func, Instance, Items, Value, Values, words

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


@dataclass(frozen=True, slots=True)
class NeverCaught:
    """An exception named by a handler, as written there, and the remote call in the `try` body."""

    node: ast.expr
    name: str
    remote: Remote


_WRAPPING = words(
    "ActivityError ChildWorkflowError NexusOperationError FailureError HourglassError TemporalError"
)
"""Exceptions of Hourglass and Temporal's SDK that a durable call raises directly, and their base classes."""

_WRAPPED = words("ApplicationError TimedOutError TimeoutError TerminatedError ServerError")
"""Exceptions of Hourglass and Temporal's SDK that occur only as a cause."""

_BUILTINS = words(
    "ValueError UnicodeError UnicodeDecodeError UnicodeEncodeError LookupError KeyError IndexError ArithmeticError "
    "ZeroDivisionError OverflowError RuntimeError NotImplementedError AssertionError EOFError OSError TimeoutError "
    "ConnectionError ConnectionAbortedError ConnectionRefusedError ConnectionResetError BrokenPipeError "
    "FileNotFoundError FileExistsError PermissionError IsADirectoryError NotADirectoryError InterruptedError "
    "BlockingIOError ChildProcessError ProcessLookupError"
)
"""Built-in exceptions that a durable call itself never raises. `TypeError` is excluded, because wrong arguments raise it."""

_ALIASES = {
    "IOError": "OSError",
    "EnvironmentError": "OSError",
    "socket.error": "OSError",
    "socket.timeout": "TimeoutError",
    "asyncio.TimeoutError": "TimeoutError",
    "concurrent.futures.TimeoutError": "TimeoutError",
}

_PLAIN = words("object typing.NamedTuple typing.Protocol abc.ABC")
"""Base classes that are no exceptions."""

_LOOPS = ("asyncio.", "concurrent.", "trio.", "anyio.", "greenlet.")
"""Modules with exceptions that interrupt the waiting code: cancellation and timeouts."""

_STRANGE = "?"
"""Marks a base of an exception that could not be resolved."""

_FOREIGN = "foreign"
"""Marks a base of an exception that belongs to another package and may have bases of its own."""

_Bases: TypeAlias = frozenset["str | ast.ClassDef"]


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in OURS


def _last(name: str) -> str:
    return name.rpartition(".")[2]


_HARMLESS = words(
    "print len str repr bool isinstance issubclass callable type list dict tuple set frozenset enumerate zip range reversed "
    "sorted any all abs round hasattr getattr id object super datetime.timedelta datetime.datetime datetime.date "
    "dataclasses.replace dataclasses.asdict logging.getLogger typing.cast copy.copy copy.deepcopy"
) | frozenset(
    f"hourglass.workflow.{name}"
    for name in words("now time uuid4 random info sleep patched is_replaying set_current_details upsert_memo")
)
"""Functions outside the project that raise no exception that an author would name in a handler."""

_FAMILIES = ("logging.", "hourglass.workflow.logger.")

_METHODS = words(
    "append extend items keys values join strip lower upper startswith endswith isoformat total_seconds model_dump "
    "debug info warning"
)
"""Methods that are harmless on any object."""

_WAITING = words(
    "asyncio.gather asyncio.wait asyncio.wait_for asyncio.as_completed asyncio.shield"
) | frozenset(
    f"hourglass.workflow.{name}" for name in words("gather wait wait_for as_completed map spawn run_async")
)
"""Functions that wait for tasks or call functions, and propagate their exceptions."""

_WALKED = (ast.Constant, ast.Call, ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp)
"""Expressions that are not calls themselves. Calls inside them are visited separately."""

_SYNTAX: dict[type[ast.AST], frozenset[str]] = {
    ast.Subscript: words("LookupError KeyError IndexError"),
    ast.BinOp: words("ArithmeticError ZeroDivisionError OverflowError ValueError"),
    ast.AugAssign: words("ArithmeticError ZeroDivisionError OverflowError ValueError"),
    ast.Assert: words("AssertionError"),
    ast.Tuple: words("ValueError"),
    ast.List: words("ValueError"),
    ast.Starred: words("ValueError"),
    ast.FormattedValue: words("ValueError"),
}
"""Built-in exceptions that a kind of syntax may raise."""


@dataclass(slots=True)
class _Raised:
    """Exceptions that the body of a `try` may raise."""

    remote: list[Remote] = field(default_factory=list)
    kinds: list[_Bases] = field(default_factory=list)
    builtin: set[str] = field(default_factory=set)
    calls_others: bool = False  # functions of other packages, or Hourglass functions that wait
    anything: bool = False


class Catching:
    """Finds exception handlers of a project that never catch."""

    def __init__(self, resolver: ValueResolver, kinds: Kinds) -> None:
        self.resolver = resolver
        self.kinds = kinds

    def never_caught(self, node: ast.Try, at: Position, *, is_async: bool) -> Iterator[NeverCaught]:
        """Yield the exceptions of a `try`'s handlers that only the remote call in the body could raise."""
        named = [
            (part, value)
            for handler in node.handlers
            for part in getattr(handler.type, "elts", [handler.type])
            if part is not None
            for value in _exceptions(part, at)
        ]
        wrapping = {
            f"ours.{name}" for name in _WRAPPING
        }  # a handler for these also catches the wrapping errors
        if any(value == UNKNOWN or wrapping & self.bases(value) for _, value in named):
            return
        wrapped = [(part, value) for part, value in named if self._is_wrapped(value)]
        if not wrapped:
            return
        raised = _Raised()
        _Body(self, raised, at, is_async=is_async).walk(node.body)
        if raised.anything or not raised.remote:
            return
        for part, value in wrapped:
            if not self._may_be(value, raised):
                yield NeverCaught(part, ast.unparse(part), raised.remote[0])

    def bases(self, value: Value) -> _Bases:
        """Return an exception and all its base classes: classes of the project, and the names of other classes."""
        match value:
            case External(name):
                qualified_name = _ALIASES.get(name, name)
                if _is_ours(qualified_name):
                    last = _last(qualified_name)
                    also = ("builtins.TimeoutError", "builtins.OSError") if "Time" in last else ()
                    return frozenset((f"ours.{last}", "ours.*", *also))
                if qualified_name in _PLAIN:
                    return frozenset()
                cls = getattr(builtins, qualified_name, None)
                if isinstance(cls, type) and issubclass(cls, BaseException):
                    return frozenset(f"builtins.{ancestor.__name__}" for ancestor in cls.__mro__)
                return frozenset((qualified_name, _FOREIGN))
            case Class():
                result: set[str | ast.ClassDef] = set()
                for ancestor in self.resolver.members.bases(value):
                    result.add(ancestor.node)
                    for base in ancestor.node.bases:
                        for base_value in self.resolver.values(base, ancestor.scope):
                            if not isinstance(base_value, Class):
                                result |= self.bases(base_value)
                return frozenset(result)
            case _:
                return frozenset((_STRANGE,))

    def _is_wrapped(self, value: Value) -> bool:
        bases = self.bases(value)
        if _STRANGE in bases or "builtins.TypeError" in bases:
            return False
        if isinstance(value, Class):
            ours = {base for base in bases if isinstance(base, str) and base.startswith("ours.")} - {"ours.*"}
            is_exception = "builtins.BaseException" in bases or bool(ours) or _FOREIGN in bases
            return ours <= {f"ours.{name}" for name in _WRAPPED} and is_exception
        if isinstance(value, External):
            name = _ALIASES.get(value.name, value.name)
            if _is_ours(name):
                return _last(name) in _WRAPPED
            return name in _BUILTINS or (_FOREIGN in bases and not name.startswith(_LOOPS))
        return False

    def _may_be(self, value: Value, raised: _Raised) -> bool:
        own: str | ast.ClassDef
        if isinstance(value, Class):
            own = value.node
        else:
            assert isinstance(value, External)
            name = _ALIASES.get(value.name, value.name)
            own = (
                f"ours.{_last(name)}" if _is_ours(name) else f"builtins.{name}" if name in _BUILTINS else name
            )
            if raised.calls_others or name in raised.builtin:
                return True
        # A class of another package may inherit from built-in classes or classes of its package, but not from a class of the
        # project.
        unsure = {_STRANGE} if isinstance(value, Class) else {_STRANGE, _FOREIGN}
        return any(own in kind or not kind.isdisjoint(unsure) for kind in raised.kinds)


def _exceptions(node: ast.expr, at: Position) -> list[Value]:
    types: list[Value] = []
    for value in at.values(node):
        types += value.elements if isinstance(value, Items) else (value,)
    return [item if isinstance(item, Class | External) else UNKNOWN for item in types]


class _Body:
    """The walk through the body of a `try` and the functions called there, in search of their exceptions."""

    def __init__(self, catching: Catching, raised: _Raised, at: Position, *, is_async: bool) -> None:
        self._catching = catching
        self._resolver = catching.resolver
        self._kinds = catching.kinds
        self._raised = raised
        self._at = at
        self._remote_calls = RemoteCalls(self._values, catching.kinds, is_async=is_async)
        self._known: set[ast.AST] = set()

    def walk(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
                continue
            for inner in (node, *own_nodes(node)):
                if self._raised.anything:
                    return
                self._node(inner)

    def _values(self, node: ast.expr) -> Values:
        return self._at.values(node)

    def _node(self, node: ast.AST) -> None:
        raised = self._raised
        if type(node) in _SYNTAX and not _is_made(node):
            raised.builtin |= _SYNTAX[type(node)]
        match node:
            case ast.Call():
                self._call(node)
            case ast.Raise(exc=ast.expr() as what):
                self._raise(what)
            case ast.Attribute():
                self._attribute(node)
            case ast.With(items=items) | ast.AsyncWith(items=items):
                for item in items:
                    self._enter(item.context_expr)
            case ast.Await(value=value) if not isinstance(value, ast.Call):
                self._wait_for(value)
            case ast.Yield() | ast.YieldFrom() | ast.AsyncFor() | ast.Import() | ast.ImportFrom():
                raised.anything = True
            case _:
                self._operate(node)

    def _attribute(self, node: ast.Attribute) -> None:
        """Treat the use of a property as a call of its getter, setter or deleter."""
        functions = [value for value in self._values(node) if isinstance(value, Func)]
        if any("property" in self._kinds.of(value) for value in functions):
            for value in functions:
                self._function(value)

    def _operate(self, node: ast.AST) -> None:
        """Follow operators, loops and other syntax that call methods of an object, if its class defines them."""
        match node:
            case ast.BinOp(left=left, right=right):
                operands = [left, right]
            case ast.Compare(left=left, comparators=others):
                operands = [left, *others]
            case ast.Subscript(value=operand) | ast.UnaryOp(operand=operand):
                operands = [operand]
            case ast.For(iter=operand) | ast.comprehension(iter=operand) | ast.Starred(value=operand):
                operands = [operand]
            case ast.If(test=operand) | ast.While(test=operand) | ast.AugAssign(target=operand):
                operands = [operand]
            case _:
                return
        for value in [resolved for operand in operands for resolved in self._values(operand)]:
            if isinstance(value, Instance):
                bases = self._resolver.members.bases(value.cls)
                self._raised.anything |= any(map(_has_operators, bases))

    def _raise(self, what: ast.expr) -> None:
        made = what.func if isinstance(what, ast.Call) else what
        for value in self._values(made):
            kind = value.cls if isinstance(value, Instance) else value
            self._raised.kinds.append(self._catching.bases(kind))

    def _enter(self, context: ast.expr) -> None:
        for value in self._values(context):
            match value:
                case External():
                    self._raised.calls_others = True
                case Instance(cls):
                    entering = ("__enter__", "__exit__", "__aenter__", "__aexit__")
                    for method in self._resolver.methods(cls, *entering):
                        self._function(method)
                case _:
                    self._raised.anything = True

    def _call(self, node: ast.Call) -> None:
        remote = self._remote_calls.awaited(node)
        if remote is not None:
            self._raised.remote.append(remote)
            return
        if self._remote_calls.started(node) is not None or self._remote_calls.is_copy(node.func):
            return
        if isinstance(node.func, ast.Attribute) and node.func.attr == "result" and not node.args:
            self._wait_for(node.func.value)
            return
        for value in self._values(node.func):
            self._called(value, node)

    def _called(self, value: Value, node: ast.Call) -> None:
        match value:
            case External(name):
                self._outside(name, node)
            case Func():
                self._function(value)
            case Class():
                self._made(value)
            case _ if isinstance(node.func, ast.Attribute) and self._is_harmless(node.func):
                pass
            case _:
                self._raised.anything = True

    def _is_harmless(self, method: ast.Attribute) -> bool:
        owners = self._values(method.value)
        if method.attr == "get" and all(isinstance(owner, Items) for owner in owners):
            return True
        return method.attr in _METHODS and not any(isinstance(owner, Instance) for owner in owners)

    def _outside(self, name: str, node: ast.Call) -> None:
        """Record a call of a function outside the project. It may call its arguments and raise exceptions."""
        if name in _HARMLESS or name.startswith(_FAMILIES) or ("()." in name and _last(name) in _METHODS):
            pass
        elif not isinstance(getattr(builtins, name, None), type) or not name.endswith(("Error", "Exception")):
            self._raised.calls_others = True
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        for argument in arguments[:1] if workflow_function(External(name)) == "map" else arguments:
            bare = argument.value if isinstance(argument, ast.Starred) else argument
            if isinstance(bare, _WALKED):
                continue
            for value in self._values(bare):
                if self._kinds.is_boundary(value):
                    self._raised.remote.append(self._remote_calls.kind(value))
                elif isinstance(value, Func):
                    self._function(value)
                elif name in _WAITING:
                    self._raised.anything = True

    def _made(self, cls: Class) -> None:
        """Follow the creation of an object: its constructors, including constructors inherited from other packages."""
        if self._kinds.is_boundary(cls):
            self._raised.anything = True
            return
        bases = self._catching.bases(cls)
        if _STRANGE in bases or (_FOREIGN in bases and "builtins.BaseException" not in bases):
            self._raised.anything = True
        for method in self._resolver.methods(cls, "__new__", "__init__", "__post_init__"):
            self._function(method)

    def _function(self, function: Func) -> None:
        if function.node in self._known or self._raised.anything:
            return
        self._known.add(function.node)
        for wrapper in self._kinds.decorators(function):
            self._function(wrapper)
        self._raised.calls_others |= bool(getattr(function.node, "decorator_list", ()))
        before, self._at = self._at, Position.inside(function, self._resolver)
        self.walk(function.body)
        self._at = before

    def _wait_for(self, task: ast.expr) -> None:
        """Record `task.result()` or `await task`: a remote call, if the task was started as one."""
        assigned = self._assigned(task)
        started: list[Remote] = [
            kind for value in assigned if (kind := self._remote_calls.started(value)) is not None
        ]
        self._raised.remote += started
        self._raised.anything |= not started or len(started) < len(assigned)

    def _assigned(self, task: ast.expr) -> list[ast.expr]:
        """Return the expressions assigned to a local variable; none if it is also bound in another way."""
        if not isinstance(task, ast.Name):
            return [task]
        bindings = self._at.scope.names.get(task.id, ())
        assigned = [binding.meaning.value for binding in bindings if isinstance(binding.meaning, Assigned)]
        values = [value.value if isinstance(value, ast.Await) else value for value in assigned if value]
        return values if len(values) == len(bindings) else []


_QUIET = words(
    "__init__ __post_init__ __new__ __repr__ __str__ __enter__ __exit__ __aenter__ __aexit__ __hash__"
)


def _has_operators(cls: Class) -> bool:
    """Whether a class itself defines methods that operators call. Base classes are not examined."""
    return any(
        statement.name.startswith("__") and statement.name not in _QUIET
        for statement in cls.node.body
        if isinstance(statement, ast.FunctionDef)
    )


def _is_made(node: ast.AST) -> bool:
    """Whether a node creates a tuple or list (instead of unpacking one), or formats a value without a format spec."""
    match node:
        case ast.Tuple(ctx=ast.Load()) | ast.List(ctx=ast.Load()) | ast.FormattedValue(format_spec=None):
            return True
        case ast.Subscript(ctx=ast.Store()):
            return True
        case _:
            return False
