"""A handle that says it is active while the engine sees nobody poll is replaced; nothing is concluded from less."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from contextlib import nullcontext
from typing import Any

import pytest

from chaos.proxy import Proxy
from hourglass import Client, Worker
from hourglass._contract.deployments import LastSeen, Sighting
from hourglass._contract.handle import ActivityTask
from hourglass._worker.tree.sightings import (
    PollersNotReported,
    PollKind,
    Sightings,
    SightLimits,
    check_sightings,
    watch_sightings,
)
from hourglass.errors import ConnectionFailedError, ServiceError
from hourglass.testing import dev_server
from worker.handles.scripted import ScriptedConnection

from .world import ACTIVITIES, WORKFLOWS, ScriptedWorld, memory, play, scripted, steps, until

ONE, OTHER = PollKind("q", 1, False), PollKind("q", 1, True)
NEXT = PollKind("q", 2, False)


def test_changing_answer_means_that_we_are_seen() -> None:
    """However long it goes on, and however far the engine's clock is from ours."""
    sightings = Sightings(90.0)
    assert not any(sightings.record_answer(ONE, 5_000 - minute, 60.0 * minute) for minute in range(1000))


def test_unchanged_answer_is_reported_once() -> None:
    """A recycle that did not help is not repeated until we were seen again."""
    sightings = Sightings(90.0)
    assert [sightings.record_answer(ONE, 7, now) for now in (0.0, 60.0, 89.9, 90.0)] == [
        False,
        False,
        False,
        True,
    ]
    assert [sightings.record_answer(NEXT, 7, now) for now in (100.0, 200.0, 300.0, 400.0)] == [False] * 4
    assert [sightings.record_answer(NEXT, at, float(at)) for at in (500, 501)] == [False, False]  # it moves
    assert [sightings.record_answer(NEXT, 501, now) for now in (550.0, 591.0)] == [False, True]


def test_each_kind_of_poll_is_watched_separately() -> None:
    """Workflow tasks are polled and activities are not: that is as bad."""
    sightings = Sightings(90.0)
    for now in (0, 60):
        assert not sightings.record_answer(ONE, now, float(now))
        assert not sightings.record_answer(OTHER, 0, float(now))
    assert not sightings.record_answer(ONE, 120, 120.0)
    assert sightings.record_answer(OTHER, 0, 120.0)


def test_unknown_answer_restarts_the_observation() -> None:
    """An engine that was away for an hour has not seen us; that is no fault of the handle."""
    sightings = Sightings(90.0)
    assert not sightings.record_answer(ONE, 7, 0.0)
    sightings.forget(ONE)
    assert not sightings.record_answer(ONE, 7, 3600.0)
    sightings.keep({OTHER})
    assert not sightings.record_answer(ONE, 7, 7200.0)


def test_handle_is_suspicious_after_half_the_time() -> None:
    """Then the engine is asked more often."""
    sightings = Sightings(90.0)
    sightings.record_answer(ONE, 7, 0.0)
    assert not sightings.suspicious(44.0)
    assert sightings.suspicious(45.0)


class Eyes:
    """What a scripted engine says of whom it has seen, per connection."""

    def __init__(self, world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = {False: 0, True: 0}
        self.asked: list[LastSeen] = []
        self.silent: set[Any] = set()
        eyes, raw = self, world.app.raw

        async def call(connection: ScriptedConnection, request: Any) -> Any:
            assert isinstance(request, LastSeen)
            if connection in eyes.silent:
                raise ConnectionFailedError("silent", status="UNAVAILABLE")
            eyes.asked.append(request)
            return Sighting(eyes.times[request.activities])

        monkeypatch.setattr(ScriptedConnection, "call", call)
        self.shared = raw

    def move(self) -> None:
        """It sees both kinds of polls."""
        self.times = {kind: time + 1 for kind, time in self.times.items()}


def test_unseen_handle_is_recycled_over_a_new_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The queue has a new handle, and the old one drains."""

    async def script() -> None:
        async with scripted() as world:
            eyes, sightings = Eyes(world, monkeypatch), Sightings(0.0)
            await check_sightings(world.app, sightings)
            eyes.move()
            await check_sightings(world.app, sightings)
            assert len(world.engine.handles) == 1
            eyes.times[False] += 1  # only workflow tasks are polled
            await check_sightings(world.app, sightings)
            assert [each.closing for each in world.engine.handles] == [True, False]
            assert len(world.engine.connections) == 1
            assert {(each.task_queue, each.polled_by) for each in eyes.asked} == {("default", "test")}

    caplog.set_level(logging.ERROR)
    play(script)
    assert "has not seen it poll for activities" in caplog.text


async def test_silent_connection_is_checked_over_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine answers others and does not see us: the handle is recycled; the connection made for asking is closed."""
    async with scripted() as world:
        eyes, sightings = Eyes(world, monkeypatch), Sightings(0.0)
        eyes.silent.add(eyes.shared)
        await check_sightings(world.app, sightings)
        await check_sightings(world.app, sightings)
        assert [each.closing for each in world.engine.handles] == [True, False]
        await until(lambda: sum(each.closed for each in world.engine.connections) >= 3)


async def test_no_conclusion_from_a_silent_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is away: Core comes back by itself, and a recycle would only cost."""
    async with scripted() as world:
        eyes, sightings = Eyes(world, monkeypatch), Sightings(0.0)
        eyes.silent.add(eyes.shared)
        world.engine.connects.extend([OSError("away")] * 20)
        for _ in range(5):
            await check_sightings(world.app, sightings)
        assert len(world.engine.handles) == 1


@pytest.mark.parametrize(
    ("status", "is_blind"),
    [("PERMISSION_DENIED", True), ("UNIMPLEMENTED", True), ("RESOURCE_EXHAUSTED", False)],
)
async def test_no_conclusion_from_a_rejected_query(
    monkeypatch: pytest.MonkeyPatch, status: str, is_blind: bool
) -> None:
    """No second connection is made to hear the same; who may not ask does not ask again."""
    async with scripted() as world:

        async def refuses(connection: ScriptedConnection, request: Any) -> Any:
            raise ServiceError("no", status=status)

        monkeypatch.setattr(ScriptedConnection, "call", refuses)
        with pytest.raises(PollersNotReported) if is_blind else nullcontext():
            await check_sightings(world.app, Sightings(0.0))
        assert world.engine.connections == []


async def test_full_worker_need_not_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has no room for more does not poll."""
    async with scripted(max_concurrent_activities=1) as world:
        eyes, sightings = Eyes(world, monkeypatch), Sightings(0.0)
        record = world.record()
        task = ActivityTask(token=b"t", activity_id="1", activity_type="steps")
        record.attempts.keep(task)
        for _ in range(5):
            eyes.times[False] += 1
            await check_sightings(world.app, sightings)
        assert not any(each.activities for each in eyes.asked)
        assert len(world.engine.handles) == 1
        del record.attempts.open[b"t"]


async def test_engine_without_poller_reports_is_not_asked_again() -> None:
    """The engine in this process sees everything anyway."""
    async with memory() as world:
        with pytest.raises(PollersNotReported):
            await check_sightings(world.app, Sightings(0.0))
        world.app.sight = SightLimits(ask=0.001, ask_again=0.001)
        await watch_sightings(world.app)


async def test_send_failures_trigger_an_earlier_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a minute is enough until the engine does not take what we send; a look that fails is not the last one."""
    async with scripted() as world:
        eyes = Eyes(world, monkeypatch)
        world.app.sight = SightLimits(ask=3600.0, ask_again=0.001, unseen=3600.0)
        asking = asyncio.ensure_future(watch_sightings(world.app))
        await asyncio.sleep(0.02)  # many times the pause after which it would ask wrongly
        assert eyes.asked == []
        world.app.tables.counters.resent += 1
        await until(lambda: len(eyes.asked) == 2)
        asking.cancel()


@pytest.mark.server
def test_server_reports_the_pollers_that_it_has_seen() -> None:
    """Both kinds of polls of a worker are seen, a stranger's are not, and a server that refuses is not blind."""
    queue = uuid.uuid4().hex
    with (
        dev_server() as server,
        Client.connect(server.target) as client,
        Worker(client, queue, workflows=WORKFLOWS, activities=ACTIVITIES) as worker,
    ):
        client.execute_workflow(steps, 1, id=uuid.uuid4().hex, task_queue=queue)
        raw = worker._app.raw

        def seen(identity: str, activities: bool) -> int:
            asked = LastSeen(task_queue=queue, polled_by=identity, activities=activities)
            answer: Sighting = client._portal.call(raw.call(asked))
            return answer.time_ns

        assert seen(raw.identity, False) > 0
        assert seen(raw.identity, True) > 0
        assert seen("stranger", False) == 0
        with pytest.raises(ServiceError):
            client._portal.call(raw.call(LastSeen(task_queue="", polled_by="x")))


@pytest.mark.server
def test_frozen_connection_to_a_server_is_replaced() -> None:
    """The proxy swallows what goes over the connections of now and serves new ones: within a while the worker works again."""
    queue = uuid.uuid4().hex
    quick_polls = ["--dynamic-config-value", 'matching.longPollExpirationInterval="2s"']
    with (
        dev_server(extra_args=quick_polls) as server,
        Proxy(server.target) as proxy,
        Client.connect(server.target) as client,
        Client.connect(proxy.target) as through,
    ):
        worker = Worker(through, queue, workflows=WORKFLOWS, activities=ACTIVITIES).start()
        try:
            app = worker._app
            client.execute_workflow(steps, 1, id=uuid.uuid4().hex, task_queue=queue)
            app.sight = SightLimits(ask=0.5, ask_again=0.5, unseen=6.0, answer=1.0)
            asking = client._portal.submit(watch_sightings(app))
            proxy.freeze()
            assert client.execute_workflow(steps, 2, id=uuid.uuid4().hex, task_queue=queue) == 8
            assert app.tables.counters.recycles >= 1
            asking.cancel()
        finally:
            proxy.let_through()
            stopping = threading.Thread(target=worker.shutdown, daemon=True)
            stopping.start()
            stopping.join(60)
            assert not stopping.is_alive()
