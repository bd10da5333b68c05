"""Detection of an `except` clause that misses a failure that its author meant to catch. The clause names the exception
that the activity or child raised, instead of the `ActivityError` or `ChildWorkflowError` that has this exception as its
cause.

Called once for each run that has failed with one of these two errors. Reads the traceback and the source of the
author's functions. Must not know: runs.
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

_MOST_FRAMES = 200
"""The maximum number of frames to examine, from the outermost inwards: a recursion has many frames."""


def passed_handler(error: BaseException | None) -> str:
    """Return a sentence that names the clause that missed the error, and the correction. Return an empty str if no
    clause did.
    """
    if not isinstance(error, ActivityError | ChildWorkflowError) or error.__cause__ is None:
        return ""
    try:
        handler = next(_passed(error, error.__cause__), None)
    except Exception:
        # The sources have changed or are missing: logging a failure must not fail.
        return ""
    if handler is None:
        return ""
    file, line, name = handler
    kind = getattr(error.__cause__, "type", "")
    test = f'error.cause.type == "{kind}"' if isinstance(error.__cause__, ApplicationError) else "error.cause"
    return (
        f"except {name} ({file}:{line}) does not catch this error: an exception of an activity or child workflow is the "
        f"cause of {_with_article(error)}; write `except {type(error).__name__} as error:` and test `{test}`"
    )


def _with_article(error: BaseException) -> str:
    name = type(error).__name__
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


def _passed(error: BaseException, cause: BaseException) -> Iterator[tuple[str, int, str]]:
    for (frame, line), _ in zip(traceback.walk_tb(error.__traceback__), range(_MOST_FRAMES), strict=False):
        file = frame.f_code.co_filename
        if is_ours(file) or is_library(file):
            continue
        for handler_line, name in _handlers(frame.f_code, line):
            if _means(name, frame, cause):
                yield file, handler_line, name


@lru_cache(maxsize=256)
def _handlers(code: CodeType, line: int) -> tuple[tuple[int, str], ...]:
    """Return the lines and names of the exceptions in the `except` clauses around a line of a function."""
    lines, first = inspect.getsourcelines(code)
    first = max(first, 1)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    handlers = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Try):
            continue
        begins, ends = node.body[0].lineno, node.body[-1].end_lineno or 0
        if begins <= line - first + 1 <= ends:
            for handler in node.handlers:
                kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
                handlers += [
                    (kind.lineno + first - 1, ast.unparse(kind)) for kind in kinds if kind is not None
                ]
    return tuple(handlers)


def _means(name: str, frame: FrameType, cause: BaseException) -> bool:
    """Whether `name`, as this frame resolves it, is an exception class that would have caught the cause."""
    kind = getattr(cause, "type", "")
    first, *attributes = name.split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first, frame.f_builtins.get(first)))
    for attribute in attributes:
        value = getattr(value, attribute, None)
    if not isinstance(value, type) or not issubclass(value, BaseException):
        return bool(kind) and name.rpartition(".")[2] == kind
    return isinstance(cause, value) or kind in _names(value)


def _names(kind: type[BaseException]) -> set[str]:
    return {kind.__name__}.union(*map(_names, kind.__subclasses__()))
