"""Which `except` let a failure pass that its author meant to catch: one around the call that names what the activity or
the child raised, and not the `ActivityError` or `ChildWorkflowError` that it comes in.

Looked for when a run has failed by such an error, in the source of the author's functions that it came through, so
once for each failed run and never in one that goes well. Knows tracebacks and sources, no run.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import traceback
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FrameType

from hourglass._worker.code_origin import is_library, is_ours
from hourglass.errors import ActivityError, ApplicationError, ChildWorkflowError

_WAYS = 200
"""So many frames of a traceback are looked at, the outermost first: one of a recursion is long."""


def passed_handler(error: BaseException | None) -> str:
    """In words: the handler that an error passed by, and what to write instead; empty if there is none."""
    if not isinstance(error, ActivityError | ChildWorkflowError) or error.__cause__ is None:
        return ""
    try:
        found = next(_passed(error, error.__cause__), None)
    except Exception:
        # Sources that have changed or are not there: no reason to fail while one tells of a failure.
        return ""
    if found is None:
        return ""
    file, line, name = found
    kind = getattr(error.__cause__, "type", "")
    told = f'error.cause.type == "{kind}"' if isinstance(error.__cause__, ApplicationError) else "error.cause"
    return (
        f"except {name} ({file}:{line}) does not catch it: what was raised elsewhere comes as the cause of "
        f"{_with_article(error)}; write `except {type(error).__name__} as error:` and look at `{told}`"
    )


def _with_article(error: BaseException) -> str:
    name = type(error).__name__
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


def _passed(error: BaseException, cause: BaseException) -> Iterator[tuple[str, int, str]]:
    for (frame, line), _ in zip(traceback.walk_tb(error.__traceback__), range(_WAYS), strict=False):
        file = frame.f_code.co_filename
        if is_ours(file) or is_library(file):
            continue
        for at, name in _handlers(frame.f_code, line):
            if _means(name, frame, cause):
                yield file, at, name


@lru_cache(maxsize=256)
def _handlers(code: CodeType, line: int) -> tuple[tuple[int, str], ...]:
    """Lines and names of the exceptions in the handlers around a line of a function."""
    lines, first = inspect.getsourcelines(code)
    first = max(first, 1)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Try):
            continue
        begins, ends = node.body[0].lineno, node.body[-1].end_lineno or 0
        if begins <= line - first + 1 <= ends:
            for handler in node.handlers:
                kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
                found += [(each.lineno + first - 1, ast.unparse(each)) for each in kinds if each is not None]
    return tuple(found)


def _means(name: str, frame: FrameType, cause: BaseException) -> bool:
    """Whether a handler's exception, as it is called in a function, is what the cause tells of."""
    kind = getattr(cause, "type", "")
    first, *rest = name.split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first, frame.f_builtins.get(first)))
    for each in rest:
        value = getattr(value, each, None)
    if not isinstance(value, type) or not issubclass(value, BaseException):
        return bool(kind) and name.rpartition(".")[2] == kind
    return isinstance(cause, value) or kind in _names(value)


def _names(kind: type[BaseException]) -> set[str]:
    """The names of an exception and of all that are made of it."""
    return {kind.__name__}.union(*map(_names, kind.__subclasses__()))
