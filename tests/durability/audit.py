"""Checks after a load with kills: the clients' answers, the activities' notes and the histories must agree.

Each check is a function that yields violations.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hourglass import Client, History, Replayer

from . import work
from .kill_load import Answers, Death


@dataclass
class Written:
    """The notes of the activities. An execution is one attempt of an activity of a run."""

    begun: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    done: dict[str, tuple[str, str, int]] = field(default_factory=dict)
    """Which execution a token is of."""
    beats: dict[tuple[str, str], set[int]] = field(default_factory=lambda: defaultdict(set))
    resumed: list[tuple[str, str, int]] = field(default_factory=list)
    at_begin: dict[tuple[str, str], float] = field(default_factory=dict)
    """When the first attempt of an activity of a run began, by the machine's monotonic clock."""
    at_end: dict[tuple[str, str], float] = field(default_factory=dict)
    """When its last one had done its work."""

    first_notes: dict[str, float] = field(default_factory=dict)
    """When an activity of a run made a note for the first time."""

    def first_at(self, run_id: str) -> float:
        """Return when the first activity of the run started, by the machine's monotonic clock; 0 if none did."""
        return self.first_notes.get(run_id, 0.0)

    @staticmethod
    def read(path: Path) -> Written:
        written = Written()
        for line in path.read_text().splitlines():
            note = json.loads(line)
            name = (note["run"], note["activity"], note["attempt"])
            written.first_notes[note["run"]] = min(
                note["at"], written.first_notes.get(note["run"], note["at"])
            )
            match note["what"]:
                case "begun":
                    written.begun[name] += 1
                    written.at_begin.setdefault(name[:2], note["at"])
                    if note.get("come") is not None:
                        written.resumed.append((note["run"], note["activity"], note["come"]))
                case "done":
                    written.done[note["token"]] = name
                    written.at_end[name[:2]] = note["at"]
                case "beat":
                    written.beats[name[:2]].add(note["place"])
        return written


def find_violations(answers: Answers, path: Path, notes: Path) -> list[str]:
    """Return all violations. Opens the file, so no other process may own it."""
    histories = _histories(answers, path)
    written = Written.read(notes)
    return [
        *answers.errors,
        *_about_receipts(answers, written),
        *_about_runs(answers, histories),
        *_about_signals(answers, histories),
        *_about_executions(written, histories),
        *_about_file(path),
        *_about_replays(histories),
    ]


def recoveries(answers: Answers, notes: Path) -> dict[Death, float]:
    """Return, for each death, the seconds until the next attempt of every activity that its process had in
    progress. If that attempt also died before it recorded its start, the later death counts."""
    begun: dict[tuple[str, str, int], tuple[int, float]] = {}
    ended: set[tuple[str, str, int]] = set()
    for line in notes.read_text().splitlines():
        note = json.loads(line)
        name = (note["run"], note["activity"], note["attempt"])
        if note["what"] == "begun":
            begun[name] = (note["process"], note["at"])
            if note["type"] == "pay" or (note["type"] == "charge" and note["attempt"] == 1):
                ended.add(name)  # it is not tried again, or fails by itself
        elif note["what"] == "done":
            ended.add(name)
    deaths = {death.process: death for death in answers.deaths}
    durations: dict[Death, float] = {}
    for (run_id, activity_id, attempt), (process, _) in begun.items():
        following = begun.get((run_id, activity_id, attempt + 1))
        if (run_id, activity_id, attempt) not in ended and process in deaths and following is not None:
            death = deaths[process]
            durations[death] = max(durations.get(death, 0.0), following[1] - death.at)
    return durations


def _histories(answers: Answers, path: Path) -> dict[str, list[History]]:
    """Return the histories of each workflow, in order of runs."""
    histories: dict[str, list[History]] = defaultdict(list)
    with Client.connect(f"local:{path}") as client:
        for run in client.list_workflows():  # the newest first
            handle = client.get_workflow_handle(run.id, run_id=run.run_id)
            histories[run.id].insert(0, handle.history())
    return histories


def _about_receipts(answers: Answers, written: Written) -> Iterator[str]:
    for name, run_id in answers.started.items():
        receipt = answers.receipts.get(name)
        if receipt is None:
            yield f"{name}, run {run_id}, was acknowledged and has no result"
            continue
        if sorted(receipt.seen) != list(range(work.SIGNALS)):
            yield f"{name} got the signals {receipt.seen}"
        types = [token.partition("-")[0] for token in receipt.tokens]
        if types[:4] != ["reserve", "charge", "pack", "thank"] or types[4] not in ("pay", "lost"):
            yield f"{name} returned {receipt.tokens}"
        for token in receipt.tokens:
            if token != "lost" and token not in written.done:
                yield f"{name} returned {token}, which no execution gave"


def _about_runs(answers: Answers, histories: dict[str, list[History]]) -> Iterator[str]:
    for name in histories.keys() ^ answers.started.keys():
        yield f"{name} is there or was started, not both"
    for name, run_id in answers.started.items():
        runs = histories.get(name, [])
        if len(runs) != 2:
            yield f"{name} has {len(runs)} runs, not two"
        elif runs[0].run_id != run_id:
            yield f"{name} was acknowledged as run {run_id}, and began as {runs[0].run_id}"


def _about_signals(answers: Answers, histories: dict[str, list[History]]) -> Iterator[str]:
    for name, runs in histories.items():
        sent = [
            json.loads(base64.b64decode(payload["data"]))
            for event in _events(runs, "WORKFLOW_EXECUTION_SIGNALED")
            for payload in event["workflowExecutionSignaledEventAttributes"]["input"]["payloads"]
        ]
        if sorted(sent) != sorted(answers.signalled.get(name, [])):
            yield f"{name} has the signals {sent}, acknowledged were {answers.signalled.get(name)}"


def _about_executions(written: Written, histories: dict[str, list[History]]) -> Iterator[str]:
    """Check that an attempt is executed once, that the recorded result is that of the last attempt, and that it
    is unchanged."""
    for name, count in written.begun.items():
        if count > 1:
            yield f"{name} was executed {count} times"
    last: dict[tuple[str, str], int] = {}
    for run_id, activity_id, attempt in written.begun:
        last[run_id, activity_id] = max(attempt, last.get((run_id, activity_id), 0))
    for runs in histories.values():
        for history in runs:
            yield from _about_results(history, written, last)
    for run_id, activity_id, come in written.resumed:
        if come not in written.beats[run_id, activity_id]:
            yield f"{activity_id} of {run_id} went on from {come}, where it never was"


def _about_results(history: History, written: Written, last: dict[tuple[str, str], int]) -> Iterator[str]:
    run_id = history.run_id
    scheduled: dict[str, dict[str, Any]] = {}
    attempts: dict[str, int] = {}
    for event in history.events:
        match event["eventType"].removeprefix("EVENT_TYPE_"):
            case "ACTIVITY_TASK_SCHEDULED":
                scheduled[event["eventId"]] = event["activityTaskScheduledEventAttributes"]
            case "ACTIVITY_TASK_STARTED":
                started = event["activityTaskStartedEventAttributes"]
                attempts[started["scheduledEventId"]] = started.get("attempt", 1)
            case "ACTIVITY_TASK_COMPLETED":
                ended = event["activityTaskCompletedEventAttributes"]
                number = ended["scheduledEventId"]
                activity_id = scheduled[number]["activityId"]
                (payload,) = ended["result"]["payloads"]
                token = json.loads(base64.b64decode(payload["data"]))
                name = (run_id, activity_id, attempts[number])
                if written.done.get(token) != name:
                    yield f"{name} is recorded with {token}, which is of {written.done.get(token)}"
                if last[run_id, activity_id] != attempts[number]:
                    yield f"{name} was recorded, and attempt {last[run_id, activity_id]} was executed after it"
    for number, spec in scheduled.items():
        once = spec["activityType"]["name"] == "pay"
        if once and last.get((run_id, spec["activityId"]), 0) > 1:
            yield f"{spec['activityId']} of {run_id} may be executed once and was executed again"


def _about_file(path: Path) -> Iterator[str]:
    connection = sqlite3.connect(path)
    try:
        for (line,) in connection.execute("PRAGMA integrity_check").fetchall():
            if line != "ok":
                yield f"the file is not sound: {line}"
        (left,) = connection.execute("SELECT count(*) FROM pending").fetchone()
        if left:
            yield f"{left} things are pending in runs that have ended"
    finally:
        connection.close()


def _about_replays(histories: dict[str, list[History]]) -> Iterator[str]:
    with Replayer(workflows=work.WORKFLOWS) as replayer:
        for runs in histories.values():
            for history in runs:
                result = replayer.try_replay(history)
                if not result.ok:
                    yield f"{history.workflow_id}, run {history.run_id}, does not replay: {result.error}"


def _events(runs: list[History], kind: str) -> Iterator[dict[str, Any]]:
    for history in runs:
        for event in history.events:
            if event["eventType"] == f"EVENT_TYPE_{kind}":
                yield event
