"""Rows damaged by another program or a disk: calls about them are answered, and no worker waits forever."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.stores import open_sqlite
from tests.specs import made

from hourglass._contract import schedule_specs as ss
from hourglass._contract import schedules as sc
from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._embedded import VirtualClock
from hourglass._evaluator import commands as c
from hourglass.errors import ServiceError, StorageError

from ..memory_world import World, text

DONE = c.CompleteRun(text("done"))
BAD = "(SELECT key FROM runs WHERE workflow_id = 'bad')"
NO_TEXT = "CAST(x'fffe' AS TEXT)"

RUNS = {
    "id is no text": f"UPDATE runs SET run_id = {NO_TEXT} WHERE key = {BAD}",
    "id is bytes": f"UPDATE runs SET run_id = x'fffe' WHERE key = {BAD}",
    "workflow id is no text": f"UPDATE runs SET workflow_id = {NO_TEXT} WHERE key = {BAD}",
    "workflow id is bytes": f"UPDATE runs SET workflow_id = x'fffe' WHERE key = {BAD}",
    "wake time is a text": f"UPDATE runs SET wake_ns = 'soon' WHERE key = {BAD}",
    "wake time is a fraction": f"UPDATE runs SET wake_ns = 1.5 WHERE key = {BAD}",
    "wake time is bytes": f"UPDATE runs SET wake_ns = x'00' WHERE key = {BAD}",
    "close time is a text": f"UPDATE runs SET close_ns = 'then' WHERE key = {BAD}",
    "state is a text": f"UPDATE runs SET state = 'x' WHERE key = {BAD}",
    "state is no text": f"UPDATE runs SET state = {NO_TEXT} WHERE key = {BAD}",
    "state is a number": f"UPDATE runs SET state = 5 WHERE key = {BAD}",
    "state is a fraction": f"UPDATE runs SET state = 0.5 WHERE key = {BAD}",
    "state is empty": f"UPDATE runs SET state = x'' WHERE key = {BAD}",
    "state is something else": f"UPDATE runs SET state = x'93010203' WHERE key = {BAD}",
    "events are a text": f"UPDATE events SET data = 'x' WHERE run = {BAD}",
    "events are no text": f"UPDATE events SET data = {NO_TEXT} WHERE run = {BAD}",
    "events are a number": f"UPDATE events SET data = 7 WHERE run = {BAD}",
    "events are empty": f"UPDATE events SET data = x'90' WHERE run = {BAD}",
    "events are numbered by a text": f"UPDATE events SET first_id = 'one' WHERE run = {BAD} AND first_id = 1",
    "events are gone": f"DELETE FROM events WHERE run = {BAD}",
    "a timer is a text": f"UPDATE pending SET data = 'x' WHERE run = {BAD}",
    "a timer is a number": f"UPDATE pending SET data = 3 WHERE run = {BAD}",
    "a timer is numbered by a text": f"UPDATE pending SET event_id = 'one' WHERE run = {BAD}",
    "a timer began with another event": f"UPDATE pending SET event_id = 99 WHERE run = {BAD}",
    "a request is no text": f"INSERT INTO requests VALUES ({BAD}, {NO_TEXT})",
    "the list has no text": f"UPDATE visibility SET workflow_id = {NO_TEXT} WHERE workflow_id = 'bad'",
    "the list has bytes": "UPDATE visibility SET status = x'00' WHERE workflow_id = 'bad'",
    "the list has a text": "UPDATE visibility SET start_time = 'then' WHERE workflow_id = 'bad'",
}
SCHEDULES = {
    "id is no text": f"UPDATE schedules SET schedule_id = {NO_TEXT} WHERE schedule_id = 'bad'",
    "wake time is a text": "UPDATE schedules SET wake_ns = 'soon' WHERE schedule_id = 'bad'",
    "names are no list": "UPDATE schedules SET awaited = '{' WHERE schedule_id = 'bad'",
    "names are no text": f"UPDATE schedules SET awaited = {NO_TEXT} WHERE schedule_id = 'bad'",
    "names are a number": "UPDATE schedules SET awaited = 5 WHERE schedule_id = 'bad'",
    "record is a text": "UPDATE schedules SET data = 'x' WHERE schedule_id = 'bad'",
    "record is a number": "UPDATE schedules SET data = 5 WHERE schedule_id = 'bad'",
}


def damage(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute(statement).rowcount >= 1
    connection.commit()
    connection.close()


async def open_world(path: Path) -> World:
    store = open_sqlite(path)
    return await World.new(store=store, clock=VirtualClock(), opened=True)


async def answer_to(world: World, request: s.Request[Any]) -> object:
    """Return the answer or the error, which must come within seconds."""
    try:
        async with asyncio.timeout(5):
            return await world.call(request)
    except ServiceError as error:
        return error


async def complete_bystander(world: World) -> None:
    started = await world.start("bystander")
    while True:
        async with asyncio.timeout(5):
            activation = await world.activation()
        if activation.run_id == started.run_id:
            break
        await world.complete(activation.run_id, c.StartTimer(1, 10**9))
    await world.complete(started.run_id, DONE)
    assert isinstance(await world.outcome("bystander"), wf.RunCompleted)


@pytest.mark.parametrize("task_is_open", [False, True])
@pytest.mark.parametrize("damage_kind", RUNS)
async def test_damaged_run_does_not_affect_other_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage_kind: str, task_is_open: bool
) -> None:
    """Lists and calls about the run are answered or raise an error."""
    path = tmp_path / "a.db"

    caplog.set_level(logging.ERROR, "hourglass")
    world = await open_world(path)
    bad = await world.start("bad", request_id="bad")
    await world.activation()
    await world.complete(bad.run_id, c.StartTimer(1, 10**9))
    if task_is_open:
        await world.call(wf.SignalWorkflow(workflow_id="bad", signal_name="x", request_id="y"))
    await world.close()
    damage(path, RUNS[damage_kind])
    again = await open_world(path)
    await complete_bystander(again)
    requests: list[s.Request[Any]] = [
        wf.DescribeWorkflow(workflow_id="bad"),
        wf.WaitForClose(workflow_id="bad", rpc_timeout=0.0),
        wf.ListWorkflows(),
        wf.CountWorkflows(),
    ]
    for request in requests:
        answer = await answer_to(again, request)
        if isinstance(answer, StorageError):
            assert str(path) in str(answer)
    again.clock.advance(10.0)
    again.engine._upkeep.tick()
    await asyncio.sleep(0)
    assert again.engine.failed is None
    await again.close()
    assert all("Traceback" not in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("damage_kind", SCHEDULES)
async def test_damaged_schedule_does_not_affect_other_schedules(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage_kind: str
) -> None:
    path = tmp_path / "a.db"

    caplog.set_level(logging.ERROR, "hourglass")
    world = await open_world(path)
    for name in ("bad", "good"):
        action = made(wf.StartWorkflow, workflow_id=name, workflow_type="W", task_queue="q", request_id="")
        schedule = sc.EngineSchedule(
            action=action, spec=ss.ScheduleSpec(intervals=(ss.ScheduleIntervalSpec(60.0),))
        )
        await world.call(sc.CreateSchedule(schedule_id=name, schedule=schedule, request_id=name))
    await world.close()
    damage(path, SCHEDULES[damage_kind])
    again = await open_world(path)
    again.clock.advance(61.0)
    activation = await again.activation()
    record = again.record(run_id=activation.run_id)
    assert record.run.started.workflow_id.startswith("good")
    await answer_to(again, sc.DescribeSchedule(schedule_id="bad"))
    await answer_to(again, sc.ListSchedules())
    await complete_bystander(again)
    assert again.engine.failed is None
    await again.close()
    assert any("schedule" in record.getMessage() for record in caplog.records)
