"""How a twin is written down: the plain definition that must replay the history of its program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hourglass import workflow

D = TypeVar("D", bound=Callable[..., Any])

MINUTE = 60.0
TWINS: dict[str, Any] = {}


def twin(name: str) -> Callable[[D], D]:
    """Enter a function or class as the twin of the program of this name."""

    def enter(definition: D) -> D:
        TWINS[name] = workflow.defn(name=name)(definition)
        return definition

    return enter


def act(name: str, *args: Any, **options: Any) -> Any:
    """Execute an activity by name."""
    options.setdefault("start_to_close_timeout", MINUTE)
    return workflow.execute_activity(name, *args, **options)


def start(name: str, *args: Any, **options: Any) -> Any:
    """Start an activity by name."""
    options.setdefault("start_to_close_timeout", MINUTE)
    return workflow.start_activity(name, *args, **options)


def wait_for(task: Any, limit: float) -> Any:
    """A task within a time limit, in the turns of `asyncio.wait_for`."""
    return workflow.wait_for(task, limit)
