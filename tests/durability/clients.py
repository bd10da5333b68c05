"""A client of a campaign, in a process of its own, and the journal of its requests and answers.

A line is written before each request (`asked`) and after it (`told`, or `failed` with the reason), by a single write to a
file opened for appending: whenever the process is killed, the journal has every answer that it received.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hourglass import Client, WorkflowHandle
from hourglass._tools.diagnosis.asking import WhyContext
from hourglass.client import IdReusePolicy, WorkflowExecution
from hourglass.errors import HourglassError, WorkflowAlreadyStartedError

from . import campaign_workflows

QUEUE = "campaign"
LEDGERS = 3
PATIENCE = 60.0
"""Seconds that a client waits for a result."""
END = 150.0
"""Seconds in which all that is open must have ended once the faults are over."""
_TOLD = 5
"""The number of open runs that are diagnosed."""


@dataclass(frozen=True)
class Line:
    """One line of a journal."""

    phase: str
    what: str
    sender: str
    number: int
    workflow_id: str
    value: Any = None
    error: str = ""
    at: float = 0.0


class Journal:
    """A file written by one client and read by the checker."""

    def __init__(self, path: Path, sender: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._sender = sender
        self._numbers = 0

    @staticmethod
    def read(path: Path) -> list[Line]:
        """Return the lines of all clients in the order of writing."""
        return [Line(**json.loads(line)) for line in path.read_text().splitlines()]

    def next(self) -> int:
        """Return a number that this client has not used."""
        self._numbers += 1
        return self._numbers

    def request(
        self, what: str, workflow_id: str, send: Callable[[int], Any], number: int | None = None
    ) -> Any:
        """Send a request; record it and its answer. Return None without an answer."""
        number = self.next() if number is None else number
        self._write("asked", what, number, workflow_id)
        try:
            answer = send(number)
        except (HourglassError, TimeoutError) as error:
            self._write("failed", what, number, workflow_id, error=f"{type(error).__name__}: {error}")
            return None
        self._write("told", what, number, workflow_id, value=answer)
        return answer

    def _write(self, phase: str, what: str, number: int, workflow_id: str, **more: Any) -> None:
        line = {"phase": phase, "what": what, "sender": self._sender, "number": number}
        line |= {"workflow_id": workflow_id, "at": time.monotonic(), **more}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def ledger(number: int) -> str:
    """Return the name of a ledger."""
    return f"ledger-{number}"


class Traveller:
    """A client that runs until it is killed or stopped."""

    def __init__(self, client: Client, journal: Journal, name: str) -> None:
        self._client = client
        self._journal = journal
        self._name = name
        self._chance = random.Random(f"traveller {name}")
        self._races = 0

    def go_on(self, stopped: Callable[[], bool]) -> None:
        """Send the next request."""
        things = (self._trip, self._trip, self._write_to_ledger, self._write_to_ledger, self._nap, self._race)
        while not stopped():
            self._chance.choice(things)()

    def _start(self, workflow: Any, *arguments: Any, workflow_id: str) -> WorkflowHandle[Any] | None:
        handles: list[WorkflowHandle[Any]] = []

        def send(_: int) -> str:
            handle = self._client.start_workflow(workflow, *arguments, id=workflow_id, task_queue=QUEUE)
            handles.append(handle)
            return handle.run_id

        self._journal.request("start", workflow_id, send)
        return handles[0] if handles else None

    def _trip(self) -> None:
        number = self._journal.next()
        name = f"trip-{self._name}-{number}"
        plan = campaign_workflows.Plan(number, self._chance.random() * 0.05)
        handle = self._start(campaign_workflows.Trip.run, plan, workflow_id=name)
        if handle is None:
            return
        current = self._client.get_workflow_handle(name)  # the latest run
        for _ in range(self._chance.randrange(1, 5)):
            if self._chance.random() < 0.7:
                self._tell(current, campaign_workflows.Trip.tell)
            else:
                self._ask(current, campaign_workflows.Trip.ask)
        if self._chance.random() < 0.3:
            self._journal.request("query", name, lambda _: current.query(campaign_workflows.Trip.all_heard))
        self._journal.request("finish", name, lambda _: current.signal(campaign_workflows.Trip.finish))
        if self._chance.random() < 0.7:
            self.take_result(handle)

    def take_result(self, handle: WorkflowHandle[Any], patience: float = PATIENCE) -> None:
        """Wait for a result; every second time, request it twice."""
        for _ in range(self._chance.randrange(1, 3)):
            self._journal.request("result", handle.id, lambda _: _plain(handle.result(timeout=patience)))

    def _tell(self, handle: WorkflowHandle[Any], signal: Any) -> None:
        self._journal.request("signal", handle.id, lambda number: handle.signal(signal, self._name, number))

    def _ask(self, handle: WorkflowHandle[Any], update: Any) -> None:
        number = self._journal.next()

        def send(_: int) -> Any:
            return handle.execute_update(update, self._name, number, id=f"{self._name}-{number}")

        for _ in range(1 if self._chance.random() < 0.7 else 2):  # the second request repeats its id
            self._journal.request("update", handle.id, send, number)

    def _write_to_ledger(self) -> None:
        handle = self._client.get_workflow_handle(ledger(self._chance.randrange(LEDGERS)))
        for _ in range(self._chance.randrange(1, 6)):
            if self._chance.random() < 0.5:
                self._tell(handle, campaign_workflows.Ledger.tell)
            else:
                self._ask(handle, campaign_workflows.Ledger.ask)

    def _nap(self) -> None:
        number = self._journal.next()
        seconds = self._chance.choice((0.01, 0.1, 0.5, 1.0))
        self._start(campaign_workflows.nap, number, seconds, workflow_id=f"nap-{self._name}-{number}")

    def _race(self) -> None:
        """Start the same workflow as all other clients. The answer is its run id, also that of a rejected start."""
        self._races += 1
        name = f"race-{self._races}"
        reject = IdReusePolicy.REJECT_DUPLICATE

        def send(number: int) -> str:
            try:
                return self._client.start_workflow(
                    campaign_workflows.nap, number, 0.0, id=name, task_queue=QUEUE, id_reuse_policy=reject
                ).run_id
            except WorkflowAlreadyStartedError as error:
                return error.run_id

        self._journal.request("race", name, send)


def _plain(value: Any) -> Any:
    return (
        {"heard": value.heard, "tokens": value.tokens}
        if isinstance(value, campaign_workflows.Receipt)
        else value
    )


def end_all(client: Client, journal: Journal, limit: float = END) -> Iterator[str]:
    """After the faults: finish every trip, wait for every result, and report the runs without one, with the
    reason. Takes hardly longer than `limit` in all."""
    deadline = time.monotonic() + limit
    traveller = Traveller(client, journal, "last")

    def left() -> float:
        return max(1.0, deadline - time.monotonic())

    opened = [run for run in _open_runs(client) if time.monotonic() < deadline]
    for run in opened:
        if run.workflow_type == "Trip":
            handle = client.get_workflow_handle(run.id)
            journal.request("finish", run.id, partial(_finish, handle, left()))
    for run in opened:
        if run.workflow_type in ("Trip", "nap") and time.monotonic() < deadline:
            traveller.take_result(client.get_workflow_handle(run.id), left())
    stuck = list(_open_runs(client))
    for run in stuck[:_TOLD]:
        yield f"{run.id} has not ended: {_story(client, run.id)}"
    if stuck[_TOLD:]:
        yield f"neither have {', '.join(run.id for run in stuck[_TOLD:])}"
    for number in range(LEDGERS):
        handle = client.get_workflow_handle(ledger(number))
        journal.request("total", handle.id, partial(_total, handle, max(left(), PATIENCE)))


def _open_runs(client: Client) -> Iterator[WorkflowExecution]:
    for run in client.list_workflows("ExecutionStatus = 'Running'"):
        if run.workflow_type != "Ledger":
            yield run


def _finish(handle: WorkflowHandle[Any], patience: float, _: int) -> None:
    handle.signal(campaign_workflows.Trip.finish, rpc_timeout=patience)


def _total(handle: WorkflowHandle[Any], patience: float, _: int) -> Any:
    return handle.query(campaign_workflows.Ledger.total, rpc_timeout=patience)


def _story(client: Client, workflow_id: str) -> str:
    """Return what a run waits for, its diagnosis, and the end of its history."""
    handle = client.get_workflow_handle(workflow_id)
    lines = []
    for ask in (lambda: _waits_for(handle), lambda: _why(client, workflow_id), lambda: _last_events(handle)):
        try:
            lines.append(ask())
        except HourglassError as error:
            lines.append(f"{type(error).__name__}: {error}")
    return "; ".join(lines)


def _waits_for(handle: WorkflowHandle[Any]) -> str:
    described = handle.describe(rpc_timeout=PATIENCE)
    return f"task due {described.next_task_time}, activities {described.pending_activities}"


def _why(client: Client, workflow_id: str) -> str:
    findings = WhyContext(client).diagnosis(workflow_id, None).findings
    return " ".join(f"it {finding.what} ({', '.join(finding.details)})" for finding in findings)


def _last_events(handle: WorkflowHandle[Any]) -> str:
    events = handle.history().events[-12:]
    return " ".join(
        f"{event['eventTime']} {event['eventType'].removeprefix('EVENT_TYPE_')}" for event in events
    )
