"""A table for people, in as many columns as there is room for. The first column is whole, always: it is what gets copied.

Where there is little room the widest of the others is cut, down to a little. Where that is not enough each row becomes two
lines, the first column on one of its own; what does not fit below it is left out, the last first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from hourglass._cli.console import one_line
from hourglass._story.textwidth import cells, fit

_LEAST = 8
_GAP = "  "


@dataclass(frozen=True)
class Column:
    """A heading; `whole` columns are left out rather than cut."""

    name: str
    whole: bool = False


def widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int | None) -> list[int]:
    """How wide each column is; as many as fit. No `room` means all there is."""
    found = [
        max(cells(column.name), *(cells(row[at]) for row in rows), 0) for at, column in enumerate(columns)
    ]
    while room is not None and len(found) > 1 and _total(found) > room:
        spare = _total(found) - room
        wide = max(
            (at for at in range(1, len(found)) if not columns[at].whole), key=lambda at: found[at], default=0
        )
        if wide and found[wide] - spare >= _LEAST:
            found[wide] -= spare
        else:
            found.pop()
    return found


def _total(found: Sequence[int]) -> int:
    return sum(found) + len(_GAP) * (len(found) - 1)


def lines(
    columns: Sequence[Column], rows: Sequence[Sequence[tuple[str, str]]], room: int | None
) -> list[Text]:
    """Headings and rows; a cell is its text and its style, and stays on its line."""
    rows = [[(one_line(text), style) for text, style in row] for row in rows]
    found = widths(columns, [[text for text, _ in row] for row in rows], room)
    if room is not None and rows and len(found) < len(columns):
        return _stacked(columns, rows, room)
    heading = [(each.name, "bold") for each in columns]
    return [_line(each, found) for each in (heading, *rows)]


def _stacked(columns: Sequence[Column], rows: Sequence[Sequence[tuple[str, str]]], room: int) -> list[Text]:
    """Without headings: what stands below a name says by itself what it is."""
    found = widths(columns[1:], [[text for text, _ in row[1:]] for row in rows], room - len(_GAP))
    stacked: list[Text] = []
    for (name, style), *rest in rows:
        stacked.append(Text(name, style=style, no_wrap=True, overflow="ignore"))
        stacked.append(Text.assemble(_GAP, _line(rest, found)))
    return stacked


def _line(row: Sequence[tuple[str, str]], found: Sequence[int]) -> Text:
    line = Text(no_wrap=True, overflow="ignore")
    last = len(found) - 1
    for at, (width, (text, style)) in enumerate(zip(found, row, strict=False)):
        shown = text if at == 0 else fit(text, width, cells, "…")
        line.append(shown, style=style)
        if at < last:
            line.append(" " * (width - cells(shown)) + _GAP)
    return line


def cut(drawn: Sequence[Text], most: int) -> list[Text]:
    """As many lines as a screen shows; the last one says that there are more."""
    if len(drawn) <= most:
        return list(drawn)
    kept = drawn[: max(most - 1, 0)]
    return [*kept, Text(f"… {len(drawn) - len(kept)} lines more")]
