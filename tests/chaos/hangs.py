"""Workflow code that hangs: other runs continue, threads and CPU time stay bounded, and the failure of the task has the
stack.

A regular expression that never ends blocks the interpreter itself; only a parent process can replace that worker: see
`regex`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from hourglass import Client, Worker, WorkflowHandle, workflow

from . import testbed, work
from .outcome import Outcome, Scale, Tally
from .waiting import Stuck, results, until

DEADLOCK = 0.5
_NEIGHBOURS = 5
_MORE_THREADS = 8 + 4  # what may be stuck before the worker says so, and its own
_MOST_CPU = 0.6  # of one processor, while nobody works


class Nap:
    """The duration of the sleeping workflow: as long as the test watches."""

    seconds = 60.0


@workflow.defn
def spins() -> None:
    while True:
        pass


@workflow.defn
def naps() -> None:
    time.sleep(Nap.seconds)  # the hang itself


@workflow.defn
def swallows() -> None:
    """Catch every exception."""
    end = time.monotonic() + Nap.seconds
    while time.monotonic() < end:
        try:
            while time.monotonic() < end:
                pass
        except BaseException:
            pass


# Those that can be stopped or wait are watched for long, and must cost nothing. One that swallows everything costs what it
# likes, until it has hung twice and is not executed again.
CHEAP = {"spins": spins, "naps": naps}
STUBBORN = {"swallows": swallows}


def workflow_code(seed: int, scale: Scale) -> Outcome:
    """Run each kind of hang, with healthy runs beside it that must complete."""
    tally = Tally()
    Nap.seconds = scale.nap
    with Client.connect(testbed.server().target) as client:
        workflows = [work.chain, *CHEAP.values(), *STUBBORN.values()]
        queue = testbed.name("hangs")
        with testbed.working(client, queue, workflows=workflows, deadlock_timeout=DEADLOCK) as worker:
            _watched(
                client, worker, CHEAP, scale.hang_watch, _MOST_CPU if scale.strict else None, scale, tally
            )
            _watched(client, worker, STUBBORN, min(scale.hang_watch, 10.0), None, scale, tally)
    return tally.outcome()


def _watched(
    client: Client,
    worker: Worker,
    hanging: Mapping[str, Callable[[], None]],
    seconds: float,
    most_cpu: float | None,
    scale: Scale,
    tally: Tally,
) -> None:
    queue, threads = worker.task_queue, threading.active_count()
    handles = {
        name: client.start_workflow(code, id=testbed.name(name), task_queue=queue)
        for name, code in hanging.items()
    }
    try:
        for name, handle in handles.items():
            _tells_its_stack(worker, name, handle, scale, tally)
        used = _others_go_on(client, worker, threads, seconds, scale, tally)
        if most_cpu is not None:
            tally.check(used <= most_cpu, f"{sorted(hanging)}: {used:.0%} of a processor while watched")
    except Stuck as stuck:
        tally.failed(f"{sorted(hanging)}: {stuck}")
    finally:
        for handle in handles.values():
            handle.terminate("seen enough")


def _tells_its_stack(
    worker: Worker, name: str, handle: WorkflowHandle[Any], scale: Scale, tally: Tally
) -> None:
    until(f"{name} hangs", lambda: _failures(handle), scale.limit, worker)
    failure = _failures(handle)[0]
    stack = failure.get("stackTrace", "")
    tally.check("hangs.py" in stack and name in stack, f"{name}: no stack in {failure}")


def _others_go_on(
    client: Client, worker: Worker, threads: int, seconds: float, scale: Scale, tally: Tally
) -> float:
    """Check that other runs complete and threads stay few; return the share of CPU time."""
    busy, began = time.process_time(), time.monotonic()
    while True:
        started = time.monotonic()
        values = results(testbed.start_chains(client, worker.task_queue, _NEIGHBOURS), scale.limit, worker)
        tally.check(testbed.right(values) == _NEIGHBOURS, f"neighbours: {values}", time.monotonic() - started)
        more = threading.active_count() - threads
        tally.check(more <= _MORE_THREADS, f"{more} more threads")
        left = seconds - (time.monotonic() - began)
        if left <= 0:
            return (time.process_time() - busy) / (time.monotonic() - began)
        time.sleep(min(5.0, left))  # the watch itself


def _failures(handle: WorkflowHandle[Any]) -> list[dict[str, Any]]:
    return [
        event["workflowTaskFailedEventAttributes"]["failure"]
        for event in handle.history().events
        if event["eventType"] == "EVENT_TYPE_WORKFLOW_TASK_FAILED"
    ]
