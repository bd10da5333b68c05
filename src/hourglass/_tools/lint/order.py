"""Code that depends on iteration order, and loops over a collection that a handler or another task changes during the loop.

For each kind of syntax, this module knows the expressions that must not be sets. It examines syntax and names only.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from hourglass._tools.lint.kinds import Kinds
from hourglass._tools.lint.resolving import ValueResolver
from hourglass._tools.lint.values import Func, words

_RESIZING = words(
    "append appendleft extend insert remove pop popleft popitem clear add discard update setdefault"
)
_VIEWS = frozenset({"items", "values", "keys"})


def changed_meanwhile(loop: ast.For, function: Func, resolver: ValueResolver, kinds: Kinds) -> ast.AST | None:
    """Return the node where a handler or another task changes the collection of this loop, or None if there is none."""
    collection = _collection(loop.iter)
    match collection:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return next(_by_others(name, function, resolver, kinds), None)
        case ast.Name(id=name):
            return next(_by_inner(name, function), None)
        case _:
            return None


def _collection(node: ast.expr) -> ast.expr:
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[]) if name in _VIEWS:
            return owner
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
            return _collection(inner)
        case _:
            return node


def _by_others(name: str, function: Func, resolver: ValueResolver, kinds: Kinds) -> Iterator[ast.AST]:
    """Yield the nodes where other handlers, or functions nested in this one, change the attribute."""
    if function.receiver is None:
        return
    for cls in resolver.members.bases(function.receiver):
        for method in cls.node.body:
            is_handler = method is not function.node and kinds.is_handler_method(method, cls.body_scope)
            if is_handler and getattr(method, "name", "") != "__init__":
                yield from _resizes(method, name, own=True)
    for inner in _inner_functions(function):
        yield from _resizes(inner, name, own=True)


def _by_inner(name: str, function: Func) -> Iterator[ast.AST]:
    for inner in _inner_functions(function):
        bound = {parameter.arg for parameter in ast.walk(inner) if isinstance(parameter, ast.arg)}
        assigned = (
            node.id
            for node in ast.walk(inner)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        if name not in bound and name not in assigned:
            yield from _resizes(inner, name, own=False)


def _inner_functions(function: Func) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(function.node):
        if isinstance(node, ast.FunctionDef) and node is not function.node:
            yield node


def _resizes(function: ast.AST, name: str, *, own: bool) -> Iterator[ast.AST]:
    for node in ast.walk(function):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=method)) if method in _RESIZING and _is(
                owner, name, own
            ):
                yield node
            case ast.Subscript(value=owner, ctx=ast.Store() | ast.Del()) if _is(owner, name, own):
                yield node
            case _:
                pass


def _is(node: ast.expr, name: str, own: bool) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=found):
            return own and found == name
        case ast.Name(id=found):
            return not own and found == name
        case _:
            return False


INSENSITIVE = words(
    "sorted set frozenset len min max sum any all bool isinstance collections.Counter math.fsum "
    "statistics.mean statistics.median"
)
"""Functions with a result that does not depend on the order of their arguments' items."""

_ORDERED = words(
    "list tuple enumerate iter zip map filter str repr format dict.fromkeys collections.deque "
    "collections.OrderedDict.fromkeys functools.reduce itertools.chain itertools.islice "
    "itertools.batched itertools.groupby itertools.accumulate itertools.product "
    "itertools.permutations itertools.combinations itertools.cycle itertools.zip_longest "
    "itertools.chain.from_iterable heapq.heapify next"
)
_ORDERED_OWN = frozenset(
    {"hourglass.workflow.map", "hourglass.workflow.as_completed", "hourglass.workflow.wait"}
)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
_COMPREHENSIONS = ast.ListComp | ast.GeneratorExp | ast.DictComp


def ordered_by_syntax(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield the expressions that a node iterates over in order, with a description."""
    match node:
        case ast.For(iter=iterable):
            yield iterable, "the loop iterates over"
        case ast.Starred(value=value, ctx=ast.Load()):
            yield value, "the star unpacks"
        case ast.YieldFrom(value=value):
            yield value, "yield from iterates over"
        case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value):
            yield value, "the assignment unpacks"
        case ast.FormattedValue(value=value):
            yield value, "the string contains"
        case ast.Call(func=ast.Attribute(value=owner, attr="pop"), args=[]):
            yield owner, "pop removes an arbitrary element of"
        case ast.Call(func=ast.Attribute(attr="join" | "extend" as name), args=[value]):
            yield value, f"{name} iterates over"
        case _:
            pass


def bare(nodes: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """Yield the expressions, and also the values of starred expressions."""
    for node in nodes:
        yield node
        if isinstance(node, ast.Starred):
            yield node.value


def only_collects(body: Sequence[ast.stmt], is_set: Callable[[ast.expr], bool]) -> bool:
    """Whether statements only add items to sets or remove items from sets, so that the order does not matter."""
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="add" | "discard"))) if is_set(
                owner
            ):
                pass
            case ast.If(body=inner, orelse=others) if only_collects([*inner, *others], is_set):
                pass
            case ast.Pass():
                pass
            case _:
                return False
    return True


def compared_by_identity(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that a node uses only for equality or identity: keys, elements of sets, operands of `==`."""
    match node:
        case ast.Compare(left=left, ops=operators, comparators=others) if all(
            isinstance(operator, _COMPARISONS) for operator in operators
        ):
            yield from (left, *others)
        case ast.Subscript(slice=key):
            yield key
        case ast.Call(func=ast.Attribute(attr="add" | "discard" | "get" | "setdefault"), args=[key, *_]):
            yield key
        case _:
            pass


class Ordering:
    """The places where a function uses the order of a set.

    Pass every node of the function, outer nodes first, because outer nodes decide where the order does not matter. The
    methods yield the sets that are used in order, with a description.
    """

    def __init__(self, is_set: Callable[[ast.expr], bool]) -> None:
        self.is_set = is_set
        self._free: set[ast.AST] = set()

    def at(self, node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
        """Yield the sets that a node uses in order, by its syntax."""
        self._free.update(self._freed_by(node))
        for expression, how in ordered_by_syntax(node):
            if node not in self._free and self.is_set(expression):
                yield expression, how
        if isinstance(node, _COMPREHENSIONS) and node not in self._free:
            for generator in node.generators:
                if self.is_set(generator.iter):
                    yield generator.iter, "the comprehension iterates over"

    def at_call(self, node: ast.Call, name: str) -> Iterator[tuple[ast.expr, str]]:
        """Yield the sets that a function outside the project uses in order."""
        if name in INSENSITIVE or node in self._free:
            self._free.update(bare(node.args))
            return
        if name in _ORDERED or name in _ORDERED_OWN:
            for argument in filter(self.is_set, node.args):
                yield argument, f"{name.removeprefix('hourglass.')}() iterates over"

    def _freed_by(self, node: ast.AST) -> Iterator[ast.AST]:
        match node:
            case ast.Set(elts=parts):
                yield from bare(parts)
            case ast.Call(func=ast.Attribute(value=owner), args=parts) if self.is_set(owner):
                yield from bare(parts)
            case ast.SetComp(generators=generators):
                yield from (generator.iter for generator in generators)
            case ast.GeneratorExp(generators=generators) | ast.ListComp(generators=generators):
                if node in self._free:
                    yield from (generator.iter for generator in generators)
            case ast.For(body=body) if only_collects(body, self.is_set):
                yield node
            case _:
                pass
