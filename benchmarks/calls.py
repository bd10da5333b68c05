"""Python calls per step, by package: `python -m benchmarks.calls [--runs 200] [--json]`.

A step is one workflow with one activity, from the client's call to its result, on the embedded engine in memory and on a file.
Every call of a Python function on any thread counts, and every time that a coroutine or generator goes on; what is written in C
does not. Idle work of the same time, such as timers of the supervision tree, is included and small. Unlike times these counts
hardly depend on the machine, so that two versions can be compared on a busy one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import hourglass
from hourglass import Client, Worker, activity, workflow

SOURCE = Path(str(hourglass.__file__)).parent
WARM_UP = 20
"""Runs before those that are counted: imports, connections and caches do not count."""


@activity.defn
def greet(name: str) -> str:
    """The one activity."""
    return f"Hello, {name}!"


@workflow.defn
def hello(name: str) -> str:
    """The one workflow."""
    return greet(name)


class CallCounter:
    """Counts calls by code object, on all threads that started after it was made."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self._is_counting = False
        if sys.version_info < (3, 12):
            threading.setprofile(self._profile)  # only a thread itself can set its function
            sys.setprofile(self._profile)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the calls of this block anew."""
        self.calls.clear()
        self._is_counting = True
        if sys.version_info >= (3, 12):
            tool, events = sys.monitoring.PROFILER_ID, sys.monitoring.events
            sys.monitoring.use_tool_id(tool, "calls")
            for event in (events.PY_START, events.PY_RESUME):
                sys.monitoring.register_callback(tool, event, self._monitor)
            sys.monitoring.set_events(tool, events.PY_START | events.PY_RESUME)
        try:
            yield
        finally:
            self._is_counting = False
            if sys.version_info >= (3, 12):
                sys.monitoring.set_events(tool, 0)
                sys.monitoring.free_tool_id(tool)

    def close(self) -> None:
        """Stop profiling this thread and those that start later."""
        if sys.version_info < (3, 12):
            threading.setprofile(None)
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and self._is_counting:
            self.calls[frame.f_code] += 1

    def _monitor(self, code: CodeType, offset: int) -> None:
        self.calls[code] += 1


def package(code: CodeType) -> str:
    """Return the package that code belongs to: `_embedded.store` or `client` for ours, else `asyncio` or `other`."""
    path = Path(code.co_filename)
    if path.is_relative_to(SOURCE):
        folders = path.relative_to(SOURCE).parts[:-1]
        return ".".join(folders[: 2 if folders[:1] in (("_embedded",), ("_worker",)) else 1]) or path.stem
    return "asyncio" if path.parent.name == "asyncio" else "other"


def count(counter: CallCounter, target: str, runs: int) -> dict[str, float]:
    """Return the calls per step by package on a target."""
    with (
        Client.connect(target) as client,
        Worker(client, workflows=[hello], activities=[greet], verify="off", watch="off"),
    ):
        for number in range(WARM_UP):
            client.execute_workflow(hello, "before", id=f"before-{number}")
        with counter.counting():
            for number in range(runs):
                client.execute_workflow(hello, "counted", id=f"counted-{number}")
    found: Counter[str] = Counter()
    for code, calls in counter.calls.items():
        found[package(code)] += calls
    return {name: calls / runs for name, calls in found.most_common()}


def measure(runs: int) -> dict[str, dict[str, float]]:
    """Return the calls per step by package, in memory and on a file."""
    counter = CallCounter()  # one for both: the control thread, which both share, cannot be given another
    try:
        with tempfile.TemporaryDirectory() as folder:
            targets = {"memory": "local:", "file": f"local:{folder}/calls.db"}
            return {name: count(counter, target, runs) for name, target in targets.items()}
    finally:
        counter.close()


def main() -> None:
    """Print the counts as a table or as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calls", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--runs", type=int, default=200, help="how many workflows are counted (default: 200)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    found = measure(options.runs)
    if options.json:
        print(json.dumps(found))
        return
    names = sorted({*found["memory"], *found["file"]}, key=lambda name: -found["file"].get(name, 0.0))
    outside = {"asyncio", "other", "calls"}
    print(f"{'Python calls per step':28}{'memory':>10}{'file':>10}")
    for title, chosen in [
        *((name, [name]) for name in names),
        ("hourglass", [name for name in names if name not in outside]),
        ("all", names),
    ]:
        values = [sum(found[where].get(name, 0.0) for name in chosen) for where in ("memory", "file")]
        print(f"{title:28}{values[0]:10.1f}{values[1]:10.1f}")


if __name__ == "__main__":
    main()
