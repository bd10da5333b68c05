"""Part `growth`: whether cost grows with the work only: what a step or a workflow costs as one thing grows and all else stays.

    at a time     1 → 2,000 workflows of five steps at a time
    steps         10 → 10,000 steps in one workflow, one after the other
    closed        10³ → 10⁶ closed workflows in the file: opening it, a workflow's time, a page of the list
    processes     1 → as many as there are processors (at least two) at work on one file

Peers take part as far as they come within seconds. A history ends at 51,200 events, on every engine: a workflow of 10,000 steps
continues as new, as it would in production.
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
from .load import _multiply
from .report import Row, interleave, leave_out
from .subjects_hourglass import echo, sequence

_AT_ONCE = (1, 10, 50, 200, 1_000, 2_000)
_STEPS = (10, 100, 1_000, 10_000)
_CLOSED = (1_000, 10_000, 100_000, 1_000_000)

_MOST_AT_ONCE = {"temporalio, dev server": 200, "DBOS, SQLite": 200, "DBOS, PostgreSQL": 200}
_MOST_STEPS = {"temporalio, dev server": 100, "DBOS, SQLite": 1_000, "DBOS, PostgreSQL": 1_000}
"""How far peers go: what lies beyond takes minutes."""


def measure(*, quick: bool) -> list[Row]:
    """All four curves; one that cannot be measured does not take the others along."""
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
            name: partial(_one_long, name, steps, addresses)
            for name in SUBJECTS
            if steps <= _MOST_STEPS.get(name, max(_STEPS))
        }
        rows += interleave(subjects, rounds=1, part="growth", case=f"{steps:,} steps")
    return rows


def _one_long(name: str, steps: int, addresses: Addresses) -> dict[str, float]:
    found = child(name, name, 1, 0.1, addresses, steps)
    return {unit: found[unit] for unit in ("µs/step", "µs CPU/step", "bytes on disk/step") if unit in found}


def _closed(*, quick: bool) -> list[Row]:
    rows: list[Row] = []
    for count in _CLOSED[:3] if quick else _CLOSED:
        with TemporaryDirectory(dir=".", prefix=".bench-") as place:
            command = [sys.executable, "-m", "benchmarks.growth", str(count), place]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=900, check=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        rows += [
            Row("growth", f"{count:,} closed", "Hourglass, file", value, unit)
            for unit, value in found.items()
        ]
    return rows


def _processes(*, quick: bool) -> list[Row]:
    counts = sorted({1, *(2**power for power in range(1, 8) if 2**power <= max(2, os.cpu_count() or 1))})
    rows: list[Row] = []
    for case, (in_activities, in_workflow) in CASES.items():
        for count in counts:
            found = run_steps(count, in_activities, in_workflow, bound=count > 1, quick=quick)
            name = f"{count} process{'es' if count > 1 else ''}"
            rows.append(Row("growth", name, f"Hourglass, {case}", 1e3 / found["ms/step"], "steps/s"))
    return rows


# --- in a process of its own ------------------------------------------------------------------------------


def _with_closed(count: int, place: str) -> dict[str, float]:
    """Open a file with so many closed workflows, work on it, list it."""
    path = f"{place}/hourglass.db"
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=[sequence], activities=[echo]):
        client.execute_workflow(sequence, 5, id="one")
    _multiply(path, count)
    began = time.perf_counter()
    with Client.connect(f"local:{path}") as client, Worker(client, workflows=[sequence], activities=[echo]):
        client.execute_workflow(sequence, 5, id="two")
        opened = time.perf_counter() - began
        spent, done = time.process_time(), 0
        until = time.perf_counter() + 2
        while time.perf_counter() < until:
            client.execute_workflow(sequence, 5, id=uuid.uuid4().hex)
            done += 1
        cpu = (time.process_time() - spent) / done
        began = time.perf_counter()
        assert len(client.list_page(page_size=100).items) == 100
        listed = time.perf_counter() - began
    return {
        "s to the first result": opened,
        "µs CPU/step": cpu / 5 * 1e6,
        "ms for a page of the list": listed * 1e3,
        "bytes/closed workflow": Path(path).stat().st_size / count,
    }


if __name__ == "__main__":
    print(json.dumps(_with_closed(int(sys.argv[1]), sys.argv[2])), flush=True)
