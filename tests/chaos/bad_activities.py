"""Activities that misbehave: each has a clear failure, and the worker survives.

One that forks is in `exit_program`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from hourglass import Client, RetryPolicy, activity, workflow
from hourglass.errors import WorkflowFailedError

from . import testbed
from .leaks import left_open, outstanding
from .outcome import Outcome, Scale, Tally
from .waiting import Stuck, results, until

_ONCE = RetryPolicy(maximum_attempts=1)
_over = threading.Event()  # releases the hanging activities at the end
_LEAKED = 20


class Nasty(BaseException):
    """An exception that is not an `Exception`."""


@activity.defn(retry_policy=_ONCE, start_to_close_timeout=1.0)
def hangs() -> None:
    _over.wait()


@activity.defn(retry_policy=_ONCE)
def raises_base() -> None:
    raise Nasty("base")


@activity.defn(retry_policy=_ONCE)
async def raises_base_async() -> None:
    raise Nasty("base")


@activity.defn(retry_policy=_ONCE)
def exits() -> None:
    sys.exit(3)


@activity.defn(retry_policy=_ONCE)
async def exits_async() -> None:
    sys.exit(3)


@activity.defn(retry_policy=_ONCE, executor="process")
def exits_process() -> None:
    os._exit(3)


@activity.defn(retry_policy=_ONCE, executor="process")
def kills_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@activity.defn(retry_policy=_ONCE)
def leaks_threads() -> int:
    for _ in range(_LEAKED):
        threading.Thread(target=_over.wait, daemon=True).start()
    return _LEAKED


@activity.defn(retry_policy=_ONCE)
def returns_nonsense() -> object:
    return object()


@activity.defn(retry_policy=_ONCE)
def returns_much() -> str:
    return "x" * (3 * 1024 * 1024)


@activity.defn(retry_policy=_ONCE)
def behaves() -> str:
    return "well"


BAD: dict[str, Callable[[], Any]] = {
    "hangs": hangs,
    "raises_base": raises_base,
    "raises_base_async": raises_base_async,
    "exits": exits,
    "exits_async": exits_async,
    "exits_process": exits_process,
    "kills_process": kills_process,
    "returns_nonsense": returns_nonsense,
    "returns_much": returns_much,
}
# Text of the failure.
NAMED = {
    "hangs": "TimedOutError",
    "raises_base": "Nasty",
    "raises_base_async": "Nasty",
    "exits": "SystemExit",
    "exits_async": "SystemExit",
    "exits_process": "3",
    "kills_process": "SIGKILL",
    "returns_nonsense": "object",
    "returns_much": "3",
}
HARMLESS: dict[str, Callable[[], Any]] = {"leaks_threads": leaks_threads}


@workflow.defn
def calls(name: str) -> object:
    return {**BAD, **HARMLESS}[name]()


@workflow.defn
def calls_well() -> str:
    return behaves()


def all_of_them(seed: int, scale: Scale) -> Outcome:
    """Run each bad activity, followed by a good one."""
    tally = Tally()
    _over.clear()
    activities = [*BAD.values(), *HARMLESS.values(), behaves]
    with Client.connect(testbed.server().target) as client:
        try:
            queue = testbed.name("bad-activities")
            with testbed.working(
                client, queue, workflows=[calls, calls_well], activities=activities
            ) as worker:
                for name in (*BAD, *HARMLESS):
                    _one(client, queue, name, tally)
                    well = client.start_workflow(calls_well, id=testbed.name("well"), task_queue=queue)
                    began = time.monotonic()
                    values = results([well], 30, worker)
                    tally.check(values == ["well"], f"after {name}: {values}", time.monotonic() - began)
                until("no attempt is left", lambda: worker.statistics().running_activities == 0, 60, worker)
                until("nothing is outstanding", lambda: not outstanding(worker), 60, worker)
            tally.check(not left_open(worker), f"after the shutdown: {left_open(worker)}")
        except Stuck as stuck:
            tally.failed(str(stuck))
        finally:
            _over.set()
    return tally.outcome()


def _one(client: Client, queue: str, name: str, tally: Tally) -> None:
    handle = client.start_workflow(calls, name, id=testbed.name(name), task_queue=queue)
    try:
        (value,) = results([handle], 40)
    except WorkflowFailedError as error:
        description = _describe(error)
        tally.check(name in BAD and NAMED[name] in description, f"{name} failed as {description!r}")
    else:
        tally.check(name in HARMLESS, f"{name} gave {value!r}")


def _describe(error: BaseException | None) -> str:
    parts = []
    while error is not None:
        parts.append(f"{type(error).__name__}: {error} {getattr(error, 'type', '')}")
        error = error.__cause__
    return " <- ".join(parts)
