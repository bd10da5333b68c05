"""Heartbeats are sent whatever the pauses between them: on both event loops and both engines, in threads and
coroutines.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from time import monotonic

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from effort import cases
from hourglass import RetryPolicy, activity, workflow
from hourglass._contract.handle import ActivityTask
from hourglass._worker.activities.attempts import HEARTBEAT_PAUSE, Attempt, AttemptSurroundings, LoopTimers
from hourglass._worker.mailbox import Mailbox
from hourglass.activity._context import Equipment
from hourglass.client import Client
from hourglass.converter import default_converter
from hourglass.worker import Worker

from ..scripted import attempt, payloads
from .executing import value, with_executor

pytestmark = pytest.mark.usefixtures("each_event_loop")

ONCE = RetryPolicy(maximum_attempts=1)


@activity.defn
def heartbeats(pauses: list[float]) -> int:
    for number, pause in enumerate(pauses):
        time.sleep(pause)  # the pause between two heartbeats under test
        activity.heartbeat(number)
    return len(pauses)


@activity.defn
async def heartbeats_async(pauses: list[float]) -> int:
    for number, pause in enumerate(pauses):
        await asyncio.sleep(pause)  # the pause between two heartbeats under test
        activity.heartbeat(number)
    return len(pauses)


@activity.defn(heartbeat_timeout=1.0, retry_policy=ONCE)
def heartbeats_under_a_timeout(pauses: list[float]) -> int:
    return heartbeats.fn(pauses)


@activity.defn(heartbeat_timeout=1.0, retry_policy=ONCE)
async def heartbeats_under_a_timeout_async(pauses: list[float]) -> int:
    return await heartbeats_async.fn(pauses)


@workflow.defn
def long_activity(pauses: list[float], is_async: bool) -> int:
    return (heartbeats_under_a_timeout_async if is_async else heartbeats_under_a_timeout)(pauses)


# Pauses near the throttle, where the remaining wait rounds to 0, 1 or 2 ms, and arbitrary ones.
near = st.integers(-30, 30).map(lambda tenths: HEARTBEAT_PAUSE + tenths / 10_000)
pauses = st.one_of(near, st.floats(0, 0.02), st.just(HEARTBEAT_PAUSE))


@pytest.mark.parametrize("name", ["heartbeats", "heartbeats_async"])
@settings(max_examples=cases(3, 60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn_pauses=st.lists(pauses, min_size=4, max_size=8))
@example(drawn_pauses=[0.1] * 8)
def test_last_heartbeat_is_sent_whatever_the_pauses(name: str, drawn_pauses: list[float]) -> None:
    async def beating(executor, sent):
        result = await executor.execute(attempt(name, drawn_pauses, heartbeat_timeout=5.0))
        return value(result), sent

    count, sent = with_executor([heartbeats, heartbeats_async], beating)
    assert count == len(drawn_pauses)
    sent_details = [default_converter.decode(details[0]) for _, details in sent]
    assert sent_details == sorted(set(sent_details))
    assert sent_details[-1] == count - 1


@settings(max_examples=cases(200, 5000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sinces=st.lists(st.floats(0, 1.5 * HEARTBEAT_PAUSE), max_size=20))
@example(sinces=[HEARTBEAT_PAUSE - 0.0004])
@example(sinces=[HEARTBEAT_PAUSE - 0.0006])
@example(sinces=[HEARTBEAT_PAUSE])
def test_heartbeat_whose_delay_rounds_to_zero_is_sent(sinces: list[float]) -> None:
    async def main() -> tuple[list[object], object]:
        loop = asyncio.get_running_loop()
        sent: list[object] = []
        arrived = asyncio.Event()

        def heartbeat(_: bytes, details: object) -> None:
            sent.append(details)
            arrived.set()

        around = AttemptSurroundings(
            equipment=Equipment(
                converter=default_converter, client=None, payload_limit=None, inbound=None, registry=None
            ),
            mailbox=Mailbox(),
            timers=LoopTimers(loop),
            heartbeat=heartbeat,
            ended=lambda *_: None,
        )
        task: ActivityTask = attempt("heartbeats")
        attempt_in_progress = Attempt(task, lambda _: None, around, 0)
        for number, since in enumerate(sinces):
            # Pretend that the last heartbeat was sent `since` seconds ago.
            attempt_in_progress._last_heartbeat = (
                monotonic() - HEARTBEAT_PAUSE + min(HEARTBEAT_PAUSE - since, 0.002)
            )
            arrived.clear()
            attempt_in_progress.send(payloads(number))
            async with asyncio.timeout(30):
                await arrived.wait()
        return sent, attempt_in_progress._timers

    sent, timers = asyncio.run(main())
    assert sent == [payloads(number) for number in range(len(sinces))]
    assert not timers


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.server)])
def client(request: pytest.FixtureRequest, each_event_loop: str) -> Iterator[Client]:
    target = "local:" if request.param == "memory" else request.getfixturevalue("quick_server").target
    with Client.connect(target) as client:
        yield client


@pytest.mark.parametrize("is_async", [False, True])
def test_heartbeating_activity_outlives_its_heartbeat_timeout(client: Client, is_async: bool) -> None:
    generator = random.Random(11)
    drawn_pauses = [HEARTBEAT_PAUSE] * 10 + [generator.uniform(0.0, 1.2 * HEARTBEAT_PAUSE) for _ in range(15)]
    queue = f"beating-{is_async}"
    with Worker(
        client,
        queue,
        workflows=[long_activity],
        activities=[heartbeats_under_a_timeout, heartbeats_under_a_timeout_async],
    ):
        handle = client.start_workflow(long_activity, drawn_pauses, is_async, task_queue=queue)
        assert handle.result(timeout=60) == len(drawn_pauses)
