"""A worker process dies by SIGKILL during an activity, a task or nothing, or by SIGTERM; another one continues."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from hourglass import Client, WorkflowHandle
from hourglass.testing._dev_server import find_cli

from . import testbed, work
from .outcome import Outcome, Scale, Tally
from .waiting import Stuck, results, until

# What is promised; where the size is not strict, a guard against hanging only.
_IDLE, _IN_TASK, _SIGTERM = 6.0, 11.0, 1.5
_SLACK = 3.0  # for the retry policy, and a server that is busy
_GUARD = 60.0


def in_activity(seed: int, scale: Scale) -> Outcome:
    """Killed during an activity: retried within the liveness timeout, with its last heartbeat details."""
    tally = Tally()
    _tried(tally, lambda: _mid_activity(scale, tally, promised=True, liveness=scale.liveness))
    if scale.name == "full":
        _tried(tally, lambda: _mid_activity(scale, tally, promised=False, liveness=30.0))
    return tally.outcome()


def _mid_activity(scale: Scale, tally: Tally, *, promised: bool, liveness: float) -> None:
    target, queue = testbed.server().target, testbed.name("in-activity")
    with Client.connect(target) as client, testbed.worker_program(target, queue, CHAOS_HOLD="1") as first:
        handle = client.start_workflow(
            work.crawling, promised, liveness, id=testbed.name("crawl"), task_queue=queue
        )
        first.wait_line("in activity")
        until("the server knows the cursor", lambda: _knows_cursor(target, handle.id), 20)
        with testbed.worker_program(target, queue) as second:
            first.kill()
            began = time.monotonic()
            second.wait_line("again", _GUARD)
            took = time.monotonic() - began
            (outcome,) = results([handle], _GUARD)
    limit = liveness + _SLACK if scale.strict else _GUARD
    # The first worker lets every attempt hang; on a busy machine it may have had more than one.
    good = outcome[0] == "page 7" and outcome[1] >= 2 and took <= limit
    tally.check(good, f"resumed as {outcome} after {took:.1f} s, of at most {limit:g}", took)


def _knows_cursor(target: str, workflow_id: str) -> bool:
    """Read the heartbeat details from the server; our client does not show them."""
    command = [find_cli(), "workflow", "describe", "-w", workflow_id, "--address", target, "-o", "json"]
    result = subprocess.run(command, capture_output=True, check=False, timeout=20, stdin=subprocess.DEVNULL)
    pending: list[dict[str, Any]] = json.loads(result.stdout or b"{}").get("pendingActivities", [])
    return any(activity.get("heartbeatDetails") for activity in pending)


def between_tasks(seed: int, scale: Scale) -> Outcome:
    """Killed between tasks: idle runs continue once the server gives up on the sticky queue."""
    tally = Tally()
    count = min(scale.workflows, 20)
    for _ in range(scale.rounds):
        _tried(tally, lambda: _idle_runs(count, tally, _bound(scale, _IDLE), lambda program: program.kill()))
    return tally.outcome()


def by_sigterm(seed: int, scale: Scale) -> Outcome:
    """SIGTERM: the running activity completes, and the next worker has no delay."""
    tally = Tally()

    def terminate(program: testbed.Program) -> None:
        status, took = program.end(signal.SIGTERM)
        tally.check(status == 0, f"SIGTERM ended it with {status} after {took:.1f} s:\n{program.output()}")

    count = min(scale.workflows, 20)
    for _ in range(scale.rounds):
        _tried(tally, lambda: _idle_runs(count, tally, _bound(scale, _SIGTERM), terminate))
    _tried(tally, lambda: _finishes(tally, terminate))
    return tally.outcome()


def _idle_runs(count: int, tally: Tally, limit: float, end: Callable[[testbed.Program], None]) -> None:
    target, queue = testbed.server().target, testbed.name("idle")
    with Client.connect(target) as client, testbed.worker_program(target, queue) as first:
        prefix = testbed.name("idle")
        handles = [
            client.start_workflow(work.idle, n, id=f"{prefix}-{n}", task_queue=queue) for n in range(count)
        ]
        until("the runs are idle", lambda: all(map(_is_idle, handles)), 30)
        with testbed.worker_program(target, queue):
            end(first)
            began = time.monotonic()
            for handle in handles:
                handle.signal(work.go, 100)
            values = results(handles, _GUARD)
            took = time.monotonic() - began
    good = values == [n + 101 for n in range(count)] and took <= limit
    tally.check(good, f"{values} after {took:.1f} s, of at most {limit:g}", took)


def _is_idle(handle: WorkflowHandle[Any]) -> bool:
    """Return whether the last task is complete and nothing is scheduled."""
    last = handle.history().events[-1]["eventType"]
    return "ACTIVITY" not in last and last.endswith("TASK_COMPLETED") and len(handle.history().events) > 8


def _finishes(tally: Tally, end: Callable[[testbed.Program], None]) -> None:
    target, queue = testbed.server().target, testbed.name("finishing")
    with Client.connect(target) as client, testbed.worker_program(target, queue) as first:
        handle = client.start_workflow(work.finishing, 1.0, id=testbed.name("finishing"), task_queue=queue)
        first.wait_line("in activity")
        with testbed.worker_program(target, queue):
            end(first)
            (result,) = results([handle], _GUARD)
    tally.check(result == "attempt 1", f"the activity did not finish in its first attempt, but in {result}")


def in_task(seed: int, scale: Scale) -> Outcome:
    """Killed inside a task: its run continues once the task has timed out."""
    tally = Tally()
    for _ in range(scale.rounds):
        _tried(tally, lambda: _in_task(tally, _bound(scale, _IN_TASK)))
    return tally.outcome()


def _in_task(tally: Tally, limit: float) -> None:
    target, queue = testbed.server().target, testbed.name("in-task")
    with Client.connect(target) as client, testbed.worker_program(target, queue, CHAOS_HOLD="1") as first:
        handle = client.start_workflow(work.held, 1, id=testbed.name("held"), task_queue=queue)
        first.wait_line("in task")
        with testbed.worker_program(target, queue):
            first.kill()
            began = time.monotonic()
            (result,) = results([handle], _GUARD)
            took = time.monotonic() - began
    tally.check(result == 3 and took <= limit, f"{result} after {took:.1f} s, of at most {limit:g}", took)


def under_load(seed: int, scale: Scale) -> Outcome:
    """Kill a worker repeatedly at random instants under load, each time with another one running: all runs complete."""
    tally, chance = Tally(), random.Random(f"under load {seed}")
    _tried(tally, lambda: _under_load(scale, chance, tally))
    return tally.outcome()


def _under_load(scale: Scale, chance: random.Random, tally: Tally) -> None:
    target, queue = testbed.server().target, testbed.name("load")
    programs: list[testbed.Program] = []
    with Client.connect(target) as client:
        try:
            programs.append(testbed.worker_program(target, queue))
            handles = testbed.start_chains(client, queue, min(scale.workflows, 100))
            for _ in range(scale.injections):
                programs.append(testbed.worker_program(target, queue))
                time.sleep(chance.random() * 0.5)  # a random instant is the point
                programs[-2].kill()
            began = time.monotonic()
            values = results(handles, scale.limit)
            took = time.monotonic() - began
            tally.check(testbed.right(values) == len(values), f"wrong results: {values}", took)
        finally:
            for program in programs:
                program.__exit__()


def _bound(scale: Scale, promised: float) -> float:
    return promised if scale.strict else _GUARD


def _tried(tally: Tally, attempt: Callable[[], None]) -> None:
    try:
        attempt()
    except Stuck as stuck:
        tally.failed(str(stuck))
