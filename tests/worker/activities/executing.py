"""Helpers that run attempts on an activity executor and read their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any

from hourglass._contract.handle import ActivityOk, ActivityResult, ActivityTask, AttemptFailed
from hourglass._evaluator.specs import Payloads
from hourglass._worker.activities.attempts import Heartbeat
from hourglass._worker.activities.executors import HEARTBEAT_INTERVAL, ActivityExecutor, ExecutorLimits
from hourglass._worker.activities.runners import WorkerRunner
from hourglass._worker.resolver import Resolver
from hourglass.activity._context import Equipment
from hourglass.converter import ApplicationFailure, Converter, default_converter

Beats = list[tuple[bytes, Payloads]]


class AwaitedExecutor(ActivityExecutor):
    """An activity executor whose attempts can be awaited."""

    def __init__(
        self,
        activities: Resolver | Sequence[Any],
        converter: Converter,
        heartbeat: Heartbeat,
        *,
        max_threads: int,
        client: Any = None,
        own: Executor | None = None,
        limits: ExecutorLimits = ExecutorLimits(),
        beat_interval: float = HEARTBEAT_INTERVAL,
    ) -> None:
        resolver = activities if isinstance(activities, Resolver) else Resolver(activities=activities)
        equipment = Equipment(converter=converter, client=client, payload_limit=limits.payload_limit)

        def make_runner(executor: ActivityExecutor) -> WorkerRunner:
            return WorkerRunner(
                executor, resolver, converter, max_threads=max_threads, own=own, limits=limits
            )

        super().__init__(equipment, heartbeat, make_runner, heartbeat_interval=beat_interval, limits=limits)

    async def execute(self, task: ActivityTask) -> ActivityResult:
        """Run an attempt to its end. If this call is cancelled, the attempt is abandoned."""
        outcome: asyncio.Future[ActivityResult] = asyncio.get_running_loop().create_future()
        begun = self.begin(task, lambda result: None if outcome.done() else outcome.set_result(result))
        try:
            return await outcome
        finally:
            if outcome.cancelled():
                self.abandon(begun)


Script = Callable[[AwaitedExecutor, Beats], Awaitable[Any]]


@asynccontextmanager
async def running_executor(
    activities: list[Any],
    *,
    max_threads: int = 4,
    converter: Converter = default_converter,
    client: Any = None,
    modules: tuple[str, ...] = (),
    beat_interval: float = 10.0,
    heartbeat: Callable[[bytes, Payloads], None] | None = None,
    **limits: Any,
) -> AsyncIterator[tuple[AwaitedExecutor, Beats]]:
    """An executor on the running event loop, and the heartbeats of its attempts."""
    beats: Beats = []
    executor = AwaitedExecutor(
        Resolver(activities=activities, modules=modules),
        converter,
        heartbeat or (lambda token, details: beats.append((token, details))),
        max_threads=max_threads,
        beat_interval=beat_interval,
        limits=ExecutorLimits(**{"max_processes": 1, **limits}),
        client=client,
    )
    try:
        async with asyncio.timeout(60):
            yield executor, beats
    finally:
        executor.stop()


def with_executor(activities: list[Any], script: Script, **options: Any) -> Any:
    """Run a script on a new event loop with an executor."""

    async def main() -> Any:
        async with running_executor(activities, **options) as (executor, beats):
            return await script(executor, beats)

    return asyncio.run(main())


async def until(condition: Callable[[], Any]) -> Any:
    """Poll a condition that another thread or process fulfils without an event. Return its value."""
    async with asyncio.timeout(60):
        while not (result := condition()):  # noqa: ASYNC110 - no event exists
            await asyncio.sleep(0.005)
        return result


def value(result: object) -> Any:
    """Return the decoded result of a successful attempt."""
    assert isinstance(result, ActivityOk), result
    assert result.result is not None
    return default_converter.decode(result.result)


def failure(result: object) -> tuple[str, bool, str]:
    """Return type, non_retryable and message of a failed attempt."""
    assert isinstance(result, AttemptFailed), result
    assert isinstance(result.failure.info, ApplicationFailure)
    return result.failure.info.type, result.failure.info.non_retryable, result.failure.message
