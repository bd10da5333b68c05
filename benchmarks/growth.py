"""Part `growth`: scaling of the cost of a step or a workflow as one parameter grows and the others stay constant.

    at a time     1 → 2,000 concurrent workflows of five steps
    steps         10 → 10,000 sequential steps in one workflow
    closed        10³ → 10⁶ closed workflows in the file: time to open it, to run a workflow and to list a page
    processes     1 → one worker process per processor (at least two) on one file

Peers are measured up to sizes that they complete within seconds. Every engine limits a history to 51,200 events: a workflow of
10,000 steps continues as new, as it would in production.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
import uuid
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from hourglass import Client, Worker

from .cores import CASES, run_steps
from .embedded import SUBJECTS, Addresses, child, peers
from .load import copy_closed_workflow
from .report import Row, interleave, leave_out
from .subjects_hourglass import echo, sequence

_AT_ONCE = (1, 10, 50, 200, 1_000, 2_000)
_STEPS = (10, 100, 1_000, 10_000)
_CLOSED = (1_000, 10_000, 100_000, 1_000_000)

_MOST_AT_ONCE = {"temporalio, dev server": 200, "DBOS, SQLite": 200, "DBOS, PostgreSQL": 200}
_MOST_STEPS = {"temporalio, dev server": 100, "DBOS, SQLite": 1_000, "DBOS, PostgreSQL": 1_000}
"""Largest sizes measured of peers: larger ones would take minutes."""


def measure(*, quick: bool) -> list[Row]:
    """Measure all four curves. A curve that fails is reported and skipped."""
    rows: list[Row] = []
    with peers() as addresses:
        curves = {
            "at a time": partial(_at_a_time, addresses),
            "steps": partial(_steps, addresses),
            "closed": _closed,
            "processes": _processes,
        }
        for name, curve in curves.items():
            try:
                rows += curve(quick=quick)
            except Exception as error:
                traceback.print_exc()
                leave_out(f"growth, {name}", f"{type(error).__name__}: {error}")
    return rows


def _at_a_time(addresses: Addresses, *, quick: bool) -> list[Row]:
    rows: list[Row] = []
    for at_once in (1, 50, 1_000) if quick else _AT_ONCE:
        subjects = {
            name: partial(child, name, name, at_once, 1.5 if quick else 3.0, addresses)
            for name in SUBJECTS
            if at_once <= _MOST_AT_ONCE.get(name, max(_AT_ONCE))
        }
        rows += interleave(subjects, rounds=1, part="growth", case=f"{at_once:,} at a time")
    return [row for row in rows if row.unit in ("steps/s", "µs CPU/step", "MiB held")]


def _steps(addresses: Addresses, *, quick: bool) -> list[Row]:
    rows: list[Row] = []
    for steps in _STEPS[:3] if quick else _STEPS:
        subjects = {
            name: partial(_measure_long_workflow, name, steps, addresses)
            for name in SUBJECTS
            if steps <= _MOST_STEPS.get(name, max(_STEPS))
        }
        rows += interleave(subjects, rounds=1, part="growth", case=f"{steps:,} steps")
    return rows


def _measure_long_workflow(name: str, steps: int, addresses: Addresses) -> dict[str, float]:
    values = child(name, name, 1, 0.1, addresses, steps)
    return {unit: values[unit] for unit in ("µs/step", "µs CPU/step", "bytes on disk/step") if unit in values}


def _closed(*, quick: bool) -> list[Row]:
    rows: list[Row] = []
    for count in _CLOSED[:3] if quick else _CLOSED:
        with TemporaryDirectory(dir=".", prefix=".bench-") as folder:
            command = [sys.executable, "-m", "benchmarks.growth", str(count), folder]
            process = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=900, check=True)
        values: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
        rows += [
            Row("growth", f"{count:,} closed", "Hourglass, file", value, unit)
            for unit, value in values.items()
        ]
    return rows


def _processes(*, quick: bool) -> list[Row]:
    counts = sorted({1, *(2**power for power in range(1, 8) if 2**power <= max(2, os.cpu_count() or 1))})
    rows: list[Row] = []
    for case, (in_activities, in_workflow) in CASES.items():
        for count in counts:
            values = run_steps(count, in_activities, in_workflow, bound=count > 1, quick=quick)
            name = f"{count} process{'es' if count > 1 else ''}"
            rows.append(Row("growth", name, f"Hourglass, {case}", 1e3 / values["ms/step"], "steps/s"))
    return rows


def _measure_with_closed(count: int, folder: str) -> dict[str, float]:
    """Measure opening a file with `count` closed workflows, running new ones and listing a page."""
    path = f"{folder}/hourglass.db"
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=[sequence], activities=[echo]):
        client.execute_workflow(sequence, 5, id="one")
    copy_closed_workflow(path, count)
    started = time.perf_counter()
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=[sequence], activities=[echo]):
        client.execute_workflow(sequence, 5, id="two")
        until_first_result = time.perf_counter() - started
        cpu_started, done = time.process_time(), 0
        end = time.perf_counter() + 2
        while time.perf_counter() < end:
            client.execute_workflow(sequence, 5, id=uuid.uuid4().hex)
            done += 1
        cpu = (time.process_time() - cpu_started) / done
        started = time.perf_counter()
        assert len(client.list_page(page_size=100).items) == 100
        list_seconds = time.perf_counter() - started
    return {
        "s to the first result": until_first_result,
        "µs CPU/step": cpu / 5 * 1e6,
        "ms for a page of the list": list_seconds * 1e3,
        "bytes/closed workflow": Path(path).stat().st_size / count,
    }


if __name__ == "__main__":
    print(json.dumps(_measure_with_closed(int(sys.argv[1]), sys.argv[2])), flush=True)
