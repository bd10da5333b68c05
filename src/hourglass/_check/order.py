"""Where code depends on the order of what it walks: which expressions of a node must not be sets. Knows syntax and names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from hourglass._check.names import words

INSENSITIVE = words(
    "sorted set frozenset len min max sum any all bool isinstance collections.Counter math.fsum "
    "statistics.mean statistics.median"
)
"""Functions that give the same whatever the order is."""

_ORDERED = words(
    "list tuple enumerate iter zip map filter str repr format dict.fromkeys collections.deque "
    "collections.OrderedDict.fromkeys functools.reduce itertools.chain itertools.islice "
    "itertools.batched itertools.groupby itertools.accumulate itertools.product "
    "itertools.permutations itertools.combinations itertools.cycle itertools.zip_longest "
    "itertools.chain.from_iterable heapq.heapify next"
)
_ORDERED_HERE = frozenset(
    {"hourglass.workflow.map", "hourglass.workflow.as_completed", "hourglass.workflow.wait"}
)
_TELLING_APART = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Is, ast.IsNot)
_COMPREHENSIONS = ast.ListComp | ast.GeneratorExp | ast.DictComp


def ordered_by_syntax(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Expressions that a node walks in their order, and how; calls and comprehensions are told apart below."""
    match node:
        case ast.For(iter=iterable):
            yield iterable, "the loop walks"
        case ast.Starred(value=value, ctx=ast.Load()):
            yield value, "the star unpacks"
        case ast.YieldFrom(value=value):
            yield value, "yield from walks"
        case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value):
            yield value, "the assignment unpacks"
        case ast.FormattedValue(value=value):
            yield value, "the text shows"
        case ast.Call(func=ast.Attribute(value=owner, attr="pop"), args=[]):
            yield owner, "pop takes any element of"
        case ast.Call(func=ast.Attribute(attr="join" | "extend" as name), args=[value]):
            yield value, f"{name} walks"
        case _:
            pass


def ordered_by_comprehension(node: ast.AST, free: set[ast.AST]) -> Iterator[tuple[ast.expr, str]]:
    """What a comprehension walks, unless its result has no order, or nobody cares for it."""
    if isinstance(node, _COMPREHENSIONS) and node not in free:
        for each in node.generators:
            yield each.iter, "the comprehension walks"


def ordered_by_call(node: ast.Call, name: str) -> Iterator[tuple[ast.expr, str]]:
    """Arguments that a function outside the project takes in their order."""
    if name in _ORDERED or name in _ORDERED_HERE:
        shown = name.removeprefix("hourglass.")
        for argument in node.args:
            yield argument, f"{shown}() takes"


def bare(nodes: Sequence[ast.expr]) -> Iterator[ast.expr]:
    """Expressions, and what stands behind their stars."""
    for node in nodes:
        yield node
        if isinstance(node, ast.Starred):
            yield node.value


def only_collects(body: Sequence[ast.stmt], is_set: Callable[[ast.expr], bool]) -> bool:
    """Whether statements do nothing but put things into sets, or take them out: in any order, the same comes out."""
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


def telling_apart(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions whose value only tells objects apart: keys, elements of sets, and what is compared for being equal."""
    match node:
        case ast.Compare(left=left, ops=operators, comparators=others) if all(
            isinstance(each, _TELLING_APART) for each in operators
        ):
            yield from (left, *others)
        case ast.Subscript(slice=key):
            yield key
        case ast.Call(func=ast.Attribute(attr="add" | "discard" | "get" | "setdefault"), args=[key, *_]):
            yield key
        case _:
            pass
