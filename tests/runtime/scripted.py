"""A scripted handle, and short ways to make workflows, activations and activity tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from tests.specs import made

from hourglass._contract.handle import ActivityItem, ActivityResult, ActivityTask, Shutdown
from hourglass._evaluator.commands import Completion
from hourglass._evaluator.definition import define_function
from hourglass._evaluator.events import Activation, RunEvicted, RunStarted
from hourglass._evaluator.specs import Payloads
from hourglass.converter import default_converter

F = TypeVar("F", bound=Callable[..., Any])


def workflow(fn: F) -> F:
    """Mark a function as a workflow, without the public decorator's call behaviour."""
    fn.__hourglass_workflow__ = define_function(fn, None, ())  # type: ignore[attr-defined]
    return fn


def payloads(*values: Any) -> Payloads:
    """Values as they travel."""
    return default_converter.encode_all(values)


def start(run_id: str, workflow_type: str, *args: Any, **facts: Any) -> Activation:
    """The first activation of a run."""
    event = RunStarted(workflow_type=workflow_type, workflow_id=f"id of {run_id}", arguments=payloads(*args))
    return Activation(run_id=run_id, events=(event,), **facts)


def on(run_id: str, *events: Any, **facts: Any) -> Activation:
    """A later activation."""
    return Activation(run_id=run_id, events=events, **facts)


def evict(run_id: str) -> Activation:
    """The eviction of a run."""
    return Activation(run_id=run_id, events=(RunEvicted("CACHE_FULL"),))


def attempt(activity_type: str, *args: Any, token: bytes = b"t", **facts: Any) -> ActivityTask:
    """An attempt of an activity."""
    given = {"activity_id": "1", "workflow_id": "w", "run_id": "r", **facts}
    return made(ActivityTask, token=token, activity_type=activity_type, arguments=payloads(*args), **given)


async def settled(holds: Callable[[], object]) -> None:
    """Let other tasks and threads go on until something holds that no event of the handle tells."""
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - what is waited for happens in another thread
            await asyncio.sleep(0)


class ScriptedHandle:
    """Gives out what a test puts in, keeps what the worker sends, and shuts down like an engine: when all is
    answered.
    """

    def __init__(self) -> None:
        self.activations: asyncio.Queue[Activation | None] = asyncio.Queue()
        self.activities: asyncio.Queue[ActivityItem | None] = asyncio.Queue()
        self.completions: list[Completion] = []
        self.results: list[ActivityResult] = []
        self.heartbeats: list[tuple[bytes, Payloads]] = []
        self.evictions: list[str] = []
        self.log: list[str] = []
        self.changed = asyncio.Event()
        self.gate: dict[str, asyncio.Event] = {}

    in_process = None

    async def poll_activation(self) -> Activation:
        item = await self.activations.get()
        if item is None:
            raise Shutdown
        return item

    async def poll_activity(self) -> ActivityItem:
        item = await self.activities.get()
        if item is None:
            raise Shutdown
        return item

    async def complete_activation(self, completion: Completion) -> None:
        gate = self.gate.pop(completion.run_id, None)  # the first one of the run only
        if gate is not None:
            await gate.wait()
        self.completions.append(completion)
        self._note(f"completed {completion.run_id}")

    async def complete_activity(self, result: ActivityResult) -> None:
        self.results.append(result)
        self._note(f"activity {result.token.decode()}")

    def heartbeat(self, token: bytes, details: Payloads) -> None:
        self.heartbeats.append((token, details))
        self.changed.set()

    def request_eviction(self, run_id: str) -> None:
        self.evictions.append(run_id)
        self._note(f"evict {run_id}")

    def initiate_shutdown(self) -> None:
        self._note("initiate")
        self.activations.put_nowait(None)
        self.activities.put_nowait(None)

    async def finalize_shutdown(self) -> None:
        self._note("finalize")

    def _note(self, what: str) -> None:
        self.log.append(what)
        self.changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that the worker's calls bring about."""
        async with asyncio.timeout(20):
            while not holds():
                self.changed.clear()
                await self.changed.wait()
