"""Checks after a campaign: every acknowledgement against the histories and the notes of activities.

Each check is a function that counts what it checks and yields violations. A request without an answer may have been executed
once or not at all.
"""

from __future__ import annotations

import base64
import itertools
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from hourglass import Client, History, Replayer

from . import campaign_workflows
from .clients import Journal, Line
from .written import Written

_ENDS = {
    "WORKFLOW_EXECUTION_COMPLETED",
    "WORKFLOW_EXECUTION_FAILED",
    "WORKFLOW_EXECUTION_TIMED_OUT",
    "WORKFLOW_EXECUTION_CANCELED",
    "WORKFLOW_EXECUTION_TERMINATED",
    "WORKFLOW_EXECUTION_CONTINUED_AS_NEW",
}


@dataclass
class Case:
    """The remains of a campaign: journals, notes and histories."""

    lines: list[Line]
    written: Written
    histories: dict[str, list[History]]
    """The histories of each workflow, in order of runs."""
    jumps: list[tuple[float, float]] = field(default_factory=list)
    """The intervals, by the monotonic clock, in which the wall clock was ahead."""
    is_embedded: bool = True
    """A Temporal server writes events that arrive during a task after it, with their times of arrival."""
    checked: Counter[str] = field(default_factory=Counter)

    def of(self, what: str, phase: str = "told") -> Iterator[Line]:
        """Yield the journal lines of one kind, and count them as checked."""
        for line in self.lines:
            if line.what == what and line.phase == phase:
                self.checked[what] += phase == "told"
                yield line


Check = Callable[[Case], Iterator[str]]


def check(case: Case) -> list[str]:
    """Return all violations."""
    return [violation for find_violations in CHECKS for violation in find_violations(case)]


def collect(
    client: Client,
    journal: Path,
    notes: Path,
    jumps: Sequence[tuple[float, float]] = (),
    *,
    is_embedded: bool = True,
) -> Case:
    """Read journals, notes and histories."""
    by_workflow: dict[str, list[History]] = defaultdict(list)
    for run in client.list_workflows():
        by_workflow[run.id].append(client.get_workflow_handle(run.id, run_id=run.run_id).history())
    histories = {name: _in_order(runs) for name, runs in by_workflow.items()}
    return Case(Journal.read(journal), Written.read(notes), histories, list(jumps), is_embedded)


def _in_order(runs: list[History]) -> list[History]:
    """Sort the runs along their chain; their times may have been moved."""
    after = {_started(run).get("continuedExecutionRunId", ""): run for run in runs}
    chain = [after[""]] if "" in after else []
    while chain and chain[-1].run_id in after:
        chain.append(after[chain[-1].run_id])
    return chain if len(chain) == len(runs) else runs


# --- requests -------------------------------------------------------------------------------------------------


def starts(case: Case) -> Iterator[str]:
    """An acknowledged start is the first run of its workflow; no workflow has two first runs, or one that was
    not requested."""
    requested = {line.workflow_id for what in ("start", "race") for line in case.of(what, "asked")}
    for line in case.of("start"):
        runs = case.histories.get(line.workflow_id, [])
        if not runs:
            yield f"{line.workflow_id} was acknowledged and is not there"
        elif runs[0].run_id != line.value:
            yield f"{line.workflow_id} was acknowledged as {line.value} and began as {runs[0].run_id}"
    for name, runs in case.histories.items():
        first = [run for run in runs if not _started(run).get("continuedExecutionRunId")]
        if len(first) != 1:
            yield f"{name} was begun {len(first)} times"
        if "-leg-" not in name and name not in requested:
            yield f"{name} was never asked for"
    finishers: dict[str, set[str]] = defaultdict(set)
    for line in case.lines:
        if line.what == "finish" and line.phase == "asked":
            finishers[line.workflow_id].add(line.sender)
        if line.phase == "failed" and "NotFound" in line.error:
            if line.what == "finish" and finishers[line.workflow_id] != {line.sender}:
                continue  # another client has finished it
            yield f"{line.sender} was told of {line.workflow_id}, which it had started: {line.error}"


def races(case: Case) -> Iterator[str]:
    """Each of several starts of one workflow id is answered by the only run of that id."""
    for line in case.of("race"):
        runs = [run.run_id for run in case.histories.get(line.workflow_id, [])]
        if runs != [line.value]:
            yield f"{line.sender} was told of {line.value} as {line.workflow_id}, its runs are {runs}"


def signals(case: Case) -> Iterator[str]:
    """Each signal is in the history once; those of a sender are in the order of acknowledgement."""
    requested = {(line.workflow_id, line.sender, line.number) for line in case.of("signal", "asked")}
    places: dict[tuple[str, str, int], int] = {}
    for name in case.histories:
        for place, (sender, number) in enumerate(_signals(case, name)):
            if (name, sender, number) in places:
                yield f"signal {number} of {sender} is twice in {name}"
            if (name, sender, number) not in requested:
                yield f"signal {number} of {sender} in {name} was never sent"
            places[name, sender, number] = place
    last: dict[tuple[str, str], int] = {}
    for line in case.of("signal"):
        place_of = places.get((line.workflow_id, line.sender, line.number))
        if place_of is None:
            yield f"signal {line.number} of {line.sender} to {line.workflow_id} was acknowledged and is lost"
            continue
        if place_of < last.get((line.workflow_id, line.sender), -1):
            yield f"signal {line.number} of {line.sender} to {line.workflow_id} came before an earlier one"
        last[line.workflow_id, line.sender] = place_of


def updates(case: Case) -> Iterator[str]:
    """Each update was accepted and completed once, with the reported answer. On a server an update id is unique
    within one run only: repeated in the next run, it is another update."""
    accepted: Counter[tuple[str, str, str]] = Counter()
    completed: Counter[tuple[str, str, str]] = Counter()
    answers: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for name, runs in case.histories.items():
        for history in runs:
            within = "" if case.is_embedded else history.run_id
            for event in history.events:
                if (kind := _kind(event)) == "WORKFLOW_EXECUTION_UPDATE_ACCEPTED":
                    request = event["workflowExecutionUpdateAcceptedEventAttributes"]["acceptedRequest"]
                    accepted[name, request["meta"]["updateId"], within] += 1
                elif kind == "WORKFLOW_EXECUTION_UPDATE_COMPLETED":
                    done = event["workflowExecutionUpdateCompletedEventAttributes"]
                    completed[name, done["meta"]["updateId"], within] += 1
                    answers[name, done["meta"]["updateId"]].append(_value(done["outcome"].get("success", {})))
    for what, counted in (("accepted", accepted), ("answered", completed)):
        for key, count in counted.items():
            if count > 1:
                yield f"update {key[:2]} was {what} {count} times"
    for line in case.of("update"):
        answer = answers.get((line.workflow_id, f"{line.sender}-{line.number}"), [])
        if line.value not in answer:
            yield f"update {line.number} of {line.sender} was answered by {line.value}, and by {answer} in the history"


def results(case: Case) -> Iterator[str]:
    """A run ends once, with its last event and the reported result; everyone gets the same result."""
    ends: dict[str, Any] = {}
    for name, runs in case.histories.items():
        for history in runs:
            closing = [place for place, event in enumerate(history.events) if _kind(event) in _ENDS]
            if len(closing) > 1 or closing not in ([], [len(history.events) - 1]):
                yield f"{name}, run {history.run_id}, ends at {closing} of {len(history.events)}"
        last = runs[-1].events[-1]
        if _kind(last) == "WORKFLOW_EXECUTION_COMPLETED":
            ends[name] = _value(last["workflowExecutionCompletedEventAttributes"].get("result", {}))
        elif not name.startswith("ledger"):
            yield f"{name} has ended with {_kind(last)}"
    for line in case.of("result"):
        reported, recorded = line.value, ends.get(line.workflow_id)
        if isinstance(reported, dict) and isinstance(recorded, dict):
            recorded = {key: recorded[key] for key in reported}
        if reported != recorded:
            yield f"the result of {line.workflow_id} was told as {reported} and is {recorded}"
    for line in case.lines:
        if line.phase == "failed" and "WorkflowFailed" in line.error:
            yield f"{line.workflow_id}: {line.error}"


def messages_in_order(case: Case) -> Iterator[str]:
    """Signals are received in the order of the history; a query reports all signals acknowledged before it."""
    for name, runs in case.histories.items():
        last = runs[-1].events[-1]
        if name.startswith("trip") and "-leg-" not in name and _kind(last) == "WORKFLOW_EXECUTION_COMPLETED":
            heard = _value(last["workflowExecutionCompletedEventAttributes"]["result"])["heard"]
            if heard != [list(signal) for signal in _signals(case, name)]:
                yield f"{name} heard {heard}, its history has {_signals(case, name)}"
    signals_before: dict[str, list[list[Any]]] = defaultdict(list)
    begun: dict[tuple[str, int], int] = {}
    for line in case.lines:  # in order of writing
        if line.what == "signal" and line.phase == "told":
            signals_before[line.workflow_id].append([line.sender, line.number])
        if line.what == "query" and line.phase == "asked":
            begun[line.sender, line.number] = len(signals_before[line.workflow_id])
        if line.what == "query" and line.phase == "told":
            case.checked["query"] += 1
            before = signals_before[line.workflow_id][: begun[line.sender, line.number]]
            if not all(signal in line.value for signal in before):
                yield f"a query of {line.workflow_id} gave {line.value}, though {before} were acknowledged"


def ledgers(case: Case) -> Iterator[str]:
    """The count of a ledger equals the messages in its histories; each update has a position of its own."""
    places: dict[str, dict[int, int]] = defaultdict(dict)
    for line in case.of("update"):
        if line.workflow_id.startswith("ledger"):
            first_number = places[line.workflow_id].setdefault(line.value, line.number)
            if first_number != line.number:
                yield f"{line.workflow_id} gave the place {line.value} to {first_number} and to {line.number}"
    for line in case.of("total"):
        events = [
            event
            for history in case.histories[line.workflow_id]
            for event in history.events
            if _kind(event) in ("WORKFLOW_EXECUTION_SIGNALED", "WORKFLOW_EXECUTION_UPDATE_ACCEPTED")
        ]
        if line.value != len(events):
            yield f"{line.workflow_id} counts {line.value} messages, its histories have {len(events)}"


# --- effects --------------------------------------------------------------------------------------------------


def executions(case: Case) -> Iterator[str]:
    """An attempt is executed once; the recorded result is that of the last attempt; activities without retries
    run once."""
    for name, count in case.written.begun.items():
        case.checked["attempt"] += 1
        if count > 1:
            yield f"{name} was executed {count} times"
    last: dict[tuple[str, str], int] = {}
    for run_id, activity_id, attempt in case.written.begun:
        last[run_id, activity_id] = max(attempt, last.get((run_id, activity_id), 0))
    for runs in case.histories.values():
        for history in runs:
            yield from _recorded(case, history, last)
    for run_id, activity_id, come in case.written.resumed:
        if come not in case.written.beats[run_id, activity_id]:
            yield f"{activity_id} of {run_id} went on from {come}, where it never was"


def _recorded(case: Case, history: History, last: dict[tuple[str, str], int]) -> Iterator[str]:
    specs: dict[str, dict[str, Any]] = {}
    attempts: dict[str, int] = {}
    ended: Counter[str] = Counter()
    for event in history.events:
        match _kind(event):
            case "ACTIVITY_TASK_SCHEDULED":
                specs[event["eventId"]] = event["activityTaskScheduledEventAttributes"]
            case "ACTIVITY_TASK_STARTED":
                begun = event["activityTaskStartedEventAttributes"]
                attempts[begun["scheduledEventId"]] = begun.get("attempt", 1)
            case "ACTIVITY_TASK_COMPLETED":
                case.checked["recorded result"] += 1
                done = event["activityTaskCompletedEventAttributes"]
                number = done["scheduledEventId"]
                ended[number] += 1
                activity_id = specs[number]["activityId"]
                token = _value(done["result"])
                name = (history.run_id, activity_id, attempts[number])
                if case.written.done.get(token) != name:
                    yield f"{name} is recorded with {token}, which is of {case.written.done.get(token)}"
                if last[history.run_id, activity_id] != attempts[number]:
                    yield f"{name} was recorded, and another attempt was executed after it"
            case "ACTIVITY_TASK_FAILED" | "ACTIVITY_TASK_TIMED_OUT" as kind:
                ended[_attributes(event)["scheduledEventId"]] += 1
                scheduled = specs[_attributes(event)["scheduledEventId"]]
                if scheduled["activityType"]["name"] != "pay":
                    yield f"{scheduled['activityId']} of {history.run_id} has ended with {kind}"
    for number, spec in specs.items():
        if ended[number] > 1:
            yield f"{spec['activityId']} of {history.run_id} has ended {ended[number]} times"
        if spec["activityType"]["name"] == "pay" and last.get((history.run_id, spec["activityId"]), 0) > 1:
            yield f"{spec['activityId']} of {history.run_id} may be executed once, and was executed again"


def children(case: Case) -> Iterator[str]:
    """A requested child exists once, belongs to its parent, and the parent has its result."""
    for runs in case.histories.values():
        for history in runs:
            for event in history.events:
                if _kind(event) != "CHILD_WORKFLOW_EXECUTION_COMPLETED":
                    continue
                case.checked["child"] += 1
                done = event["childWorkflowExecutionCompletedEventAttributes"]
                child = case.histories.get(done["workflowExecution"]["workflowId"], [])
                if [run.run_id for run in child] != [done["workflowExecution"]["runId"]]:
                    yield f"{done['workflowExecution']} is not the only run of its id"
                    continue
                parent = _started(child[0])["parentWorkflowExecution"]["runId"]
                reported = _value(done["result"])
                recorded = _value(child[0].events[-1]["workflowExecutionCompletedEventAttributes"]["result"])
                if parent != history.run_id or reported != recorded:
                    yield f"{done['workflowExecution']} of {parent} gave {recorded}, {history.run_id} got {reported}"


def timers(case: Case) -> Iterator[str]:
    """No timer fires early: by the times of its history if no clock was moved before it fired, and by a clock that no
    fault moves.

    Where a clock goes back, a timer that was started before it waits its full time again, and the event of its firing
    has the time of the event before it: the times in the history are closer together than the timer is long. Only an
    activity that ran after a timer shows when it had fired, by the machine's monotonic clock.
    """
    moved = min((begun for begun, _ in case.jumps), default=float("inf"))
    for name, runs in case.histories.items():
        for history, next_run in itertools.zip_longest(runs, runs[1:]):
            if not case.jumps or (
                next_run is not None and 0.0 < case.written.first_at(next_run.run_id) < moved
            ):
                yield from _fired(case, name, history)
        if name.startswith("nap"):
            yield from _napped(case, name, runs[0])


def _fired(case: Case, name: str, history: History) -> Iterator[str]:
    begun: dict[str, tuple[datetime, float]] = {}
    for event in history.events:
        if _kind(event) == "TIMER_STARTED":
            begun[event["eventId"]] = (_time(event), _seconds(event))
        elif _kind(event) == "TIMER_FIRED":
            case.checked["timer, by its history"] += 1
            since, seconds = begun.pop(event["timerFiredEventAttributes"]["startedEventId"])
            if (passed := (_time(event) - since).total_seconds()) < seconds - 0.001:
                yield f"a timer of {name} fired after {passed} s of {seconds}"


def _napped(case: Case, name: str, history: History) -> Iterator[str]:
    seconds = next((_seconds(event) for event in history.events if _kind(event) == "TIMER_STARTED"), 0.0)
    ends = case.written.at_end.get((history.run_id, "1"))
    begins = case.written.at_begin.get((history.run_id, "2"))
    if ends is None or begins is None:
        return
    if any(begun <= begins and ends <= over for begun, over in case.jumps):
        return  # late enough by the wall clock
    case.checked["timer, by another clock"] += 1
    if begins - ends < seconds - 0.001:
        yield f"{name} slept {begins - ends:.3f} s of {seconds}"


def _seconds(event: dict[str, Any]) -> float:
    return float(event["timerStartedEventAttributes"]["startToFireTimeout"].rstrip("s"))


# --- histories ------------------------------------------------------------------------------------------------


def orderly(case: Case) -> Iterator[str]:
    """Event ids have no gaps, and times do not decrease, except for attempts, which are written when they end."""
    for name, runs in case.histories.items():
        for history in runs:
            case.checked["history"] += 1
            numbers = [int(event["eventId"]) for event in history.events]
            if numbers != list(range(1, len(numbers) + 1)):
                yield f"{name}, run {history.run_id}: its events are numbered {numbers}"
            times = [_time(event) for event in history.events if _kind(event) != "ACTIVITY_TASK_STARTED"]
            if case.is_embedded and times != sorted(times):
                yield f"{name}, run {history.run_id}: time goes back"


def replays(case: Case) -> Iterator[str]:
    """Every history replays."""
    with Replayer(workflows=campaign_workflows.WORKFLOWS) as replayer:
        for name, runs in case.histories.items():
            for history in runs:
                result = replayer.try_replay(history)
                case.checked["replay"] += 1
                if not result.ok:
                    yield f"{name}, run {history.run_id}, does not replay: {result.error}"


CHECKS: tuple[Check, ...] = (
    starts,
    races,
    signals,
    updates,
    results,
    messages_in_order,
    ledgers,
    executions,
    children,
    timers,
    orderly,
    replays,
)


def about_file(path: Path) -> Iterator[str]:
    """The file is sound, and contains nothing for closed runs."""
    connection = sqlite3.connect(path)
    try:
        for (line,) in connection.execute("PRAGMA integrity_check").fetchall():
            if line != "ok":
                yield f"the file is not sound: {line}"
        for (line,) in connection.execute("PRAGMA foreign_key_check").fetchall():
            yield f"the file refers to what is not there: {line}"
        (left,) = connection.execute(
            "SELECT count(*) FROM pending JOIN runs ON runs.key = pending.run WHERE runs.close_ns > 0"
        ).fetchone()
        if left:
            yield f"{left} things are pending in runs that have ended"
    finally:
        connection.close()


# --- reading --------------------------------------------------------------------------------------------------


def _kind(event: dict[str, Any]) -> str:
    kind: str = event["eventType"]
    return kind.removeprefix("EVENT_TYPE_")


def _attributes(event: dict[str, Any]) -> dict[str, Any]:
    attributes: dict[str, Any] = next(value for name, value in event.items() if name.endswith("Attributes"))
    return attributes


def _started(history: History) -> dict[str, Any]:
    return _attributes(history.events[0])


def _time(event: dict[str, Any]) -> datetime:
    text: str = event["eventTime"]
    whole, _, rest = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{whole}.{rest[:6]:0<6}")


def _value(payloads: dict[str, Any]) -> Any:
    decoded = [json.loads(base64.b64decode(payload["data"])) for payload in payloads.get("payloads", [])]
    return decoded[0] if decoded else None


def _signals(case: Case, name: str) -> list[tuple[str, int]]:
    """Return the numbered signals of a workflow in the order of its histories."""
    numbered = []
    for history in case.histories[name]:
        for event in history.events:
            if _kind(event) == "WORKFLOW_EXECUTION_SIGNALED" and _attributes(event)["signalName"] == "tell":
                numbered.append(sender_and_number(event))
    return numbered


def sender_and_number(event: dict[str, Any]) -> tuple[str, int]:
    """Return sender and number of a numbered signal."""
    payloads = _attributes(event)["input"]["payloads"]
    sender, number = (json.loads(base64.b64decode(payload["data"])) for payload in payloads)
    return sender, number


def recorded_tokens(case: Case) -> Iterator[str]:
    """Return the recorded results of attempts."""
    for runs in case.histories.values():
        for history in runs:
            for event in history.events:
                if _kind(event) == "ACTIVITY_TASK_COMPLETED":
                    yield _value(_attributes(event)["result"])
