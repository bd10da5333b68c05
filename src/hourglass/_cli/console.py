r"""What people see, and the only door to it: results on stdout, errors on stderr. No colour where none is wanted
(`NO_COLOR`, a pipe), no lines broken where a program reads, no complaint when the reader of a pipe has gone.

Ids, names, memos and messages of failures are other people's text. What could steer a terminal, or turn a line around in it, is
shown as an escape instead (`\x1b`, `\u202e`), in all that passes here: texts, pictures, logs, tracebacks. JSON says it as
`\u001b`, which programs read as what it was. Nothing else in `_cli` writes to a stream.

A table has as many columns as there is room for. Its first column is whole, always: it is what gets copied. Where
there is little room the widest of the others is cut, down to a little. Where that is not enough each row becomes two
lines, the first column on one of its own; what does not fit below it is left out, the last first.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from hourglass._story.text import HOSTILE, cells, fit, harmless

# --- the console ------------------------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """Text of others for a terminal, with its lines; what could steer it is escaped."""
    return harmless(text)


def one_line(text: str) -> str:
    """As `clean`, for what must not begin a line of its own: an id in a table."""
    return clean(text).replace("\n", "\\n").replace("\t", "\\t")


def json_text(value: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """A JSON document that a terminal can show as well, and that says the same as any other form of it."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=default)
    return HOSTILE.sub(lambda match: json.dumps(match[0])[1:-1], text)


class Screen(Console):
    """A console of rich whose texts are clean, whatever they come from; rich's own controls pass."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich does, with clean texts."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else clean(text), style, control)


def screen(*, stderr: bool = False, width: int | None = None) -> Screen:
    """A console for a caller that draws on it itself."""
    return Screen(stderr=stderr, width=width, highlight=False, emoji=False, markup=False)


@cache
def _console(*, stderr: bool) -> Screen:
    return screen(stderr=stderr)


def show(text: str | Text, *, whole: bool = False) -> None:
    """A line of output; `whole` ones, such as commands, are not broken between words: they get copied."""
    _say(_console(stderr=False), text, whole=whole)


def show_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Names and values, a line each; what has no value is left out."""
    for name, value in facts:
        if value is not None:
            show(f"{name:<14} {one_line(str(value))}", whole=True)


def show_page(text: str) -> None:
    """A page of Markdown: laid out, in a pager, in a terminal; as it is where a program reads."""
    console = _console(stderr=False)
    if not console.is_terminal:
        _say(console, text, whole=True)
        return
    from rich.markdown import Markdown

    # Without R `less` shows the codes of colours instead of colours. F ends it where all fits, X leaves it to be read.
    options = os.environ.setdefault("LESS", "FRX")
    with console.pager(styles="R" in options):
        console.print(Markdown(clean(text)))


def _say(console: Console, text: str | Text, *, whole: bool = False) -> None:
    """In a terminal broken between words, under its own indentation; as it is where a program reads."""
    if isinstance(text, str):
        text = Text(clean(text))
    if whole or not console.is_terminal:
        console.print(text, soft_wrap=True)
        return
    for line in text.split("\n", allow_blank=True):
        body = line.plain.lstrip(" ")
        indent = len(line.plain) - len(body)
        content = line[indent:] if indent else line
        for part in content.wrap(console, max(console.width - indent, 20)) or [content]:
            part.rstrip()
            console.print(Text.assemble(" " * indent, part), no_wrap=True, overflow="ignore", crop=False)


def write(text: str) -> None:
    """Text for programs, as it is but clean."""
    sys.stdout.write(clean(text) + "\n")
    sys.stdout.flush()


def write_json(value: Any, *, indent: int | None = 2) -> None:
    """A JSON document for programs."""
    sys.stdout.write(json_text(value, indent=indent) + "\n")
    sys.stdout.flush()


def room() -> int | None:
    """How many columns there are; None where a program reads, for which nothing is cut."""
    console = _console(stderr=False)
    return console.width if console.is_terminal else None


def rows() -> int | None:
    """How many lines a screen shows; None where a program reads."""
    console = _console(stderr=False)
    return console.height if console.is_terminal else None


@contextmanager
def live() -> Iterator[Callable[[Any], None]]:
    """Draw something again and again in its place, until the block ends."""
    from rich.live import Live

    with Live(console=_console(stderr=False), auto_refresh=False) as screen:
        yield lambda thing: screen.update(thing, refresh=True)


def ask(prompt: str) -> str | None:
    """A line that the person at the terminal types; None at the end of the input."""
    try:
        return input(clean(prompt))
    except EOFError:
        return None


def note(text: str) -> None:
    """A remark for people, on stderr."""
    _remark(lambda console: _say(console, text))


def error(text: str) -> None:
    """An error: the first line says what, the others where and what to do."""
    _remark(lambda console: _say(console, Text.assemble(("error: ", "bold red"), clean(text))))


def trace(error: BaseException) -> None:
    """A traceback on stderr, for finding a fault; those of failures on other machines stand in it as they came."""
    link: BaseException | None = error
    while link is not None:
        if remote := getattr(link, "remote_traceback", ""):
            link.__notes__ = [f"Raised at (most recent call last):\n{remote}"]
        link = link.__cause__
    text = Text("".join(traceback.format_exception(error)).rstrip("\n"))
    _remark(lambda console: console.print(text, soft_wrap=True))


def _remark(say: Callable[[Screen], object]) -> None:
    """Say something on stderr; where that cannot be written, the exit code has to do."""
    try:
        say(_console(stderr=True))
    except OSError:
        stop_writing(sys.stderr)


def stop_writing(stream: TextIO | None = None) -> None:
    """Lead a stream, stdout if none is named, to nowhere: its reader has gone, or it cannot be written.

    Otherwise the interpreter would flush what is still buffered at exit, and fail with a traceback of its own.
    """
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, (stream or sys.stdout).fileno())
        os.close(null)
    except (OSError, ValueError, io.UnsupportedOperation):
        pass  # a stream that is no file, or is closed


def prepare_streams() -> None:
    """For a program's start: a stream that its starter closed leads nowhere, and one that cannot say a character escapes it.

    Otherwise the next file that is opened, a database, would get the number of a closed stream, and what is printed.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, and so this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


# --- tables -----------------------------------------------------------------------------------------------------------


_LEAST = 8
_GAP = "  "


@dataclass(frozen=True)
class Column:
    """A heading; `whole` columns are left out rather than cut."""

    name: str
    whole: bool = False


def widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None) -> list[int]:
    """How wide each column is; as many as fit. No `room` means all there is."""
    result = [
        max(cells(column.name), *(cells(row[at]) for row in rows), 0) for at, column in enumerate(columns)
    ]
    while room is not None and len(result) > 1 and _total(result) > room:
        spare = _total(result) - room
        wide = max(
            (at for at in range(1, len(result)) if not columns[at].whole), key=lambda at: result[at], default=0
        )
        if wide and result[wide] - spare >= _LEAST:
            result[wide] -= spare
        else:
            result.pop()
    return result


def _total(column_widths: Sequence[int]) -> int:
    return sum(column_widths) + len(_GAP) * (len(column_widths) - 1)


def lines(
    columns: Sequence[Column], rows: Sequence[Sequence[tuple[str, str]]], room: int | None
) -> list[Text]:
    """Headings and rows; a cell is its text and its style, and stays on its line."""
    rows = [[(one_line(text), style) for text, style in row] for row in rows]
    column_widths = widths(columns, [[text for text, _ in row] for row in rows], room)
    if room is not None and rows and len(column_widths) < len(columns):
        return _stacked(columns, rows, room)
    heading = [(cells.name, "bold") for cells in columns]
    return [_line(cells, column_widths) for cells in (heading, *rows)]


def _stacked(columns: Sequence[Column], rows: Sequence[Sequence[tuple[str, str]]], room: int) -> list[Text]:
    """Without headings: what stands below a name says by itself what it is."""
    column_widths = widths(columns[1:], [[text for text, _ in row[1:]] for row in rows], room - len(_GAP))
    stacked: list[Text] = []
    for (name, style), *details in rows:
        stacked.append(Text(name, style=style, no_wrap=True, overflow="ignore"))
        stacked.append(Text.assemble(_GAP, _line(details, column_widths)))
    return stacked


def _line(row: Sequence[tuple[str, str]], column_widths: Sequence[int]) -> Text:
    line = Text(no_wrap=True, overflow="ignore")
    last = len(column_widths) - 1
    for at, (width, (text, style)) in enumerate(zip(column_widths, row, strict=False)):
        shown = text if at == 0 else fit(text, width, cells, "…")
        line.append(shown, style=style)
        if at < last:
            line.append(" " * (width - cells(shown)) + _GAP)
    return line


def cut(drawn: Sequence[Text], most: int) -> list[Text]:
    """As many lines as a screen shows; the last one says that there are more."""
    if len(drawn) <= most:
        return list(drawn)
    visible = drawn[: max(most - 1, 0)]
    return [*visible, Text(f"… {len(drawn) - len(visible)} lines more")]
