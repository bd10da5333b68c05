"""A tracer of the path of a workflow through the source: the functions that one workflow with one activity calls, in order.

    python -m tests.architecture.trace                # the default engine, in a file
    python -m tests.architecture.trace --temporal     # a real dev server
    python -m tests.architecture.trace --walk         # each change of file, in order
    python -m tests.architecture.trace --page > docs/way.md

A profile function on every thread records each call of our functions. An untraced execution comes first, so that work done
once per process (imports, connecting, starting the tree) does not count.

The interleaving of threads depends on the machine, and so do the functions that they call: code does not wait for a commit
that has already ended. The page must be reproducible. Therefore, for the page, threads take turns (`Turns`): one runs until it
waits, while all others wait; the store thread has the lowest priority. Calls by timers, and calls that the control loop also
makes while it is idle, are left out. The page is the most common result of several executions.
"""

from __future__ import annotations

import argparse
import ast
import sys
import tempfile
import threading
import time
from asyncio import TimerHandle
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from types import CodeType, FrameType
from typing import Any

import hourglass
from hourglass import Client, Worker, activity, workflow

SOURCE = Path(str(hourglass.__file__)).parent


@activity.defn
def greet(name: str) -> str:
    return f"Hello, {name}!"


@workflow.defn
def hello(name: str) -> str:
    return greet(name)


@dataclass(frozen=True)
class Call:
    """One call of one of our functions."""

    thread: str
    place: str
    function: str
    line: int


@dataclass
class Trace:
    """The calls during the execution of the traced workflow."""

    calls: list[Call] = field(default_factory=list)
    codes: set[CodeType] = field(default_factory=set)
    roots: set[CodeType] = field(default_factory=set)
    """Our functions that the control loop called directly, if recorded."""

    def files(self) -> set[str]:
        """Return the files of the called functions."""
        return {call.place for call in self.calls}

    def hops(self) -> list[Call]:
        """Return the calls at which a thread changed to another file, in order."""
        last: dict[str, str] = {}
        result = []
        for call in self.calls:
            if last.get(call.thread) != call.place:
                result.append(call)
            last[call.thread] = call.place
        return result

    def lines_to_read(self) -> int:
        """Count the lines of the called functions, which one reads to follow the path."""
        return sum(_lines_of(code) for code in self.codes)


def _lines_of(code: CodeType) -> int:
    return len({line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno})


# --- one thread at a time ---------------------------------------------------------------------------------------------


_PRIORITY = ("hourglass-control", "MainThread", "hourglass-lane", "hourglass-activity")
"""The order in which ready threads run, by prefix of their names. Other threads come last."""

_ARRIVAL = 0.02
"""Seconds that a thread waits for each class of threads before it, because a woken thread needs a moment to arrive."""

_PATIENCE = 1.0
"""Seconds after which a thread runs without its turn, because the running thread may wait for it undetected."""


class Turns:
    """Turns of threads. A thread takes its turn when it enters our code, and gives it up when it waits."""

    def __init__(self, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._changed = threading.Condition()
        self._current: int | None = None
        self._free_since = 0.0
        self._over = False
        self._arrived: dict[int, int] = {}

    @property
    def waiting(self) -> int:
        """The number of threads that have arrived and wait for their turn."""
        return len(self._arrived)

    def take(self) -> None:
        """Wait for the turn of this thread; return immediately if it has it."""
        thread_id = threading.get_ident()
        if self._current == thread_id:
            return
        name = threading.current_thread().name
        place = next((at for at, begins in enumerate(_PRIORITY) if name.startswith(begins)), len(_PRIORITY))
        until = time.monotonic() + self._patience
        with self._changed:
            self._arrived[thread_id] = place
            self._changed.notify_all()
            while not self._over and (wait := self._wait(thread_id, place)) and time.monotonic() < until:
                self._changed.wait(wait)
            del self._arrived[thread_id]
            self._current = thread_id

    def _wait(self, thread_id: int, place: int) -> float:
        if (
            self._current is not None
            or min(self._arrived, key=lambda ident: (self._arrived[ident], ident)) != thread_id
        ):
            return self._patience
        return max(self._free_since + place * _ARRIVAL - time.monotonic(), 0.0)

    def end(self) -> None:
        """Let all threads run."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def give_up(self) -> None:
        """Pass the turn on, because this thread waits."""
        with self._changed:
            if self._current == threading.get_ident():
                self._current, self._free_since = None, time.monotonic()
                self._changed.notify_all()


def _waits(frame: FrameType, function: Any) -> bool:
    """Whether a call of a C function waits: the loop for events, other threads for a lock or a queue."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if name in ("poll", "select", "control"):
        return frame.f_locals.get("timeout") != 0
    if name == "acquire":
        return isinstance(owner, _LOCK) and owner.locked()
    return name == "get" and isinstance(owner, SimpleQueue) and owner.empty()


_LOCK = type(threading.Lock())


def _root(frame: FrameType | None, places: dict[CodeType, str | None]) -> CodeType | None:
    """Return our function that the loop called directly above this frame; None if a timer did."""
    result = None
    while frame is not None:
        if places.get(frame.f_code) is not None:
            result = frame.f_code
        elif isinstance(frame.f_locals.get("self"), TimerHandle):
            return None
        frame = frame.f_back
    return result


# --- recording of calls -----------------------------------------------------------------------------------------------


@contextmanager
def tracing(
    trace: Trace, turns: Turns | None = None, by_clock: set[CodeType] | None = None
) -> Iterator[None]:
    """Record every call of our functions on every thread.

    With `turns`, threads run one at a time, and calls by the clock are left out: those of `by_clock`, and of tasks that
    timers start.
    """
    by_clock = set() if by_clock is None else by_clock
    places: dict[CodeType, str | None] = {}

    def place(code: CodeType) -> str | None:
        path = Path(code.co_filename)
        return path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else None

    def record(frame: FrameType, event: str, function: Any) -> None:
        if event != "call":
            if turns is not None and event == "c_call" and _waits(frame, function):
                turns.give_up()
            return
        code = frame.f_code
        if code not in places:
            places[code] = place(code)
        path = places[code]
        if turns is not None and code.co_name == "create_task" and _root(frame, places) is None:
            by_clock.add(getattr(frame.f_locals.get("coro"), "cr_code", code))
        if path is not None:
            name = threading.current_thread().name
            if turns is not None:
                if name.startswith("hourglass-control"):
                    root = _root(frame, places)
                    if root is None or root in by_clock:
                        return
                    trace.roots.add(root)
                turns.take()
            trace.calls.append(Call(name, path, code.co_qualname, code.co_firstlineno))
            trace.codes.add(code)

    threading.setprofile_all_threads(record) if sys.version_info >= (3, 12) else _on_all_threads(record)
    try:
        yield
    finally:
        if turns is not None:
            turns.end()
        threading.setprofile_all_threads(None) if sys.version_info >= (3, 12) else _on_all_threads(None)


_profile_function: Any = None


def _on_all_threads(function: Any) -> None:
    """Set the profile function of all threads. Before Python 3.12 a thread must set its own, so each polls for it."""
    global _profile_function
    _profile_function = function
    sys.setprofile(_forward if function else None)


def _forward(frame: FrameType, event: str, argument: Any) -> None:
    if _profile_function is not None:
        _profile_function(frame, event, argument)


def execute(target: str) -> Trace:
    """Trace the second execution of the workflow on this target."""
    trace = Trace()
    with _worker(target) as client, tracing(trace):
        client.execute_workflow(hello, "traced", id="traced")
    return trace


def execute_in_turns(target: str) -> list[Trace]:
    """Trace several executions, each with one thread at a time."""
    # Only with asyncio's own loop can be detected whether it waits.
    before, sys.modules["uvloop"] = sys.modules.get("uvloop"), None  # type: ignore[assignment]
    try:
        with _worker(target) as client:
            idle, traces = Trace(), [Trace() for _ in range(_EXECUTIONS)]
            with tracing(idle, Turns()):
                time.sleep(_IDLE)  # records the calls of an idle worker, to leave them out
            for number, trace in enumerate(traces):
                time.sleep(_REST)  # lets the previous execution end completely
                with tracing(trace, Turns(), idle.roots):
                    client.execute_workflow(hello, "traced", id=f"traced-{number}")
            return traces
    finally:
        del sys.modules["uvloop"]
        if before is not None:
            sys.modules["uvloop"] = before


@contextmanager
def _worker(target: str) -> Iterator[Client]:
    """Yield a client with a worker that has executed the workflow once."""
    threading.setprofile(_forward)  # for every thread that starts later
    try:
        with (
            Client.connect(target) as client,
            Worker(client, workflows=[hello], activities=[greet], verify="off", watch="off"),
        ):
            client.execute_workflow(hello, "before", id="before")
            yield client
    finally:
        threading.setprofile(None)


@contextmanager
def target(temporal: bool) -> Iterator[str]:
    """Yield a new target: a file or a dev server."""
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


def summary_of(call: Call) -> str:
    """Return the first sentence of the function's docstring."""
    return _docstrings(call.place).get(call.line, "")


# --- the page ---------------------------------------------------------------------------------------------------------


STATIONS = {
    "MainThread": ("Your thread", "a blocking call: arguments are checked and encoded here"),
    "hourglass-control": (
        "The control loop",
        "client calls, the engine, the supervision tree; none of your code runs here",
    ),
    "hourglass-lane": ("A lane", "the workflow's code runs until all its fibers wait"),
    "hourglass-activity": ("An activity thread", "the activity's code runs"),
    "hourglass-store": (
        "The store thread",
        "queued changes become durable together, in one commit",
    ),
}
"""Title and description of each kind of thread, by prefix of its name."""

_HEAD = """# The path of a workflow through the source

One workflow with one activity on the default engine, from the call to its result: the functions that are executed, in
order of their first call, with the first sentence of their docstrings. Helpers that are called repeatedly are left out.
The page is generated by `python -m tests.architecture.trace --page`, which traces real executions with threads that take turns,
so that the result is always the same. `--walk` prints every change of file, `--temporal` the path on a server.
"""

_EXECUTIONS = 7
"""The number of traced executions for the page."""

_IDLE, _REST = 2.5, 1.2
"""Idle seconds before the first execution, to record periodic work, and before each one, so that throttled work is due again."""

_MIN_FUNCTIONS = 3
"""Stations with fewer functions are left out."""

_MAX_CALLS = 6
"""Functions that are called more often are helpers and left out."""


def stations(trace: Trace) -> Iterator[tuple[str, list[Call]]]:
    """Yield the calls, split where the thread changes. The store thread runs concurrently, so it is one station."""
    stretch: list[Call] = []
    stored = False
    for call in trace.calls:
        is_store = call.thread.startswith("hourglass-store")
        if is_store and stored:
            continue
        if stretch and stretch[-1].thread != call.thread:
            yield stretch[0].thread, stretch
            stored = stored or stretch[0].thread.startswith("hourglass-store")
            stretch = []
        stretch.append(call)
    yield stretch[0].thread, stretch


def page_of_most(traces: list[Trace]) -> str:
    """Return the page that most traces produce, with the median number of calls."""
    counts = [Counter((call.place, call.function) for call in trace.calls) for trace in traces]
    often = {key: int(median(count[key] for count in counts)) for key in set().union(*counts)}
    ((result, _),) = Counter(page(trace, often) for trace in traces).most_common(1)
    return result


def page(trace: Trace, often: Mapping[tuple[str, str], int]) -> str:
    """Return the path as a page: each function at its first call, without helpers."""
    known: set[tuple[str, str]] = set()
    lines = [_HEAD]
    number = 0
    for thread, calls in stations(trace):
        listed: list[Call] = []
        for call in calls:
            key = call.place, call.function
            if key not in known and 0 < often[key] <= _MAX_CALLS and summary_of(call):
                known.add(key)
                listed.append(call)
        if len(listed) < _MIN_FUNCTIONS:
            continue
        number += 1
        title, about = next(STATIONS[name] for name in STATIONS if thread.startswith(name))
        lines.append(f"\n## {number}. {title}\n\n{about[0].upper()}{about[1:]}.\n\n| | | |\n|---|---|---|\n")
        for call, before in zip(listed, [None, *listed], strict=False):
            place = "" if before is not None and before.place == call.place else f"`{call.place}`"
            lines.append(f"| {place} | `{call.function}` | {summary_of(call).replace('|', '/')} |\n")
    return "".join(lines)


def main() -> None:
    """Print the counts, and on request the path."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.architecture.trace", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--temporal", action="store_true", help="on a real Temporal dev server")
    parser.add_argument("--walk", action="store_true", help="print each change of file, in order")
    parser.add_argument("--page", action="store_true", help="print the path as a page")
    options = parser.parse_args()
    with target(options.temporal) as path:
        if options.page:
            print(page_of_most(execute_in_turns(path)), end="")
            return
        trace = execute(path)
    files, hops, lines = len(trace.files()), trace.hops(), trace.lines_to_read()
    print(
        f"{files} files opened, {len(hops)} changes of file, {len(trace.calls)} calls, "
        f"{lines / files:.0f} lines to read per file"
    )
    if options.walk:
        for hop in hops:
            print(f"{hop.thread:24} {hop.place:44} {hop.function:44} {summary_of(hop)}")


if __name__ == "__main__":
    main()
