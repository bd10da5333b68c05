"""Writer of the golden file of a format, which every later version must be able to open.

    python -m tests.embedded.store.golden tests/embedded/store/golden/format-2.sqlite

Run it once per format, until the format is released; from then on the file is never written again. `EXPECTED` states its
contents in plain values, because the defaults of today's classes could change unnoticed.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from typing import Any

from tests.embedded.stores import open_sqlite
from tests.specs import made

from hourglass._contract.schedule_specs import (
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
)
from hourglass._contract.schedules import CreateSchedule, EngineSchedule
from hourglass._contract.workflows import StartWorkflow
from hourglass._embedded.schedules import transitions as schedules
from hourglass._embedded.store.store import ScheduleChange
from hourglass.converter import Payload

from .run_changes import Story


def stories_of_the_file() -> dict[str, Story]:
    """Return the stories in the file: a run with pending items of each kind, and a closed run."""
    return {"waiting": Story("waiting", "order-1"), "closed": Story("closed", "order-2")}


def schedule_that_has_acted() -> ScheduleChange:
    """Return the change of a schedule that has acted twice: one workflow runs, the next waits for its end."""
    action = made(
        StartWorkflow,
        workflow_id="report",
        workflow_type="Report",
        task_queue="default",
        request_id="",
        arguments=(Payload(b'"daily"'),),
    )
    schedule = EngineSchedule(
        action=action,
        spec=ScheduleSpec(intervals=(ScheduleIntervalSpec(60.0),), time_zone_name="Europe/Berlin"),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.BUFFER_ALL),
    )
    request = CreateSchedule(schedule_id="reports", schedule=schedule, request_id="create-1")
    step = schedules.advance(schedules.create(request, 1_000), 120_000_000_000)
    record = schedules.started(step.record, step.starts[0], "report-run", 120_000_000_000)
    return ScheduleChange(schedule_id="reports", record=record, wake_ns=step.wake_ns or 0)


def write(path: str) -> None:
    """Write the stories in the current format."""
    stories = stories_of_the_file()
    waiting, closed = stories["waiting"], stories["closed"]
    steps: list[Any] = [
        waiting.start(memo={"note": Payload(b'"hello"')}),
        waiting.schedule(2),
        waiting.begin_attempt(3),
        waiting.start_timer(due_ns=86_400_000_000_000),
        waiting.hold(),
        closed.start(),
        closed.schedule(),
        closed.complete_activity(3),
        closed.close(),
    ]
    store = open_sqlite(path)
    for step in (*steps, schedule_that_has_acted()):
        store.append(step)
    store.close()
    # Replace the path of the machine that wrote the file.
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE meta SET value = ? WHERE name = 'opened_as'", (b"/srv/runs.db",))
        connection.commit()
        connection.execute("VACUUM")


EXPECTED: dict[str, dict[str, Any]] = {
    "waiting": {
        "workflow_id": "order-1",
        "task_queue": "default",
        "task_timeout": 0.0,
        "attempt": 1,
        "status": 1,
        "length": 5,
        "kinds": [
            "WorkflowExecutionStarted",
            "WorkflowTaskScheduled",
            "ActivityTaskScheduled",
            "ActivityTaskScheduled",
            "TimerStarted",
        ],
        "times": [2_000, 2_000, 3_000, 3_000, 5_000],
        "attempts": {3: 2, 4: 1},
        "arguments": b"12345",
        "heartbeat": b"7",
        "last_failure": ("no", "Refused", "why"),
        "timers": {5: 86_400_000_000_000},
        "held": ["later"],
        "memo": {"note": b'"hello"'},
        "task": (1, 2, 1),
    },
    "closed": {
        "workflow_id": "order-2",
        "task_queue": "default",
        "task_timeout": 0.0,
        "attempt": 1,
        "status": 2,
        "length": 6,
        "kinds": [
            "WorkflowExecutionStarted",
            "WorkflowTaskScheduled",
            "ActivityTaskScheduled",
            "ActivityTaskStarted",
            "ActivityTaskCompleted",
            "WorkflowExecutionCompleted",
        ],
        "times": [2_000, 2_000, 3_000, 4_000, 4_000, 5_000],
        "attempts": {},
        "timers": {},
        "held": [],
        "memo": {},
        "task": None,
    },
}


SCHEDULE: dict[str, Any] = {
    "action": ("report", "Report", "default", b'"daily"'),
    "intervals": [60.0],
    "time_zone": "Europe/Berlin",
    "overlap": 3,
    "catchup_window": 31_536_000.0,
    "seen": 120_000_000_000,
    "waiting": [120_000_000_000],
    "running": [("report-1970-01-01T00:01:00Z", "report-run")],
    "action_count": 1,
    "token": 1,
}


if __name__ == "__main__":
    write(sys.argv[1])
