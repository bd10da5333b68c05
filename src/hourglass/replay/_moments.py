"""Moments: a run's history, walked step by step on today's code, with what the code knew at each step.

A moment is the state of a run after one activation: where every fiber stands, the author's frames with their local variables,
what the run had just been told and what it asked for. It is a replay: nothing takes effect, nothing is written.

Must not know: how histories are replayed (see `_replayer`), how moments are shown. Invariants: values are kept as text, made
while the run is read-only, so that looking at a moment changes no later one; text holds no addresses, so that two replays of
one history give equal moments; a value whose `repr` raises or is long is said to be so.
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
"""Characters of a value that are kept."""

_MOST_VALUES = 200
_MOST_FRAMES = 50


class Frame(msgspec.Struct, frozen=True):
    """One of the author's frames: where it stands, and its local variables as text."""

    file: str
    line: int
    function: str
    values: dict[str, str]


class Fiber(msgspec.Struct, frozen=True):
    """A line of execution of the run: the body, a handler, or a function that was spawned. The outermost frame is the first.

    `waits_for` is what will wake it; empty for a condition of the author's, which the innermost frame shows.
    """

    path: tuple[int | str, ...]
    name: str
    frames: tuple[Frame, ...]
    waits_for: str = ""

    @property
    def at(self) -> Site:
        """File and line of the innermost frame, ("", 0) where none of the author's is there."""
        return (self.frames[-1].file, self.frames[-1].line) if self.frames else ("", 0)


class Issued(msgspec.Struct, frozen=True):
    """Something that the run asked for, and where."""

    what: str
    file: str = ""
    line: int = 0


class Moment(msgspec.Struct, frozen=True):
    """A run after one activation. `event_id` is the event with which the activation's workflow task started.

    `fibers` is None where the moment was only passed: see `Replayer.moments`.
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
    """A local variable of a frame that has another value than at the moment before; empty text: it was not there, or is gone."""

    function: str
    name: str
    before: str
    after: str


def changes(before: Moment | None, after: Moment) -> tuple[ValueChange, ...]:
    """What changed from one moment to the next, in the frames of fibers that both have."""
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
    """Takes down moments while a run is replayed; `wanted` are those of which the fibers are kept."""

    def __init__(self, wanted: range | None) -> None:
        self._wanted = wanted
        self._names: dict[tuple[str, int], str] = {}
        self.moments: list[Moment] = []

    def record(
        self, run: Evaluator, activation: e.Activation, issued: tuple[tuple[c.Command, Site], ...]
    ) -> None:
        """The run has answered an activation."""
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


# --- fibers and frames ------------------------------------------------------------------------------------------------


def _fibers(live: LiveRun) -> tuple[Fiber, ...]:
    with live.looking("a look at a moment"):
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
            for attribute, inner in vars(value).items():  # an object's state is what a reader looks for
                remaining -= 1
                yield f"self.{attribute}", value_text(inner)
            continue
        remaining -= 1
        yield name, value_text(value)


def _attribute_names(kind: type) -> set[str]:
    return {name for base in kind.__mro__ if base is not object for name in vars(base)}


class _Short(reprlib.Repr):
    """Text of a value: containers are cut where they are long, so that a large one does not cost what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 6
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdeque = 100
        self.maxstring = self.maxlong = self.maxother = LONGEST_VALUE

    def repr1(self, x: object, level: int) -> str:
        """A task of the run says what it is."""
        return f"<task: {wait_text(x) or 'pending'}>" if isinstance(x, Future) else super().repr1(x, level)


_short = _Short()
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def value_text(value: object) -> str:
    """A value as text, whatever its class does when it is asked for that."""
    try:
        text = _short.repr(value)
    except BaseException as error:  # the author's code, which must not end the replay
        return f"<{type(value).__qualname__}: repr raised {type(error).__name__}>"
    text = _ADDRESS.sub("", text)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


# --- in words ---------------------------------------------------------------------------------------------------------


def wait_text(future: Future | None) -> str:
    """What will wake a fiber, in words."""
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
    """`ActivityCompleted` as "activity completed"."""
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(item).__name__).lower()


_KINDS = ("Activity", "Timer", "Child", "Signal", "Cancel")
_NAMES = ("activity_type", "workflow_type", "signal_name", "patch_id", "name")


def _kind_and_name(item: object) -> tuple[str, str]:
    """What a command or an event is about, to find the name that the command gave it; and that name, if it is here."""
    title = type(item).__name__
    kind = next((kind_name for kind_name in _KINDS if kind_name in title), "")
    if isinstance(item, c.StartTimer):
        return kind, f"of {item.duration_ns / 1e9:g} s"
    return kind, next((name for field in _NAMES if (name := getattr(item, field, ""))), "")
