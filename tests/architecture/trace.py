"""A workflow's way, step by step: which files and functions one workflow with one activity passes through, in order.

    python -m tests.architecture.trace                # the default engine, in a file
    python -m tests.architecture.trace --temporal     # a real dev server
    python -m tests.architecture.trace --walk         # each change of file, in order
    python -m tests.architecture.trace --page > docs/way.md

A profile function on every thread notes each call of a function of ours. One execution goes before the one that is
traced, so that what happens once per process (imports, connecting, starting the tree) does not count.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import hourglass
from hourglass import Client, Worker, activity, workflow

SOURCE = Path(str(hourglass.__file__)).parent


@activity.defn
def greet(name: str) -> str:
    """The one activity."""
    return f"Hello, {name}!"


@workflow.defn
def hello(name: str) -> str:
    """The one workflow."""
    return greet(name)


@dataclass(frozen=True)
class Call:
    """One call of a function of ours."""

    thread: str
    place: str
    function: str
    line: int


@dataclass
class Trace:
    """What was called while the traced workflow ran."""

    calls: list[Call] = field(default_factory=list)
    codes: set[CodeType] = field(default_factory=set)

    def files(self) -> set[str]:
        """The files that were opened: at least one function of each was called."""
        return {call.place for call in self.calls}

    def hops(self) -> list[Call]:
        """The calls at which a thread left one file for another, in the order in which they happened."""
        last: dict[str, str] = {}
        found = []
        for call in self.calls:
            if last.get(call.thread) != call.place:
                found.append(call)
            last[call.thread] = call.place
        return found

    def lines_that_matter(self) -> int:
        """The lines of code in the functions that were called: what one reads to follow the way."""
        return sum(_lines_of(code) for code in self.codes)


def _lines_of(code: CodeType) -> int:
    return len({line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno})


@contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    """Notes every call of ours, on every thread, until the block ends."""
    places: dict[CodeType, str | None] = {}

    def place(code: CodeType) -> str | None:
        path = Path(code.co_filename)
        return path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else None

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in places:
            places[code] = place(code)
        where = places[code]
        if where is not None:
            name = threading.current_thread().name
            trace.calls.append(Call(name, where, code.co_qualname, code.co_firstlineno))
            trace.codes.add(code)

    threading.setprofile_all_threads(note) if sys.version_info >= (3, 12) else _on_all_threads(note)
    try:
        yield
    finally:
        threading.setprofile_all_threads(None) if sys.version_info >= (3, 12) else _on_all_threads(None)


_wanted: Any = None


def _on_all_threads(function: Any) -> None:
    """Before Python 3.12 a profile function can only be set by its own thread: each is told as it starts, and asks."""
    global _wanted
    _wanted = function
    sys.setprofile(_ask if function else None)


def _ask(frame: FrameType, event: str, argument: Any) -> None:
    if _wanted is not None:
        _wanted(frame, event, argument)


def execute(target: str) -> Trace:
    """Traces the second execution of the workflow on this target."""
    trace = Trace()
    threading.setprofile(_ask)  # for every thread that starts from here on
    try:
        with (
            Client.connect(target) as client,
            Worker(client, workflows=[hello], activities=[greet], verify="off", watch="off"),
        ):
            client.execute_workflow(hello, "before", id="before")
            with tracing(trace):
                client.execute_workflow(hello, "traced", id="traced")
    finally:
        threading.setprofile(None)
    return trace


@contextmanager
def target(temporal: bool) -> Iterator[str]:
    """A target of its own: a new file, or a new dev server."""
    if temporal:
        from hourglass.testing import dev_server

        with dev_server() as server:
            yield server.target
        return
    with tempfile.TemporaryDirectory() as folder:
        yield f"local:{folder}/traced.db"


@cache
def _docstrings(place: str) -> dict[int, str]:
    tree = ast.parse((SOURCE / place).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return {
        (node.decorator_list[0].lineno if node.decorator_list else node.lineno): _first_sentence(doc)
        for node in functions
        if (doc := ast.get_docstring(node))
    }


def _first_sentence(doc: str) -> str:
    paragraph = " ".join(doc.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".") + "."


def said_of(call: Call) -> str:
    """The first sentence of the function's docstring."""
    return _docstrings(call.place).get(call.line, "")


# --- the page ---------------------------------------------------------------------------------------------------------


STATIONS = {
    "MainThread": ("Your thread", "a blocking call: what it is given is checked and encoded here"),
    "hourglass-control": (
        "The control loop",
        "client calls, the engine, the tree: no code of yours runs here",
    ),
    "hourglass-lane": ("A lane", "the workflow's code runs, until all its fibers wait"),
    "hourglass-activity": ("An activity thread", "the activity's code runs"),
    "hourglass-store": (
        "The store thread",
        "what was queued becomes durable, in one commit with all else",
    ),
}
"""Threads by the beginning of their names: a title, and what happens there."""

_HEAD = """# A workflow's way, step by step

One workflow with one activity on the default engine, from the call to its result: the functions that it passes, in
order, each where it is first passed, with what it says of itself. Helpers that are called again and again are left
out. Made by `python -m tests.architecture.trace --page`, which traces a real execution; `--walk` prints every change of
file, `--temporal` the way on a server.
"""

_LEAST = 3
"""Stations with fewer functions than this are passed without a stop."""

_HELPER = 6
"""What is called more often than this is a helper."""


def stations(trace: Trace) -> Iterator[tuple[str, list[Call]]]:
    """The calls, cut where another thread goes on. The store's thread works beside the others: it is a station once."""
    stretch: list[Call] = []
    stored = False
    for call in trace.calls:
        beside = call.thread.startswith("hourglass-store")
        if beside and stored:
            continue
        if stretch and stretch[-1].thread != call.thread:
            yield stretch[0].thread, stretch
            stored = stored or stretch[0].thread.startswith("hourglass-store")
            stretch = []
        stretch.append(call)
    yield stretch[0].thread, stretch


def page(trace: Trace) -> str:
    """The way as a page for people: each function where it is first passed."""
    often = Counter((each.place, each.function) for each in trace.calls)
    known: set[tuple[str, str]] = set()
    lines = [_HEAD]
    number = 0
    for thread, calls in stations(trace):
        told: list[Call] = []
        for call in calls:
            key = call.place, call.function
            if key not in known and often[key] <= _HELPER and said_of(call):
                known.add(key)
                told.append(call)
        if len(told) < _LEAST:
            continue
        number += 1
        title, about = next(STATIONS[name] for name in STATIONS if thread.startswith(name))
        lines.append(f"\n## {number}. {title}\n\n{about[0].upper()}{about[1:]}.\n\n| | | |\n|---|---|---|\n")
        for call, before in zip(told, [None, *told], strict=False):
            place = "" if before is not None and before.place == call.place else f"`{call.place}`"
            lines.append(f"| {place} | `{call.function}` | {said_of(call).replace('|', '/')} |\n")
    return "".join(lines)


def main() -> None:
    """Prints the counts, and the walk if it is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.architecture.trace", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--temporal", action="store_true", help="on a real Temporal dev server")
    parser.add_argument("--walk", action="store_true", help="print each change of file, in order")
    parser.add_argument("--page", action="store_true", help="print the way as a page")
    asked = parser.parse_args()
    with target(asked.temporal) as where:
        trace = execute(where)
    if asked.page:
        print(page(trace), end="")
        return
    files, hops, lines = len(trace.files()), trace.hops(), trace.lines_that_matter()
    print(
        f"{files} files opened, {len(hops)} changes of file, {len(trace.calls)} calls, "
        f"{lines / files:.0f} lines that matter per file"
    )
    if asked.walk:
        for hop in hops:
            print(f"{hop.thread:24} {hop.place:44} {hop.function:44} {said_of(hop)}")


if __name__ == "__main__":
    main()
