"""The code shared by the bridges to agent libraries: deterministic clocks and ids for the library, awaited activities, and
JSON.

An agent's loop is the library's own code. In a workflow it runs on the run's event loop. The time and the ids that the loop
uses must be the same in every execution.
"""

from __future__ import annotations

import asyncio
import datetime as _datetime
import itertools
import logging
import random
import sys
import time
import uuid as _uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from hourglass import workflow
from hourglass._evaluator import awaited
from hourglass._evaluator.context import current_run
from hourglass._evaluator.event_loop import EventLoop
from hourglass.activity import Activity
from hourglass.converter._to_json import sort_sets
from hourglass.errors import ApplicationError, UsageError

logger = logging.getLogger("hourglass.agents")

_generators: WeakKeyDictionary[EventLoop, random.Random] = WeakKeyDictionary()


def _generator() -> random.Random | None:
    """Return the run's random number generator for libraries, or None outside workflows.

    It is separate from the generator for workflow code, so that a change in the library's use of random numbers does not
    change the numbers of the workflow.
    """
    run = current_run()
    if run is None:
        return None
    generator = _generators.get(run.loop)
    if generator is None:
        generator = _generators[run.loop] = workflow.new_random("hourglass.agents")
    return generator


def uuid4() -> _uuid.UUID:
    """Return a UUID. In a workflow, it is the same in every execution."""
    generator = _generator()
    return _uuid.uuid4() if generator is None else _uuid.UUID(int=generator.getrandbits(128), version=4)


def any_uuid4() -> _uuid.UUID:
    """Return a UUID that does not affect the commands of a run. The call watcher ignores this module."""
    return _uuid.uuid4()


class RunDatetime(_datetime.datetime):
    """A `datetime` class whose `now` returns the workflow's time inside a workflow."""

    @classmethod
    def now(cls, tz: _datetime.tzinfo | None = None) -> Any:
        """Return the current time; inside a workflow, the workflow's time."""
        if current_run() is None:
            return _datetime.datetime.now(tz)
        return workflow.now().astimezone(tz)


class _RunTime:
    """A replacement for the module `time`. Inside a workflow, its clocks return the workflow's time."""

    def __getattr__(self, name: str) -> Any:
        if current_run() is not None and name in _CLOCKS:
            return workflow.time_ns if name.endswith("_ns") else workflow.time
        return getattr(time, name)


_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
run_time = _RunTime()


class OrderedAsyncio:
    """The module `asyncio`, but the sets that `wait` returns iterate over tasks in the order of their creation.

    A set of tasks normally iterates in the order of memory addresses, which differs between executions. A library that
    iterates over the finished tasks would issue its next commands in that order.
    """

    def __init__(self) -> None:
        self._numbers: WeakKeyDictionary[asyncio.Future[Any], int] = WeakKeyDictionary()
        self._next = itertools.count()

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    def create_task(self, *args: Any, **options: Any) -> asyncio.Task[Any]:
        """Create a task and assign it a number."""
        task = asyncio.create_task(*args, **options)
        self._numbers[task] = next(self._next)
        return task

    async def wait(self, *args: Any, **options: Any) -> tuple[set[Any], set[Any]]:
        """Wait for tasks like `asyncio.wait`."""
        done, pending = await asyncio.wait(*args, **options)
        return self._ordered(done), self._ordered(pending)

    def _ordered(self, tasks: set[Any]) -> set[Any]:
        ordered = _OrderedTasks(tasks)
        ordered.number = lambda task: self._numbers.get(task, -1)
        return ordered


class _OrderedTasks(set[Any]):
    number: Callable[[Any], int]

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__(), key=self.number))


def replace(library: str, names: Mapping[str, Callable[[Any], Any]]) -> None:
    """Replace nondeterministic functions of a library. A key is `module:name`; its value creates the replacement from the
    original.

    If a version of the library does not define a name, a warning is logged. Runs still work, but a replay may use other
    times and ids.
    """
    for name, make in names.items():
        module_name, _, attribute = name.partition(":")
        module = sys.modules.get(module_name)
        if hasattr(module, attribute):
            setattr(module, attribute, make(getattr(module, attribute)))
        else:
            logger.warning(
                "this version of %s has no %s: times and ids that it generates in a workflow differ when the workflow is "
                "replayed",
                library,
                name,
            )


def check_outside_workflow(what: str) -> None:
    """Raise `UsageError` if `what`, an object with activities, is created in a workflow."""
    if workflow.in_workflow():
        raise UsageError(
            f"{what} cannot be created in a workflow, because workers must register its activities: create it at the top of "
            "the module that defines the workflow"
        )


def is_retryable_status(status: int) -> bool:
    """Whether an HTTP error may not recur in another attempt."""
    return status >= 500 or status in (408, 409, 425, 429)


def non_retryable(message: str, kind: str = "UsageError") -> ApplicationError:
    """Return an error that another attempt would raise again."""
    return ApplicationError(message, type=kind, non_retryable=True)


def require_loop(call: str, instead: str) -> None:
    """Raise `UsageError` if an agent runs in a workflow on a loop other than the run's own, because its waits would not be
    durable.
    """
    run = current_run()
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if run is not None and not isinstance(running, EventLoop):
        raise UsageError(f"{call} cannot block in a workflow: {instead}")


def to_json(value: Any, adapter: TypeAdapter[Any] | None = None) -> Any:
    """Return a value as JSON, converted according to the adapter's type or the value's own class. Sets are sorted, because a
    replay compares arguments, and the order of a set differs between processes.
    """
    ordered = sort_sets(value)
    if adapter is None:
        return to_jsonable_python(ordered)
    return adapter.dump_python(ordered, mode="json", warnings="none")


async def execute(activity: Activity[..., Any], *args: Any, **options: Any) -> Any:
    """Run an activity from a workflow coroutine, and wait for its result."""
    configured = activity.options(**options) if options else activity
    started: Any = configured._start(current_run(), args, {}, local=False, start=awaited.start_activity)
    return await started
