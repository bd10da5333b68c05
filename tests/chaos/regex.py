"""A regular expression that never ends blocks the interpreter: the parent of `hourglass worker` replaces the process.

The test watches as long as for other hangs: other runs continue, processes are few, CPU time is low, and after two attempts
the run is not executed any more.
"""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from hourglass import Client, WorkflowHandle

from . import testbed
from .outcome import Outcome, Scale, Tally
from .waiting import Stuck, results, until

DEADLOCK = 0.5
_SERVICE = Path(__file__).with_name("regex_work.py")
_NEIGHBOURS = 5
_FOREVER = "a" * 200 + "b"
_AFTER = 15.0  # a task that the process took along is sent again when it has timed out
_MOST_CPU = 0.5  # of one processor, over the whole watch
_MOST_PROCESSES = 5
_STARTED = re.compile(r"process (\d+) started")


def holds_the_interpreter(seed: int, scale: Scale) -> Outcome:
    """Run workflows that block the interpreter, with healthy runs beside them."""
    tally = Tally()
    target, queue = testbed.server().target, testbed.name("regex")
    arguments = ("worker", str(_SERVICE), "--target", target, "--task-queue", queue)
    program = testbed.Program("regex_program", *arguments, "--deadlock-timeout", str(DEADLOCK))
    with Client.connect(target) as client, program:
        try:
            _wait_running(program, 1, scale)
            _watched(client, program, queue, scale, tally)
            code, took = program.end(signal.SIGTERM)
            tally.check(code == 0, f"ended with {code}\n{program.output()}", took)
        except Stuck as stuck:
            tally.failed(f"{stuck}\n{program.output()}")
    return tally.outcome()


def _watched(client: Client, program: testbed.Program, queue: str, scale: Scale, tally: Tally) -> None:
    began, used = time.monotonic(), _cpu(program)
    hung = [_start(client, queue)]
    _replaced(program, 1, scale)
    _neighbours(client, queue, scale, tally, _AFTER)
    if scale.hang_watch > 5:
        hung += _all_that_is_tried(client, program, queue, scale, tally)
        while time.monotonic() - began < scale.hang_watch:
            _neighbours(client, queue, scale, tally, _AFTER)
            time.sleep(5.0)  # the watch itself
        share = (_cpu(program) - used) / (time.monotonic() - began)
        tally.check(not scale.strict or share <= _MOST_CPU, f"{share:.0%} of a processor while watched")
    process_count = len(_pids(program))
    tally.check(process_count <= _MOST_PROCESSES, f"{process_count} processes\n{program.output()}")
    for handle in hung:
        handle.terminate("seen enough")


def _all_that_is_tried(
    client: Client, program: testbed.Program, queue: str, scale: Scale, tally: Tally
) -> list[WorkflowHandle[Any]]:
    """Execute the first run again, a second one, and then a third, which is not even started."""
    _replaced(program, 2, scale)  # the first one again
    second = _start(client, queue)
    _replaced(program, 3, scale)
    third = _start(client, queue)
    until("the third run's task fails", lambda: _failures(third), scale.limit)
    failure = _failures(third)[0]
    good = "regex_work.py" in failure.get("stackTrace", "") and "catastrophe" in failure.get("stackTrace", "")
    tally.check(good, f"no stack in {failure}")
    return [second, third]


def _start(client: Client, queue: str) -> WorkflowHandle[Any]:
    return client.start_workflow("catastrophe", _FOREVER, id=testbed.name("catastrophe"), task_queue=queue)


def _neighbours(client: Client, queue: str, scale: Scale, tally: Tally, limit: float) -> None:
    began = time.monotonic()
    handles = [
        client.start_workflow("neighbour", place, id=testbed.name("neighbour"), task_queue=queue)
        for place in range(_NEIGHBOURS)
    ]
    values = results(handles, scale.limit)
    took = time.monotonic() - began
    good = values == [place + 5 for place in range(_NEIGHBOURS)] and (took <= limit or not scale.strict)
    tally.check(good, f"neighbours: {values} after {took:.1f} s", took)


def _replaced(program: testbed.Program, times: int, scale: Scale) -> None:
    until(f"it stood still {times}×", lambda: _said(program, "hangs") >= times, scale.limit)
    _wait_running(program, times + 1, scale)


def _wait_running(program: testbed.Program, times: int, scale: Scale) -> None:
    until(f"process {times} works", lambda: _said(program, "the worker on task queue") >= times, scale.limit)


def _said(program: testbed.Program, text: str) -> int:
    return sum(text in line for line in list(program.errors))


def _pids(program: testbed.Program) -> list[int]:
    return [int(match[1]) for line in list(program.errors) if (match := _STARTED.search(line))]


def _cpu(program: testbed.Program) -> float:
    """Return the CPU seconds of the parent, its replaced children and the present child."""
    ticks = 0
    for pid in [program.process.pid, *_pids(program)[-1:]]:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _failures(handle: WorkflowHandle[Any]) -> list[dict[str, Any]]:
    return [
        event["workflowTaskFailedEventAttributes"]["failure"]
        for event in handle.history().events
        if event["eventType"] == "EVENT_TYPE_WORKFLOW_TASK_FAILED"
    ]
