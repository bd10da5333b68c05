"""Which functions can run in a process of their own, checked where they are written.

A process activity is found again in another interpreter, by module and qualified name: so it is a plain
function at the top level of a module, or a static method. Its module is imported there: what stands at the top
level of a script runs again, except below `if __name__ == "__main__":`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from hourglass.errors import DefinitionError

Executor: TypeAlias = Literal["thread", "process"]


def check_executor(fn: Callable[..., Any], executor: str) -> Executor:
    """The executor of a function; raises DefinitionError where there is none such, or it cannot be."""
    name = fn.__qualname__
    if executor == "thread":
        return "thread"
    if executor != "process":
        raise DefinitionError(f"activity {name}: executor must be 'thread' or 'process', not {executor!r}")
    if inspect.iscoroutinefunction(fn):
        raise DefinitionError(
            f"activity {name} is an async function: those run on the worker's activity loop. With "
            f"executor='process' write a plain `def`, which may call asyncio.run(…)"
        )
    if "<locals>" in name or "<lambda>" in name:
        raise DefinitionError(
            f"activity {name}: executor='process' finds the function by its name in another interpreter, so it must "
            f"stand at the top level of a module, or be a static method of a class there"
        )
    return "process"


def refuse_method(name: str) -> DefinitionError:
    """Why a method cannot run in another process."""
    return DefinitionError(
        f"activity {name} is a method: executor='process' has no instance in the other interpreter. Make it a "
        f"function, or a static method (@staticmethod above @activity.defn)"
    )
