r"""All output to the terminal: results on stdout, errors on stderr.

Colours are disabled by `NO_COLOR` and for pipes, and lines are not wrapped for programs. A pipe closed by its reader is not
an error.

Ids, names, memos and failure messages are untrusted text. Characters that could control a terminal, or reverse a line, are
escaped (`\x1b`, `\u202e`) in all output: text, pictures, logs, tracebacks. JSON uses `\u001b`, which programs decode to the
original. No other module of `_tools/cli` writes to a stream.

A table has as many columns as fit. The first column is never truncated, because users copy its values. If there is little
room, the widest of the other columns is truncated, down to a minimum. If that is not enough, each row becomes two lines,
with the first column on its own line. Columns that do not fit on the second line are dropped, beginning with the last.
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

from hourglass._tools.timeline.text import HOSTILE, cells, fit, harmless


def clean(text: str) -> str:
    """Return untrusted text with its line breaks and with escaped control characters."""
    return harmless(text)


def one_line(text: str) -> str:
    """Return untrusted text on a single line, such as an id in a table."""
    return clean(text).replace("\n", "\\n").replace("\t", "\\t")


def json_text(value: Any, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Return a JSON document that is safe to show in a terminal, and equal to the usual form when parsed."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=default)
    return HOSTILE.sub(lambda match: json.dumps(match[0])[1:-1], text)


class Screen(Console):
    """A rich console that escapes control characters in all text. Rich's own control codes are not escaped."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object, and escape the text of its segments."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else clean(text), style, control)


def screen(*, stderr: bool = False, width: int | None = None) -> Screen:
    """Return a console for a caller that draws on it directly."""
    return Screen(stderr=stderr, width=width, highlight=False, emoji=False, markup=False)


@cache
def _console(*, stderr: bool) -> Screen:
    return screen(stderr=stderr)


def show(text: str | Text, *, soft_wrap: bool = False) -> None:
    """Print a line. With `soft_wrap`, the line is not wrapped, so that a command can be copied."""
    _print(_console(stderr=False), text, soft_wrap=soft_wrap)


def show_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line. Values that are None are omitted."""
    for name, value in facts:
        if value is not None:
            show(f"{name:<14} {one_line(str(value))}", soft_wrap=True)


def show_page(text: str) -> None:
    """Show a Markdown page. In a terminal it is formatted and paged; programs receive it unchanged."""
    console = _console(stderr=False)
    if not console.is_terminal:
        _print(console, text, soft_wrap=True)
        return
    from rich.markdown import Markdown

    # Without R, `less` shows colour codes as text. F quits if everything fits on the screen, and X leaves it visible.
    options = os.environ.setdefault("LESS", "FRX")
    with console.pager(styles="R" in options):
        console.print(Markdown(clean(text)))


def _print(console: Console, text: str | Text, *, soft_wrap: bool = False) -> None:
    """Print text. In a terminal, long lines are wrapped between words; programs receive them unchanged."""
    if isinstance(text, str):
        text = Text(clean(text))
    if soft_wrap or not console.is_terminal:
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
    """Write text for programs, with control characters escaped."""
    sys.stdout.write(clean(text) + "\n")
    sys.stdout.flush()


def write_json(value: Any, *, indent: int | None = 2) -> None:
    """Write a JSON document for programs."""
    sys.stdout.write(json_text(value, indent=indent) + "\n")
    sys.stdout.flush()


def room() -> int | None:
    """Return the number of columns of the terminal, or None for output that goes to a program: it is not truncated."""
    console = _console(stderr=False)
    return console.width if console.is_terminal else None


def rows() -> int | None:
    """Return the number of lines of the terminal, or None for programs."""
    console = _console(stderr=False)
    return console.height if console.is_terminal else None


@contextmanager
def live() -> Iterator[Callable[[Any], None]]:
    """Yield a function that redraws the output in the same place until the block ends."""
    from rich.live import Live

    with Live(console=_console(stderr=False), auto_refresh=False) as screen:
        yield lambda thing: screen.update(thing, refresh=True)


def ask(prompt: str) -> str | None:
    """Read a line from the user. Return None at the end of the input."""
    try:
        return input(clean(prompt))
    except EOFError:
        return None


def note(text: str) -> None:
    """Print a note for people, on stderr."""
    _remark(lambda console: _print(console, text))


def error(text: str) -> None:
    """Print an error. The first line of the text describes the error; the others contain the location and the remedy."""
    _remark(lambda console: _print(console, Text.assemble(("error: ", "bold red"), clean(text))))


def trace(error: BaseException) -> None:
    """Print a traceback on stderr, including the original tracebacks of failures from other machines."""
    link: BaseException | None = error
    while link is not None:
        if remote := getattr(link, "remote_traceback", ""):
            link.__notes__ = [f"Raised at (most recent call last):\n{remote}"]
        link = link.__cause__
    text = Text("".join(traceback.format_exception(error)).rstrip("\n"))
    _remark(lambda console: console.print(text, soft_wrap=True))


def _remark(say: Callable[[Screen], object]) -> None:
    """Print on stderr. If that fails, only the exit code reports the error."""
    try:
        say(_console(stderr=True))
    except OSError:
        stop_writing(sys.stderr)


def stop_writing(stream: TextIO | None = None) -> None:
    """Redirect a stream, by default stdout, to /dev/null, because its reader has closed it or it cannot be written.

    Otherwise the interpreter would flush buffered output at exit, and fail with a traceback.
    """
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, (stream or sys.stdout).fileno())
        os.close(null)
    except (OSError, ValueError, io.UnsupportedOperation):
        pass  # a stream without a file descriptor, or a closed one


def prepare_streams() -> None:
    """Prepare the standard streams: open closed streams on /dev/null, and escape characters that a stream cannot encode.

    Otherwise the next opened file, for example a database, would receive the descriptor of a closed stream, and thereby our
    output.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, and so this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for as long as the process lives
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


_LEAST = 8
_GAP = "  "


@dataclass(frozen=True)
class Column:
    """A column of a table. A `fixed` column is dropped instead of being truncated."""

    name: str
    fixed: bool = False


def widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None) -> list[int]:
    """Return the widths of as many columns as fit, or of all columns if `room` is None."""
    result = [
        max(cells(column.name), *(cells(row[at]) for row in rows), 0) for at, column in enumerate(columns)
    ]
    while room is not None and len(result) > 1 and _total(result) > room:
        spare = _total(result) - room
        wide = max(
            (at for at in range(1, len(result)) if not columns[at].fixed),
            key=lambda at: result[at],
            default=0,
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
    """Return the headings and rows of a table as lines. A cell consists of its text and its style."""
    rows = [[(one_line(text), style) for text, style in row] for row in rows]
    column_widths = widths(columns, [[text for text, _ in row] for row in rows], room)
    if room is not None and rows and len(column_widths) < len(columns):
        return _stacked(columns, rows, room)
    heading = [(cells.name, "bold") for cells in columns]
    return [_line(cells, column_widths) for cells in (heading, *rows)]


def _stacked(columns: Sequence[Column], rows: Sequence[Sequence[tuple[str, str]]], room: int) -> list[Text]:
    """Return two lines per row, without headings, because the text below a name is self-explanatory."""
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
    """Return as many lines as fit on a screen. If some do not fit, the last line contains their number."""
    if len(drawn) <= most:
        return list(drawn)
    visible = drawn[: max(most - 1, 0)]
    return [*visible, Text(f"… {len(drawn) - len(visible)} more lines")]
