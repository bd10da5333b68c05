"""Files of earlier formats can be opened with their contents, and are migrated."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.embedded.stores import open_sqlite

from hourglass._embedded.schedules.transitions import ScheduleRecord
from hourglass._embedded.store.sqlite import database, inherited, tables
from hourglass._embedded.store.sqlite.records import FIND_REQUEST
from hourglass._embedded.store.store import Store, Stored
from hourglass._history.events import kind_of
from hourglass.errors import StorageError

from .golden import EXPECTED, SCHEDULE
from .run_changes import Story, load

Open = Callable[..., Store]
FILES = sorted((Path(__file__).parent / "golden").glob("format-*.sqlite"))


def description(stored: Stored) -> dict[str, Any]:
    """Return a run as plain values."""
    run = stored.run
    result: dict[str, Any] = {
        "workflow_id": run.started.workflow_id,
        "task_queue": run.started.spec.task_queue,
        "task_timeout": run.started.spec.task_timeout,
        "attempt": run.started.attempt,
        "status": run.status.value,
        "length": run.length,
        "kinds": [kind_of(event.attributes) for event in stored.events],
        "times": [event.time_ns for event in stored.events],
        "attempts": {key: activity.attempt for key, activity in run.activities.items()},
        "timers": {key: timer.due_ns for key, timer in run.timers.items()},
        "held": [each.signal_name for each in run.held],  # type: ignore[attr-defined]
        "memo": {key: payload.data for key, payload in run.memo.items()},
        "task": run.task and (run.task.number, run.task.scheduled_event_id, run.task.attempt),
    }
    if run.activities:
        activity = run.activities[3]
        failure = activity.last_failure
        assert failure is not None
        assert failure.cause is not None
        result["arguments"] = activity.scheduled.arguments[0].data
        result["heartbeat"] = activity.heartbeat_details[0].data
        result["last_failure"] = (failure.message, failure.info.type, failure.cause.message)  # type: ignore[union-attr]
    return result


def description_of_schedule(record: ScheduleRecord) -> dict[str, Any]:
    """Return a schedule as plain values."""
    action = record.schedule.action
    return {
        "action": (
            action.workflow_id,
            action.workflow_type,
            action.spec.task_queue,
            action.arguments[0].data,
        ),
        "intervals": [interval.every.total_seconds() for interval in record.schedule.spec.intervals],
        "time_zone": record.schedule.spec.time_zone_name,
        "overlap": int(record.schedule.policy.overlap),
        "catchup_window": (record.schedule.policy.catchup_window or timedelta()).total_seconds(),
        "seen": record.seen_ns,
        "waiting": [due.nominal_ns for due in record.waiting],
        "running": list(record.running),
        "action_count": record.action_count,
        "token": record.token,
    }


def test_every_format_has_a_golden_file() -> None:
    assert [file.name for file in FILES] == [
        f"format-{number}.sqlite" for number in range(tables.OLDEST_FORMAT, tables.FORMAT + 1)
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_golden_file_can_be_opened_read_and_written(open_store: Open, path: Path, file: Path) -> None:
    shutil.copy(file, path)

    store = open_store()
    for run_id, expected in EXPECTED.items():
        stored = load(store, run_id)
        assert description(stored) == expected
        assert store.current(expected["workflow_id"]) == run_id
        assert store.find_request(expected["workflow_id"], f"{run_id}-request-1") == run_id
    assert (await store.count("ExecutionStatus = 'Running'")).count == 1
    assert store.latest_ns == 5_000
    assert [due.run_id for due in store.due(5_000, 10)] == ["waiting"]
    assert store.schedules() == [
        ("reports", 180_000_000_000, ("report-1970-01-01T00:01:00Z",)),
    ]
    schedule = store.schedule("reports")
    assert schedule is not None
    assert description_of_schedule(schedule) == SCHEDULE
    await store.durable(store.append(Story("new").start()))


def test_older_file_is_migrated_with_a_backup(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(FILES[0], path)
    migrations = [
        (3, lambda connection: connection.execute("ALTER TABLE runs ADD COLUMN colour TEXT")),
        (4, lambda connection: connection.execute("UPDATE runs SET colour = 'green'")),
    ]
    monkeypatch.setattr(tables, "FORMAT", 4)
    opened = database.open_database(str(path), "default", "", migrations)
    assert opened.writer.execute("SELECT DISTINCT colour FROM runs").fetchall() == [("green",)]
    assert opened.writer.execute("PRAGMA user_version").fetchall() == [(4,)]
    inherited.close(opened.reader)
    inherited.close(opened.writer)
    monkeypatch.undo()
    kept = open_sqlite(path.with_name("runs.db.format-2.backup"))
    assert kept.load("waiting") is not None
    kept.close()


def test_failed_migration_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(FILES[0], path)

    def fail(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE runs")
        connection.execute("SELECT * FROM no_such_table")

    monkeypatch.setattr(tables, "FORMAT", 3)
    with pytest.raises(StorageError):
        database.open_database(str(path), "default", "", [(3, fail)])
    monkeypatch.undo()
    store = open_sqlite(path)
    assert store.load("waiting") is not None
    store.close()


def test_migrations_lead_to_the_current_format() -> None:
    assert [leads_to for leads_to, _ in tables.MIGRATIONS] == list(
        range(tables.OLDEST_FORMAT + 1, tables.FORMAT + 1)
    )


def test_request_lookup_uses_the_index(path: Path) -> None:
    open_sqlite(path).close()
    connection = sqlite3.connect(path)
    plan = connection.execute(f"EXPLAIN QUERY PLAN {FIND_REQUEST}", ("", "")).fetchall()
    connection.close()
    first, second = (row[3] for row in plan)
    assert "requests_by_id (request_id=?)" in first
    assert "INTEGER PRIMARY KEY" in second


def test_format_of_unreleased_versions_is_rejected(path: Path) -> None:
    open_sqlite(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(
        StorageError, match=r"has format 1, which was written before the first release.*use a new file"
    ):
        open_sqlite(path)
