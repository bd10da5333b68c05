"""A handle is replaced if the engine has not seen its polls for a while; nothing is concluded from failed queries."""

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

from .world import ACTIVITIES, WORKFLOWS, ScriptedWorld, memory, scripted, steps, until

WORKFLOW_POLLS, ACTIVITY_POLLS = PollKind("q", 1, False), PollKind("q", 1, True)
POLLS_OF_NEXT_HANDLE = PollKind("q", 2, False)


def test_handle_whose_poll_time_advances_is_never_suspicious() -> None:
    sightings = Sightings(90.0)
    assert not any(
        sightings.record_answer(WORKFLOW_POLLS, 5_000 - minute, 60.0 * minute) for minute in range(1000)
    )


def test_handle_whose_poll_time_does_not_advance_is_reported_once() -> None:
    sightings = Sightings(90.0)
    assert [sightings.record_answer(WORKFLOW_POLLS, 7, now) for now in (0.0, 60.0, 89.9, 90.0)] == [
        False,
        False,
        False,
        True,
    ]
    assert [
        sightings.record_answer(POLLS_OF_NEXT_HANDLE, 7, now) for now in (100.0, 200.0, 300.0, 400.0)
    ] == [False] * 4
    assert [sightings.record_answer(POLLS_OF_NEXT_HANDLE, at, float(at)) for at in (500, 501)] == [
        False,
        False,
    ]  # the time advances
    assert [sightings.record_answer(POLLS_OF_NEXT_HANDLE, 501, now) for now in (550.0, 591.0)] == [
        False,
        True,
    ]


def test_workflow_and_activity_polls_are_checked_separately() -> None:
    sightings = Sightings(90.0)
    for now in (0, 60):
        assert not sightings.record_answer(WORKFLOW_POLLS, now, float(now))
        assert not sightings.record_answer(ACTIVITY_POLLS, 0, float(now))
    assert not sightings.record_answer(WORKFLOW_POLLS, 120, 120.0)
    assert sightings.record_answer(ACTIVITY_POLLS, 0, 120.0)


def test_unknown_poll_time_of_a_handle_restarts_its_observation() -> None:
    sightings = Sightings(90.0)
    assert not sightings.record_answer(WORKFLOW_POLLS, 7, 0.0)
    sightings.forget(WORKFLOW_POLLS)
    assert not sightings.record_answer(WORKFLOW_POLLS, 7, 3600.0)
    sightings.keep({ACTIVITY_POLLS})
    assert not sightings.record_answer(WORKFLOW_POLLS, 7, 7200.0)


def test_handle_is_suspicious_after_half_the_timeout() -> None:
    sightings = Sightings(90.0)
    sightings.record_answer(WORKFLOW_POLLS, 7, 0.0)
    assert not sightings.suspicious(44.0)
    assert sightings.suspicious(45.0)


class FakePollerReports:
    """The poll times that a scripted engine reports for each connection."""

    def __init__(self, world: ScriptedWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = {False: 0, True: 0}
        self.queries: list[LastSeen] = []
        self.unresponsive: set[Any] = set()
        reports, raw = self, world.app.raw

        async def call(connection: ScriptedConnection, request: Any) -> Any:
            assert isinstance(request, LastSeen)
            if connection in reports.unresponsive:
                raise ConnectionFailedError("silent", status="UNAVAILABLE")
            reports.queries.append(request)
            return Sighting(reports.times[request.activities])

        monkeypatch.setattr(ScriptedConnection, "call", call)
        self.shared = raw

    def record_polls(self) -> None:
        """Advance the poll times of both kinds."""
        self.times = {kind: time + 1 for kind, time in self.times.items()}


async def test_handle_whose_polls_are_not_seen_is_recycled_on_a_new_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with scripted() as world:
        reports, sightings = FakePollerReports(world, monkeypatch), Sightings(0.0)
        await check_sightings(world.app, sightings)
        reports.record_polls()
        await check_sightings(world.app, sightings)
        assert len(world.engine.handles) == 1
        reports.times[False] += 1  # only workflow tasks are polled
        await check_sightings(world.app, sightings)
        assert [handle.closing for handle in world.engine.handles] == [True, False]
        assert len(world.engine.connections) == 1
        assert {(query.task_queue, query.polled_by) for query in reports.queries} == {("default", "test")}
    assert "has not seen it poll for activities" in caplog.text


async def test_unresponsive_connection_is_checked_through_a_new_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with scripted() as world:
        reports, sightings = FakePollerReports(world, monkeypatch), Sightings(0.0)
        reports.unresponsive.add(reports.shared)
        await check_sightings(world.app, sightings)
        await check_sightings(world.app, sightings)
        assert [handle.closing for handle in world.engine.handles] == [True, False]
        await until(lambda: sum(connection.closed for connection in world.engine.connections) >= 3)


async def test_unreachable_engine_causes_no_recycle(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted() as world:
        reports, sightings = FakePollerReports(world, monkeypatch), Sightings(0.0)
        reports.unresponsive.add(reports.shared)
        world.engine.connects.extend([OSError("away")] * 20)
        for _ in range(5):
            await check_sightings(world.app, sightings)
        assert len(world.engine.handles) == 1


@pytest.mark.parametrize(
    ("status", "is_blind"),
    [("PERMISSION_DENIED", True), ("UNIMPLEMENTED", True), ("RESOURCE_EXHAUSTED", False)],
)
async def test_rejected_poller_query_causes_no_recycle(
    monkeypatch: pytest.MonkeyPatch, status: str, is_blind: bool
) -> None:
    async with scripted() as world:

        async def refuses(connection: ScriptedConnection, request: Any) -> Any:
            raise ServiceError("no", status=status)

        monkeypatch.setattr(ScriptedConnection, "call", refuses)
        with pytest.raises(PollersNotReported) if is_blind else nullcontext():
            await check_sightings(world.app, Sightings(0.0))
        assert world.engine.connections == []


async def test_worker_without_free_activity_slots_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(max_concurrent_activities=1) as world:
        reports, sightings = FakePollerReports(world, monkeypatch), Sightings(0.0)
        record = world.record()
        task = ActivityTask(token=b"t", activity_id="1", activity_type="steps")
        record.attempts.keep(task)
        for _ in range(5):
            reports.times[False] += 1
            await check_sightings(world.app, sightings)
        assert not any(query.activities for query in reports.queries)
        assert len(world.engine.handles) == 1
        del record.attempts.open[b"t"]


async def test_poller_check_ends_for_an_engine_without_poller_reports() -> None:
    async with memory() as world:
        with pytest.raises(PollersNotReported):
            await check_sightings(world.app, Sightings(0.0))
        world.app.sight = SightLimits(ask=0.001, ask_again=0.001)
        await watch_sightings(world.app)


async def test_resent_completions_trigger_an_earlier_poller_check(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted() as world:
        reports = FakePollerReports(world, monkeypatch)
        world.app.sight = SightLimits(ask=3600.0, ask_again=0.001, unseen=3600.0)
        asking = asyncio.ensure_future(watch_sightings(world.app))
        await asyncio.sleep(0.02)  # many times the pause of an earlier check
        assert reports.queries == []
        world.app.tables.counters.resent += 1
        await until(lambda: len(reports.queries) == 2)
        asking.cancel()


@pytest.mark.server
def test_server_reports_the_last_poll_of_each_identity() -> None:
    queue = uuid.uuid4().hex
    with (
        dev_server() as server,
        Client.connect(server.target) as client,
        Worker(client, queue, workflows=WORKFLOWS, activities=ACTIVITIES) as worker,
    ):
        client.execute_workflow(steps, 1, id=uuid.uuid4().hex, task_queue=queue)
        raw = worker._app.raw

        def seen(identity: str, activities: bool) -> int:
            query = LastSeen(task_queue=queue, polled_by=identity, activities=activities)
            answer: Sighting = client._portal.call(raw.call(query))
            return answer.time_ns

        assert seen(raw.identity, False) > 0
        assert seen(raw.identity, True) > 0
        assert seen("unknown", False) == 0
        with pytest.raises(ServiceError):
            client._portal.call(raw.call(LastSeen(task_queue="", polled_by="x")))


@pytest.mark.server
def test_frozen_connection_to_a_server_is_replaced() -> None:
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
