"""How a twin of another SDK's workflow is written down, and what the recorded activities are called with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hourglass import workflow

D = TypeVar("D", bound=Callable[..., Any])

SECONDS = 10.0
HOUR = 3600.0


def entering(twins: dict[str, Any]) -> Callable[[str], Callable[[D], D]]:
    """A decorator that enters a function or class in this table, as the twin of the workflow type of that name."""

    def twin(name: str) -> Callable[[D], D]:
        def enter(definition: D) -> D:
            twins[name] = workflow.defn(name=name)(definition)
            return definition

        return enter

    return twin


def act(name: str, *args: Any, **options: Any) -> Any:
    """Execute an activity by name."""
    options.setdefault("start_to_close_timeout", SECONDS)
    return workflow.execute_activity(name, *args, **options)


def start(name: str, *args: Any, **options: Any) -> Any:
    """Start an activity by name."""
    options.setdefault("start_to_close_timeout", SECONDS)
    return workflow.start_activity(name, *args, **options)


def local(name: str, *args: Any, **options: Any) -> Any:
    """Execute a local activity by name."""
    options.setdefault("start_to_close_timeout", SECONDS)
    return workflow.execute_local_activity(name, *args, **options)


def start_local(name: str, *args: Any, **options: Any) -> Any:
    """Start a local activity by name."""
    options.setdefault("start_to_close_timeout", SECONDS)
    return workflow.start_local_activity(name, *args, **options)
