"""Number of Python calls per step, by package: `python -m benchmarks.calls [--runs 200] [--json]`.

A step is one workflow with one activity, from the client's call to its result, on the embedded engine in memory and on a file.
Calls of Python functions and resumptions of coroutines and generators are counted on all threads; C functions are not. Background
work such as timers of the supervision tree is included and small. Unlike durations, these counts hardly depend on the machine:
two versions can be compared on a busy one.
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
"""Runs before counting starts, so that imports, connections and empty caches are not counted."""


@activity.defn
def greet(name: str) -> str:
    return f"Hello, {name}!"


@workflow.defn
def hello(name: str) -> str:
    return greet(name)


class CallCounter:
    """Counter of calls by code object, on all threads started after its creation."""

    def __init__(self) -> None:
        self.calls: Counter[CodeType] = Counter()
        self._is_counting = False
        if sys.version_info < (3, 12):
            threading.setprofile(self._profile)  # a thread's profile function can only be set on that thread
            sys.setprofile(self._profile)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Reset the counter and count the calls made in this block."""
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
    """Return the package of a code object: `_embedded.store` or `client` inside Hourglass, else `asyncio` or `other`."""
    path = Path(code.co_filename)
    if path.is_relative_to(SOURCE):
        folders = path.relative_to(SOURCE).parts[:-1]
        return ".".join(folders[: 2 if folders[:1] in (("_embedded",), ("_worker",)) else 1]) or path.stem
    return "asyncio" if path.parent.name == "asyncio" else "other"


def count(counter: CallCounter, target: str, runs: int) -> dict[str, float]:
    """Return the number of calls per step by package on a target."""
    with (
        Client.connect(target) as client,
        Worker(client, workflows=[hello], activities=[greet], verify="off", watch="off"),
    ):
        for number in range(WARM_UP):
            client.execute_workflow(hello, "before", id=f"before-{number}")
        with counter.counting():
            for number in range(runs):
                client.execute_workflow(hello, "counted", id=f"counted-{number}")
    by_package: Counter[str] = Counter()
    for code, calls in counter.calls.items():
        by_package[package(code)] += calls
    return {name: calls / runs for name, calls in by_package.most_common()}


def measure(runs: int) -> dict[str, dict[str, float]]:
    """Return the calls per step by package, in memory and on a file."""
    # Both targets share the counter: the profile function of the control thread, which they share, can be set only once.
    counter = CallCounter()
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
    parser.add_argument("--runs", type=int, default=200, help="number of workflows to count (default: 200)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    counts = measure(options.runs)
    if options.json:
        print(json.dumps(counts))
        return
    names = sorted({*counts["memory"], *counts["file"]}, key=lambda name: -counts["file"].get(name, 0.0))
    outside = {"asyncio", "other", "calls"}
    print(f"{'Python calls per step':28}{'memory':>10}{'file':>10}")
    for title, packages in [
        *((name, [name]) for name in names),
        ("hourglass", [name for name in names if name not in outside]),
        ("all", names),
    ]:
        values = [sum(counts[target].get(name, 0.0) for name in packages) for target in ("memory", "file")]
        print(f"{title:28}{values[0]:10.1f}{values[1]:10.1f}")


if __name__ == "__main__":
    main()
