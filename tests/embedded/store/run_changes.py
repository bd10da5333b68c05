"""Runs for tests of the store, changed step by step without an engine; each step is a change as an engine creates it."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from tests.specs import made

from hourglass._contract.workflows import WorkflowStatus
from hourglass._embedded.store.store import RunChange, Store, Stored
from hourglass._embedded.transitions.run import OpenActivity, PendingTask, PendingTimer, Run
from hourglass._history import events as h
from hourglass.converter import ApplicationFailure, Failure, Payload


class Story:
    """One run; each method below returns the change to append."""

    def __init__(self, run_id: str, workflow_id: str = "", now_ns: int = 1_000) -> None:
        self.events: list[h.HistoryEvent] = []
        self.now_ns = now_ns
        started = made(
            h.WorkflowExecutionStarted,
            workflow_id=workflow_id or f"workflow-{run_id}",
            workflow_type="checkout",
            task_queue="default",
            original_run_id=run_id,
            first_run_id=run_id,
            arguments=(Payload(b'{"order": 17}'),),
        )
        self.run = Run(run_id=run_id, started=started, start_ns=now_ns)
        self._requests = 0

    @property
    def run_id(self) -> str:
        return self.run.run_id

    def start(self, **changes: Any) -> RunChange:
        first = [self.run.started, h.WorkflowTaskScheduled(task_queue="default", task_timeout=10.0)]
        task = PendingTask(number=1, scheduled_event_id=2, available_ns=self.now_ns)
        return self.step(first, task=task, task_count=1, **changes)

    def signal(self, size: int = 10) -> RunChange:
        return self.step([h.WorkflowExecutionSignaled(signal_name="go", arguments=(Payload(b"x" * size),))])

    def schedule(self, count: int = 1) -> RunChange:
        first = self.run.length + 1
        specs = [
            made(
                h.ActivityTaskScheduled,
                activity_id=str(first + place),
                activity_type="charge",
                task_queue="default",
                task_completed_event_id=1,
                arguments=(Payload(b"12345"),),
            )
            for place in range(count)
        ]
        new = {
            first + place: OpenActivity(
                scheduled_event_id=first + place,
                scheduled=scheduled,
                spec=scheduled.spec,
                scheduled_ns=self.now_ns,
                available_ns=self.now_ns,
            )
            for place, scheduled in enumerate(specs)
        }
        return self.step(specs, frozenset(new), activities=self.run.activities | new)

    def begin_attempt(self, scheduled: int) -> RunChange:
        activity = msgspec.structs.replace(
            self.run.activities[scheduled],
            started_ns=self.now_ns,
            attempt=self.run.activities[scheduled].attempt + 1,
            heartbeat_details=(Payload(b"7"),),
            last_failure=Failure("no", ApplicationFailure("Refused"), Failure("why")),
        )
        return self.step([], frozenset({scheduled}), activities=self.run.activities | {scheduled: activity})

    def complete_activity(self, scheduled: int) -> RunChange:
        left = {key: value for key, value in self.run.activities.items() if key != scheduled}
        start = self.run.length + 1
        events = [
            h.ActivityTaskStarted(scheduled_event_id=scheduled),
            h.ActivityTaskCompleted(
                scheduled_event_id=scheduled, started_event_id=start, result=Payload(b'"done"')
            ),
        ]
        return self.step(events, frozenset({scheduled}), activities=left)

    def start_timer(self, due_ns: int = 10**18) -> RunChange:
        number = self.run.length + 1
        timer = PendingTimer(timer_id=f"t{number}", started_event_id=number, due_ns=due_ns)
        event = h.TimerStarted(timer_id=timer.timer_id, duration_ns=5, task_completed_event_id=1)
        return self.step([event], frozenset({number}), timers=self.run.timers | {number: timer})

    def fire_timer(self, number: int) -> RunChange:
        timer = self.run.timers[number]
        left = {key: value for key, value in self.run.timers.items() if key != number}
        event = h.TimerFired(timer_id=timer.timer_id, started_event_id=number)
        return self.step([event], frozenset({number}), timers=left)

    def hold(self) -> RunChange:
        held = h.WorkflowExecutionSignaled(signal_name="later", arguments=(Payload(b"1"),))
        return self.step([], held=(*self.run.held, held))

    def close(self) -> RunChange:
        final = h.WorkflowExecutionCompleted(result=Payload(b"true"), task_completed_event_id=1)
        gone = frozenset((*self.run.activities, *self.run.timers))
        return self.step(
            [final],
            gone,
            wake_ns=0,
            final=final,
            status=WorkflowStatus.COMPLETED,
            close_ns=self.now_ns,
            task=None,
            held=(),
            activities={},
            timers={},
        )

    def step(
        self,
        attributes: list[Any],
        touched: frozenset[int] = frozenset(),
        *,
        wake_ns: int = 5_000,
        request: bool = True,
        **fields: Any,
    ) -> RunChange:
        self.now_ns += 1_000
        first = self.run.length + 1
        events = tuple(
            h.HistoryEvent(first + place, self.now_ns, each) for place, each in enumerate(attributes)
        )
        self.events += events
        self.run = msgspec.structs.replace(self.run, length=self.run.length + len(events), **fields)
        self._requests += 1
        requests = (f"{self.run_id}-request-{self._requests}",) if request else ()
        return RunChange(run=self.run, events=events, touched=touched, wake_ns=wake_ns, request_ids=requests)


def random_step(story: Story, chance: random.Random) -> RunChange:
    """Return any next step that the run allows."""
    steps = [story.signal, story.schedule, story.start_timer, story.hold]
    for scheduled in story.run.activities:
        steps.append(lambda scheduled=scheduled: story.begin_attempt(scheduled))
        steps.append(lambda scheduled=scheduled: story.complete_activity(scheduled))
    for number in story.run.timers:
        steps.append(lambda number=number: story.fire_timer(number))
    if chance.random() < 0.1:
        return story.close()
    return chance.choice(steps)()


def random_changes(stories: int, steps: int, seed: int) -> Iterator[tuple[Story, RunChange]]:
    """Yield steps of several runs in random order, each run from its start on."""
    chance = random.Random(seed)
    created = [Story(f"run-{seed}-{place}", f"workflow-{place % 3}") for place in range(stories)]
    for _ in range(steps):
        story = chance.choice(created)
        if not story.run.length:
            yield story, story.start()
        elif story.run.is_open:
            yield story, random_step(story, chance)


def rows_of_sound_file(path: str | Path, query: str = "SELECT run_id FROM runs") -> list[Any]:
    """Check the integrity of a file, and return the first column of a query."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [row[0] for row in connection.execute(query).fetchall()]


def load(store: Store, run_id: str) -> Stored:
    """Load a run, which must exist."""
    stored = store.load(run_id)
    assert stored is not None
    return stored
