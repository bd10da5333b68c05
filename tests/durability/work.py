"""A workflow with everything that can be interrupted, and activities that write notes which no crash can undo.

The notes are lines of JSON in an append-only file: a killed process loses none that it has written.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
import uuid
from typing import Any

from hourglass import ApplicationError, RetryPolicy, activity, workflow

NOTES = "HOURGLASS_TEST_NOTES"
FILE = "HOURGLASS_TEST_FILE"
"""The environment's names for the file of notes, and for the engine's file."""
BEAT = "HOURGLASS_TEST_BEAT"
"""That for how many seconds lie between two heartbeats."""
BEATS = 3

_SOON = RetryPolicy(initial_interval=0.005, backoff_coefficient=1.0)


def note(what: str, **more: Any) -> None:
    """Append a line with a single write, which other writers cannot interleave."""
    here = activity.info()
    line = {
        "what": what,
        "run": here.workflow_run_id,
        "activity": here.activity_id,
        "type": here.activity_type,
        "attempt": here.attempt,
        "process": os.getpid(),
        "at": time.monotonic(),
        **more,
    }
    descriptor = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


def _wait_for_beats(count: int) -> None:
    """Take time, so that kills interrupt an attempt."""
    threading.Event().wait(count * float(os.environ.get(BEAT, "0.002")))


def executed() -> str:
    """Record an execution under a token that no other execution has."""
    token = f"{activity.info().activity_type}-{uuid.uuid4().hex}"
    note("done", token=token)
    return token


@activity.defn(retry_policy=_SOON)
def reserve(number: int) -> str:
    note("begun")
    return executed()


@activity.defn(retry_policy=_SOON)
def charge(number: int) -> str:
    """Fail on the first attempt."""
    note("begun")
    if activity.info().attempt == 1:
        raise ApplicationError("the bank does not answer")
    return executed()


@activity.defn(retry_policy=_SOON)
def pack(number: int) -> str:
    """Heartbeat its progress; resume from it."""
    come = activity.heartbeat_details(int)
    note("begun", come=come)
    for place in range(0 if come is None else come + 1, BEATS):
        note("beat", place=place)
        activity.heartbeat(place)
        _wait_for_beats(1)
    return executed()


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def pay(number: int) -> str:
    """Must not be executed twice, but may be lost."""
    note("begun")
    _wait_for_beats(2 * BEATS)
    return executed()


@activity.defn(retry_policy=_SOON)
async def thank(number: int) -> str:
    note("begun")
    await asyncio.sleep(0.001)  # work that takes a moment, so that kills meet it
    return executed()


@workflow.defn
def errand(number: int) -> int:
    """Two activities, like the work of a web request."""
    reserve(number)
    thank(number)
    return number + 1


WORKFLOWS = [errand]
ACTIVITIES = [reserve, charge, pack, pay, thank]
