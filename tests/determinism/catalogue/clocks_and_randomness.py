"""Clocks and random values, from the standard library."""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime as moment
from time import sleep

from hourglass import workflow

from .acts import note

# Bug `aliased_now`: `datetime.now` under another name, kept in a variable first.


@workflow.defn
def aliased_now() -> str:
    clock = moment.now
    today = clock().isoformat()  # caught: check HG101, watch
    return note(today)  # caught: verify, replay


# Bug `blocking_sleep`: a pause that stops the thread of all workflows, and is gone after a crash.


@workflow.defn
def blocking_sleep() -> str:
    sleep(0.001)  # caught: check HG103, watch
    return note("later")


# Bug `default_factory`: a dataclass that makes its own id: the call stands in no line of the workflow.


@dataclass
class Order:
    item: str
    id: uuid.UUID = field(default_factory=uuid.uuid4)  # caught: check HG102


@workflow.defn
def default_factory() -> str:
    order = Order("lamp")  # caught: watch
    return note(str(order.id))  # caught: verify, replay


# Bug `fresh_uuid`: an idempotency key that is another one after a crash, which is when it matters.


@workflow.defn
def fresh_uuid() -> str:
    key = str(uuid.uuid4())  # caught: check HG102, watch
    return note(key)  # caught: verify, replay


# Bug `import_time`: a moment that every process takes for itself when it imports the module.

STARTED = time.time_ns()


@workflow.defn
def import_time() -> str:
    return note(f"since {STARTED}")  # caught: check HG111, replay


# Bug `randomness`: a sample for an audit, drawn anew by every execution.


@workflow.defn
def randomness() -> list[str]:
    picked = random.sample(range(1_000_000), 3)  # caught: check HG102, watch
    return workflow.gather(*[note.start(str(number)) for number in picked])  # caught: verify, replay


# Bug `wall_clock`: a deadline from the wall clock: executed again, another time is sent.


@workflow.defn
def wall_clock() -> str:
    deadline = time.time() + 3600  # caught: check HG101, watch
    return note(f"until {deadline}")  # caught: verify, replay
