"""How a program of the corpus is written down: a `temporalio` workflow and the script that drives it.

A script is data: steps separated by `|`, carried out one after the other while the workflow runs.

    held                 (only first) no workflow worker runs when the workflow is started
    stop, go             stop the workflow worker, start a new one; what happens in between lands in one task
    open NAME …          let `gated` activities of these names end, one by one, waiting for each
    release NAME …       the same without waiting: the activity's end will not be recorded
    signal NAME ARG …    send a signal
    update NAME ARG …    send an update without waiting for its end
    query NAME           ask, and wait for the answer
    cancel               ask for cancellation
    EVENT N              wait until the history holds N such events; see `EVENTS` in `record`
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow

W = TypeVar("W", bound=type)

MINUTE = timedelta(seconds=60)


@dataclass(frozen=True)
class Program:
    """One workflow to record. `later` marks what Hourglass supports after its first release."""

    name: str
    definition: type
    script: tuple[str, ...]
    arguments: tuple[Any, ...]
    later: bool


PROGRAMS: dict[str, Program] = {}


def program(script: str = "", *arguments: Any, later: bool = False) -> Callable[[W], W]:
    """Enter a class with a `run` method into the corpus, under its own name."""

    def enter(definition: W) -> W:
        name = definition.__name__
        steps = tuple(step.strip() for step in script.split("|") if step.strip())
        PROGRAMS[name] = Program(name, workflow.defn(definition), steps, arguments, later)
        return definition

    return enter


async def act(name: str, *args: Any, **options: Any) -> Any:
    """Execute an activity by name."""
    return await start(name, *args, **options)


def start(name: str, *args: Any, **options: Any) -> workflow.ActivityHandle[Any]:
    """Start an activity by name."""
    options.setdefault("start_to_close_timeout", MINUTE)
    return workflow.start_activity(name, args=args, **options)
