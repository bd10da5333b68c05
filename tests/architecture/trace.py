"""The path of a workflow through the source: which files and functions one workflow with one activity passes through, in order.

    python -m tests.architecture.trace                # the default engine, in a file
    python -m tests.architecture.trace --temporal     # a real dev server
    python -m tests.architecture.trace --walk         # each change of file, in order
    python -m tests.architecture.trace --page > docs/way.md

A profile function on every thread notes each call of a function of ours. One execution goes before the one that is
traced, so that what happens once per process (imports, connecting, starting the tree) does not count.

Where threads meet depends on the machine, and so do the functions that they pass: a commit that is done early is not
waited for. The page must be the same each time it is made. So for the page threads take turns (`Turns`): one goes on
while all others wait, until it waits itself, and the store's thread is the last in the row. What the clock does, and
not the workflow, is left out: what timers call, and what the control loop also does while nothing runs. And the page
is the one that most of several executions give.
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
    roots: set[CodeType] = field(default_factory=set)
    """The functions of ours that the control loop called itself, where it was asked for."""

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


# --- one thread at a time ---------------------------------------------------------------------------------------------


_ROW = ("hourglass-control", "MainThread", "hourglass-lane", "hourglass-activity")
"""Who goes on first, of threads that could: by the beginnings of their names. All others come last."""

_ARRIVAL = 0.02
"""So long a thread that is not the first in the row waits whether one arrives that is before it, in seconds: one that
was woken needs a moment to say so."""

_PATIENCE = 1.0
"""So long it waits for its turn at all: whoever has it may wait for this thread in a way that is not seen here."""


class Turns:
    """Whose turn it is. A thread takes it when it comes to code of ours, and gives it up where it waits."""

    def __init__(self, patience: float = _PATIENCE) -> None:
        self._patience = patience
        self._changed = threading.Condition()
        self._whose: int | None = None
        self._free_since = 0.0
        self._over = False
        self._arrived: dict[int, int] = {}

    @property
    def waiting(self) -> int:
        """How many threads have arrived and wait for their turn."""
        return len(self._arrived)

    def take(self) -> None:
        """Wait for this thread's turn; at once if it has it."""
        me = threading.get_ident()
        if self._whose == me:
            return
        name = threading.current_thread().name
        place = next((at for at, begins in enumerate(_ROW) if name.startswith(begins)), len(_ROW))
        until = time.monotonic() + self._patience
        with self._changed:
            self._arrived[me] = place
            self._changed.notify_all()
            while not self._over and (wait := self._wait(me, place)) and time.monotonic() < until:
                self._changed.wait(wait)
            del self._arrived[me]
            self._whose = me

    def _wait(self, me: int, place: int) -> float:
        if self._whose is not None or min(self._arrived, key=lambda each: (self._arrived[each], each)) != me:
            return self._patience
        return max(self._free_since + place * _ARRIVAL - time.monotonic(), 0.0)

    def end(self) -> None:
        """All go on as they like."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def give_up(self) -> None:
        """This thread waits."""
        with self._changed:
            if self._whose == threading.get_ident():
                self._whose, self._free_since = None, time.monotonic()
                self._changed.notify_all()


def _waits(frame: FrameType, function: Any) -> bool:
    """Whether a call of a function of C's waits: the loop for events, others for a lock or for what is queued."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if name in ("poll", "select", "control"):
        return frame.f_locals.get("timeout") != 0
    if name == "acquire":
        return isinstance(owner, _LOCK) and owner.locked()
    return name == "get" and isinstance(owner, SimpleQueue) and owner.empty()


_LOCK = type(threading.Lock())


def _root(frame: FrameType | None, places: dict[CodeType, str | None]) -> CodeType | None:
    """The function of ours that the loop called itself, on the way to this frame; None if a timer did."""
    found = None
    while frame is not None:
        if places.get(frame.f_code) is not None:
            found = frame.f_code
        elif isinstance(frame.f_locals.get("self"), TimerHandle):
            return None
        frame = frame.f_back
    return found


# --- what is called ---------------------------------------------------------------------------------------------------


@contextmanager
def tracing(
    trace: Trace, turns: Turns | None = None, by_clock: set[CodeType] | None = None
) -> Iterator[None]:
    """Notes every call of ours, on every thread, until the block ends; with `turns`, of one thread at a time, and without what
    the control loop does by the clock: in these functions, and in tasks that timers begin.
    """
    by_clock = set() if by_clock is None else by_clock
    places: dict[CodeType, str | None] = {}

    def place(code: CodeType) -> str | None:
        path = Path(code.co_filename)
        return path.relative_to(SOURCE).as_posix() if path.is_relative_to(SOURCE) else None

    def note(frame: FrameType, event: str, function: Any) -> None:
        if event != "call":
            if turns is not None and event == "c_call" and _waits(frame, function):
                turns.give_up()
            return
        code = frame.f_code
        if code not in places:
            places[code] = place(code)
        where = places[code]
        if turns is not None and code.co_name == "create_task" and _root(frame, places) is None:
            by_clock.add(getattr(frame.f_locals.get("coro"), "cr_code", code))
        if where is not None:
            name = threading.current_thread().name
            if turns is not None:
                if name.startswith("hourglass-control"):
                    root = _root(frame, places)
                    if root is None or root in by_clock:
                        return
                    trace.roots.add(root)
                turns.take()
            trace.calls.append(Call(name, where, code.co_qualname, code.co_firstlineno))
            trace.codes.add(code)

    threading.setprofile_all_threads(note) if sys.version_info >= (3, 12) else _on_all_threads(note)
    try:
        yield
    finally:
        if turns is not None:
            turns.end()
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
    with _worker(target) as client, tracing(trace):
        client.execute_workflow(hello, "traced", id="traced")
    return trace


def execute_in_turns(target: str) -> list[Trace]:
    """The same of several executions, each with one thread at a time."""
    # Whether a loop waits is seen of asyncio's own alone.
    before, sys.modules["uvloop"] = sys.modules.get("uvloop"), None  # type: ignore[assignment]
    try:
        with _worker(target) as client:
            idle, traces = Trace(), [Trace() for _ in range(_EXECUTIONS)]
            with tracing(idle, Turns()):
                time.sleep(_IDLE)  # what the worker does without work is recorded, to be left out
            for number, trace in enumerate(traces):
                time.sleep(_REST)  # what the last execution left behind ends before the next
                with tracing(trace, Turns(), idle.roots):
                    client.execute_workflow(hello, "traced", id=f"traced-{number}")
            return traces
    finally:
        del sys.modules["uvloop"]
        if before is not None:
            sys.modules["uvloop"] = before


@contextmanager
def _worker(target: str) -> Iterator[Client]:
    """A client and a worker, which has executed the workflow once."""
    threading.setprofile(_ask)  # for every thread that starts from here on
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
"""Threads by the beginning of their names: a title, and what happens there."""

_HEAD = """# The path of a workflow through the source

One workflow with one activity on the default engine, from the call to its result: the functions that are executed, in
order of their first call, with the first sentence of their docstrings. Helpers that are called repeatedly are left out.
The page is generated by `python -m tests.architecture.trace --page`, which traces real executions with threads that take turns,
so that the result is always the same. `--walk` prints every change of file, `--temporal` the path on a server.
"""

_EXECUTIONS = 7
"""So many are traced for the page."""

_IDLE, _REST = 2.5, 1.2
"""So long nothing runs before them, and before each: in seconds. What is done each second is done in it, and what is done
once a second at most is due again."""

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


def page_of_most(traces: list[Trace]) -> str:
    """The page that most of these give, of what most of them pass."""
    counts = [Counter((each.place, each.function) for each in trace.calls) for trace in traces]
    often = {key: int(median(each[key] for each in counts)) for key in set().union(*counts)}
    ((found, _),) = Counter(page(trace, often) for trace in traces).most_common(1)
    return found


def page(trace: Trace, often: Mapping[tuple[str, str], int]) -> str:
    """The way as a page for people: each function where it is first passed, but for those that are passed too often."""
    known: set[tuple[str, str]] = set()
    lines = [_HEAD]
    number = 0
    for thread, calls in stations(trace):
        told: list[Call] = []
        for call in calls:
            key = call.place, call.function
            if key not in known and 0 < often[key] <= _HELPER and said_of(call):
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
        if asked.page:
            print(page_of_most(execute_in_turns(where)), end="")
            return
        trace = execute(where)
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
