"""Files that earlier versions wrote open for ever, with all that is in them; and how old formats become new ones."""

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
from .stories import Story

Open = Callable[..., Store]
FILES = sorted((Path(__file__).parent / "golden").glob("format-*.sqlite"))


def described(stored: Stored) -> dict[str, Any]:
    """What a run is, in plain values."""
    run = stored.run
    described: dict[str, Any] = {
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
        begun = run.activities[3]
        failure = begun.last_failure
        assert failure is not None
        assert failure.cause is not None
        described["arguments"] = begun.scheduled.arguments[0].data
        described["heartbeat"] = begun.heartbeat_details[0].data
        described["last_failure"] = (failure.message, failure.info.type, failure.cause.message)  # type: ignore[union-attr]
    return described


def described_schedule(record: ScheduleRecord) -> dict[str, Any]:
    """What a schedule is, in plain values."""
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
    """Every format up to the present one has its file."""
    assert [file.name for file in FILES] == [
        f"format-{number}.sqlite" for number in range(tables.OLDEST_FORMAT, tables.FORMAT + 1)
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_old_files_open(open_store: Open, path: Path, file: Path) -> None:
    """The file opens, has what it had, is listed, and can be written to."""
    shutil.copy(file, path)

    store = open_store()
    for run_id, expected in EXPECTED.items():
        stored = store.load(run_id)
        assert stored is not None
        assert described(stored) == expected
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
    assert described_schedule(schedule) == SCHEDULE
    await store.durable(store.append(Story("new").start()))


def test_older_file_is_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older file is brought to the present format, after a copy of it was kept beside it."""
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
    """Half a migration is none."""
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
    """The list is in order, without a gap, and ends at the present format."""
    assert [leads_to for leads_to, _ in tables.MIGRATIONS] == list(
        range(tables.OLDEST_FORMAT + 1, tables.FORMAT + 1)
    )


def test_requests_are_found_by_their_index(path: Path) -> None:
    """A request is looked up by the index of requests, without a scan of all runs."""
    open_sqlite(path).close()
    connection = sqlite3.connect(path)
    plan = connection.execute(f"EXPLAIN QUERY PLAN {FIND_REQUEST}", ("", "")).fetchall()
    connection.close()
    first, second = (row[3] for row in plan)
    assert "requests_by_id (request_id=?)" in first
    assert "INTEGER PRIMARY KEY" in second


def test_format_of_unreleased_versions_is_rejected(path: Path) -> None:
    """A file of format 1 is left as it is; the error says what to do."""
    open_sqlite(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(
        StorageError, match=r"has format 1, of a version .* before the first release.*name a new file"
    ):
        open_sqlite(path)
