"""Moments: the states of a run during a replay on the current code, one after each activation.

A moment contains the position of every fiber, the author's frames with their local variables, the delivered events and the
issued commands. Replay has no side effects and writes no data.

Must not know: how histories are replayed (see `_replayer`), or how moments are displayed. Invariants: values are stored as
text. The text is created while the run is read-only, so that inspecting a moment does not change a later one. The text
contains no memory addresses, so that two replays of a history return equal moments. A value is marked if its `repr` raises
an exception or is too long.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

import msgspec

from hourglass._evaluator import commands as c
from hourglass._evaluator import events as e
from hourglass._evaluator.call_sites import Site, is_library
from hourglass._evaluator.context import LiveRun
from hourglass._evaluator.fibers import FiberTask
from hourglass._evaluator.operations import ActivityOperation, ChildOperation
from hourglass._evaluator.scheduler import Future, Gathered

if TYPE_CHECKING:
    from hourglass._evaluator.evaluator import Evaluator
    from hourglass._evaluator.event_loop import TaskLine

LONGEST_VALUE = 2_000
"""The maximum number of characters stored for a value."""

_MOST_VALUES = 200
_MOST_FRAMES = 50


class Frame(msgspec.Struct, frozen=True):
    """One of the author's frames: its position, and its local variables as text."""

    file: str
    line: int
    function: str
    values: dict[str, str]


class Fiber(msgspec.Struct, frozen=True):
    """A line of execution of the run: the body, a handler or a spawned function. The outermost frame comes
    first.

    `waits_for` describes the event that the fiber waits for. The text is empty if the fiber waits for a condition of the
    author, because the innermost frame shows the condition.
    """

    path: tuple[int | str, ...]
    name: str
    frames: tuple[Frame, ...]
    waits_for: str = ""

    @property
    def at(self) -> Site:
        """The file and line of the innermost frame; ("", 0) if the author has no frame."""
        return (self.frames[-1].file, self.frames[-1].line) if self.frames else ("", 0)


class Issued(msgspec.Struct, frozen=True):
    """A command that the run issued, and its position in the code."""

    what: str
    file: str = ""
    line: int = 0


class Moment(msgspec.Struct, frozen=True):
    """The state of a run after one activation. `event_id` is the event that started its workflow task.

    `fibers` is None if the moment's number was not requested; see `Replayer.moments`.
    """

    number: int
    event_id: int
    time_ns: int
    events: tuple[str, ...]
    issued: tuple[Issued, ...]
    fibers: tuple[Fiber, ...] | None = None
    closed: bool = False
    error: str = ""


class ValueChange(msgspec.Struct, frozen=True):
    """A local variable with a different value than in the previous moment. An empty text means that the variable did not
    exist.
    """

    function: str
    name: str
    before: str
    after: str


def changes(before: Moment | None, after: Moment) -> tuple[ValueChange, ...]:
    """Return the changed variables of all fibers that exist in both moments."""
    earlier_fibers = {} if before is None else {fiber.path: fiber for fiber in before.fibers or ()}
    value_changes: list[ValueChange] = []
    for fiber in after.fibers or ():
        earlier = earlier_fibers.get(fiber.path)
        for depth, frame in enumerate(fiber.frames):
            previous: Mapping[str, str] = {}
            if earlier is not None and depth < len(earlier.frames):
                candidate = earlier.frames[depth]
                if (candidate.file, candidate.function) == (frame.file, frame.function):
                    previous = candidate.values
            names = [*frame.values, *(name for name in previous if name not in frame.values)]
            value_changes += [
                ValueChange(frame.function, name, previous.get(name, ""), frame.values.get(name, ""))
                for name in names
                if previous.get(name, "") != frame.values.get(name, "")
            ]
    return tuple(value_changes)


class MomentRecorder:
    """A recorder of moments during a replay. It stores the fibers only for the moment numbers in `wanted`."""

    def __init__(self, wanted: range | None) -> None:
        self._wanted = wanted
        self._names: dict[tuple[str, int], str] = {}
        self.moments: list[Moment] = []

    def record(
        self, run: Evaluator, activation: e.Activation, issued: tuple[tuple[c.Command, Site], ...]
    ) -> None:
        """Record the moment after an activation."""
        number = len(self.moments)
        live = run.live
        has_fibers = live is not None and (self._wanted is None or number in self._wanted)
        self.moments.append(
            Moment(
                number=number,
                event_id=activation.history_length,
                time_ns=activation.timestamp_ns,
                events=tuple(self._event_text(event) for event in activation.events),
                issued=tuple(Issued(self._command_text(command), *site) for command, site in issued),
                fibers=_fibers(live) if has_fibers and live is not None else None,
                closed=run.closed,
                error="" if run.error is None else f"{type(run.error).__name__}: {run.error}",
            )
        )

    def _command_text(self, command: c.Command) -> str:
        kind, name = _kind_and_name(command)
        seq = getattr(command, "seq", None)
        if seq is not None and name:
            self._names[kind, seq] = name
        return f"{_words(command)} {name or self._names.get((kind, seq or 0), '')}".strip()

    def _event_text(self, event: e.AnyEvent) -> str:
        kind, name = _kind_and_name(event)
        seq = getattr(event, "seq", None)
        return f"{_words(event)} {name or self._names.get((kind, seq or 0), '')}".strip()


def _fibers(live: LiveRun) -> tuple[Fiber, ...]:
    with live.read_only_block("the inspection of a moment"):
        return tuple(_fiber(line, frames) for line in live.lines if (frames := line.frames()))


def _fiber(line: FiberTask[Any] | TaskLine, frames: list[FrameType]) -> Fiber:
    visible_frames = tuple(reversed([_frame(frame) for frame in _authors_frames(frames)]))
    return Fiber(line.path, line.label, visible_frames, wait_text(line.waiting_on))


def _authors_frames(frames: list[FrameType]) -> Iterator[FrameType]:
    remaining = _MOST_FRAMES
    for frame in frames:
        if not remaining:
            return
        name = frame.f_code.co_filename
        if not name.startswith("<frozen") and not is_library(name):
            remaining -= 1
            yield frame


def _frame(frame: FrameType) -> Frame:
    code = frame.f_code
    return Frame(code.co_filename, frame.f_lineno, code.co_qualname, dict(_values(frame.f_locals)))


def _values(local_values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    remaining = _MOST_VALUES
    for name, value in local_values.items():
        if not remaining:
            return
        if name == "self" and "__repr__" not in _attribute_names(type(value)) and hasattr(value, "__dict__"):
            for attribute, inner in vars(value).items():  # show an object by its attributes
                remaining -= 1
                yield f"self.{attribute}", value_text(inner)
            continue
        remaining -= 1
        yield name, value_text(value)


def _attribute_names(kind: type) -> set[str]:
    return {name for base in kind.__mro__ if base is not object for name in vars(base)}


class _Short(reprlib.Repr):
    """A `repr` that shortens large containers, so that its cost does not grow with their size."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 6
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 100
        self.maxstring = self.maxlong = self.maxother = LONGEST_VALUE

    def repr1(self, x: object, level: int) -> str:
        """Return the text of a value. A task of the run is shown as the event that it waits for."""
        return f"<task: {wait_text(x) or 'pending'}>" if isinstance(x, Future) else super().repr1(x, level)


_short = _Short()
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def value_text(value: object) -> str:
    """Return a value as text, even if its `__repr__` raises."""
    try:
        text = _short.repr(value)
    except BaseException as error:  # raised by the author's `__repr__`; it must not end the replay
        return f"<{type(value).__qualname__}: repr raised {type(error).__name__}>"
    text = _ADDRESS.sub("", text)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def wait_text(future: Future | None) -> str:
    """Return a description of the event that will wake a fiber."""
    match future:
        case ActivityOperation():
            return f"activity {future.command.activity_type}"
        case ChildOperation():
            return f"child {future.command.workflow_type} {future.command.workflow_id}"
        case FiberTask():
            return f"task {future.label}"
        case Gathered():
            return f"{len(future.children)} tasks"
        case _:
            return ""


def _words(item: object) -> str:
    """Return the name of a type as words: `ActivityCompleted` as "activity completed"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(item).__name__).lower()


_KINDS = ("Activity", "Timer", "Child", "Signal", "Cancel")
_NAMES = ("activity_type", "workflow_type", "signal_name", "patch_id", "name")


def _kind_and_name(item: object) -> tuple[str, str]:
    """Return the kind and the name of the object that a command or event refers to. Only the first command may contain the
    name.
    """
    title = type(item).__name__
    kind = next((kind_name for kind_name in _KINDS if kind_name in title), "")
    if isinstance(item, c.StartTimer):
        return kind, f"of {item.duration_ns / 1e9:g} s"
    return kind, next((name for field in _NAMES if (name := getattr(item, field, ""))), "")
