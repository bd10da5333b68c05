"""`hourglass debug`: time travel through a run's history, step by step with the current code.

Each step shows the position of every fiber, its call stack and local variables, the changes, and the commands. A replay has
no side effects. `--what-if` also replays the history with other code and shows both side by side, up to the first
difference.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hourglass._tools.cli import connecting, console
from hourglass._tools.cli.connecting import Code, DecodingEngine, Json, RunId
from hourglass._tools.timeline.text import duration, near
from hourglass.errors import NondeterminismError, UsageError

if TYPE_CHECKING:
    from hourglass.replay import Fiber, Frame, History, Moment, ReplayResult

_AROUND = 2
"""The number of source lines shown before and after the current line of a frame."""

_HELP = "[Enter] next   p previous   NUMBER to that event   l list   q quit"


def debug(
    what: Annotated[
        str,
        typer.Argument(metavar="ID|FILE", help="A workflow's id, or a file with a history (- for stdin)."),
    ],
    code: Code = None,
    at: Annotated[
        int | None, typer.Option(metavar="EVENT", min=1, help="Show the state at this event, and exit.")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="FILE|MODULE",
            help="Compare the steps with those of this code; with --at, at that event.",
        ),
    ] = None,
    run_id: RunId = None,
    *,
    engine: DecodingEngine,
    json: Json = False,
) -> None:
    """Step through a run: its code, its variables.

    In a terminal it is interactive; elsewhere it lists the steps.

    \b
    Examples:
      hourglass debug order-1 --code app.py
      hourglass debug order-1 --code app.py --at 19
      hourglass debug history.json --code app.py --what-if app_new.py
    """
    if not code:
        raise UsageError("pass the file with the workflows, for example --code app.py")
    history = _history(what, run_id, engine)
    if at is not None and at > len(history):
        raise UsageError(f"event {at} does not exist: this history has {len(history)} events")
    loaded_before = set(sys.modules)
    walk = _walk(history, code, engine)
    if what_if:
        with _set_aside(set(sys.modules) - loaded_before):
            alternative = _walk(history, what_if, engine)
        _side_by_side(walk, alternative, at, json)
        return
    if json:
        connecting.write_json(_document(walk, at))
    elif at is not None:
        _show(walk, walk.index_at(at))
        walk.print_error()
    elif sys.stdin.isatty() and sys.stdout.isatty():
        _step_through(walk)
    else:
        _list(walk)
        walk.print_error()
    if walk.result.error is not None:
        raise typer.Exit(1)


def _history(what: str, run_id: str | None, engine: DecodingEngine) -> History:
    from hourglass._tools.timeline.watching import is_file
    from hourglass.replay import History

    if is_file(what) and engine.target is None and run_id is None:
        return History.from_json(sys.stdin.buffer.read()) if what == "-" else History.from_file(what)
    with engine.workflow(what, run_id) as handle:
        return handle.history()


def _walk(history: History, code: list[str], engine: DecodingEngine) -> HistoryWalk:
    from hourglass._tools.cli.loading import load
    from hourglass.replay import Replayer

    with Replayer(modules=load(code).modules, codec=engine.payload_codec()) as replayer:
        return HistoryWalk(replayer.moments(history))


@contextmanager
def _set_aside(names: set[str]) -> Iterator[None]:
    """Allow modules to be imported again during the block: a changed copy of a program has the same names."""
    saved = {name: sys.modules.pop(name) for name in names if not name.startswith("hourglass.")}
    try:
        yield
    finally:
        sys.modules.update(saved)


class HistoryWalk:
    """The steps of a history, replayed with one version of the code."""

    def __init__(self, replayed: tuple[tuple[Moment, ...], ReplayResult]) -> None:
        self.moments, self.result = replayed
        if not self.moments:
            raise self.result.error or UsageError(
                "this history has no workflow task: there are no steps to show"
            )

    def index_at(self, event: int) -> int:
        """Return the index of the last step that depends on no event after this event."""
        numbers = [number for number, moment in enumerate(self.moments) if moment.event_id <= event]
        return numbers[-1] if numbers else 0

    def print_error(self) -> None:
        """Print the position where the code no longer matches the history, if it does not match."""
        if self.result.error is not None:
            console.error(f"the code does not match this history: {self.result.error}")


def headline(moments: Sequence[Moment], index: int) -> str:
    """Return the heading of a step."""
    moment = moments[index]
    since = duration(moment.time_ns - moments[0].time_ns)
    clock = datetime.fromtimestamp(moment.time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"step {index + 1} of {len(moments)}, event {moment.event_id}, {clock} (+{since})"


def summary(moment: Moment) -> str:
    """Return a step in one line."""
    commands = ", ".join(command.what for command in moment.issued) or "nothing"
    return f"{', '.join(moment.events) or 'no new events'} -> {commands}"


def described(moments: Sequence[Moment], index: int) -> Iterator[str]:
    """Yield all lines of a step."""
    from hourglass.replay import changes

    moment = moments[index]
    before = moments[index - 1] if index else None
    yield headline(moments, index)
    for event in moment.events or ("no new events",):
        yield f"event   {event}"
    if before is not None:
        for change in changes(before, moment):
            was, now = change.before or "(not set)", change.after or "(removed)"
            yield f"changed {change.function}: {change.name}: {was} -> {now}"
    for fiber in moment.fibers or ():
        yield from _fiber(fiber)
    for issued in moment.issued:
        place = f"  ({near(issued.file)}:{issued.line})" if issued.file else ""
        yield f"command {issued.what}{place}"
    if moment.error:
        yield f"raised  {moment.error}"
    if moment.closed:
        yield "closed  the run has ended"


def _fiber(fiber: Fiber) -> Iterator[str]:
    waits = f", waits for {fiber.waits_for}" if fiber.waits_for else ""
    yield f"fiber   {fiber.name}{waits}"
    for frame in fiber.frames:
        yield f"  {near(frame.file)}:{frame.line} in {frame.function}"
        yield from _source(frame)
        for name, value in frame.values.items():
            yield f"        {name} = {value}"


def _source(frame: Frame) -> Iterator[str]:
    for number in range(max(1, frame.line - _AROUND), frame.line + _AROUND + 1):
        text = linecache.getline(frame.file, number).rstrip()
        if text:
            yield f"    {'>' if number == frame.line else ' '} {number:4} | {text}"


def _show(walk: HistoryWalk, index: int) -> None:
    for line in described(walk.moments, index):
        console.show(line, soft_wrap=True)


def _list(walk: HistoryWalk) -> None:
    for index, moment in enumerate(walk.moments):
        console.show(f"{index + 1:5}  event {moment.event_id:<6} {summary(moment)}", soft_wrap=True)


def _step_through(walk: HistoryWalk) -> None:
    index = 0
    last = len(walk.moments) - 1
    _show(walk, index)
    while True:
        answer = console.ask(f"{_HELP} > ")
        if answer is None:
            return
        match answer.strip().lower():
            case "" | "n" if index < last:
                index += 1
            case "" | "n":
                walk.print_error()
                console.note("this is the last step")
                continue
            case "p":
                index = max(0, index - 1)
            case "l":
                _list(walk)
                continue
            case "q":
                return
            case number if number.isdecimal():
                index = walk.index_at(int(number))
            case _:
                continue
        _show(walk, index)


def _side_by_side(walk: HistoryWalk, alternative: HistoryWalk, at: int | None, json: bool) -> None:
    """Show both versions up to their first difference, followed by the step of each version there or at an event."""
    parted = _parts_at(walk, alternative)
    versions = (("the code", walk), ("what if", alternative))
    if json:
        connecting.write_json(
            {"parts_at": parted, "code": _document(walk, at), "what_if": _document(alternative, at)}
        )
        if alternative.result.error is not None:
            raise typer.Exit(1)
        return
    if at is not None:
        for name, version in versions:
            console.show(f"--- {name}")
            _show(version, version.index_at(at))
    elif parted is None:
        console.show(f"both versions behave the same in all {len(walk.moments)} steps")
    else:
        for index in range(parted):
            moment = walk.moments[index]
            console.show(f"{index + 1:5}  event {moment.event_id:<6} {summary(moment)}", soft_wrap=True)
        console.show(f"the first difference is at step {parted + 1}:")
        for name, version in versions:
            console.show(f"--- {name}")
            if parted < len(version.moments):
                _show(version, parted)
            else:
                console.show("has no such step")
    for name, version in versions:
        fits = (
            "matches the history"
            if version.result.error is None
            else f"does not match the history: {version.result.error}"
        )
        console.show(f"{name} {fits}")
    if alternative.result.error is not None:
        raise typer.Exit(1)


def _parts_at(walk: HistoryWalk, alternative: HistoryWalk) -> int | None:
    """Return the number of the first step that differs, or None.

    Steps may show the same commands with different arguments. So if only one version matches the history, the step where the
    other version fails counts as different.
    """
    parted = parts_at(walk.moments, alternative.moments)
    if parted is not None or (walk.result.error is None) == (alternative.result.error is None):
        return parted
    broken = walk if walk.result.error is not None else alternative
    error = broken.result.error
    place = (error.file, error.line) if isinstance(error, NondeterminismError) else ("", 0)
    for index, moment in enumerate(broken.moments):
        if any((command.file, command.line) == place for command in moment.issued):
            return index
    return len(broken.moments) - 1


def parts_at(first: Sequence[Moment], second: Sequence[Moment]) -> int | None:
    """Return the number of the first step with different commands, or None if there is none."""
    for index, (step, other_step) in enumerate(zip_longest(first, second)):
        if step is None or other_step is None or _commands(step) != _commands(other_step):
            return index
    return None


def _commands(moment: Moment) -> tuple[Any, ...]:
    return (*(command.what for command in moment.issued), moment.closed, bool(moment.error))


def _document(walk: HistoryWalk, at: int | None) -> Any:
    import msgspec

    error = walk.result.error
    moments = walk.moments if at is None else (walk.moments[walk.index_at(at)],)
    return {
        "error": None if error is None else str(error),
        "moments": [msgspec.to_builtins(moment) for moment in moments],
    }
