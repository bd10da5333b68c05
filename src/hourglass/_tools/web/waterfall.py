"""The story of a run as rows of bars, positioned on a range of time. Pure.

Positions are percentages of the width, so that a page can draw them as SVG attributes at any size without
inline styles. Must not know: HTML.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hourglass._tools.timeline import captions
from hourglass._tools.timeline.axis import fold
from hourglass._tools.timeline.spans import Kind, Outcome, Phase, Segment, Span, Story
from hourglass._tools.timeline.text import duration

WIDTH = 100.0
MIN_WIDTH = 0.15
"""The minimum width of a bar, so that short spans are visible."""

MAX_ROWS = 400
"""The maximum number of rows before similar ones are folded."""


@dataclass(frozen=True)
class Bar:
    """A piece of a row."""

    x: float
    width: float
    phase: str
    guessed: bool
    title: str


@dataclass(frozen=True)
class WaterfallRow:
    """A span with its bars. `key` identifies it in the page's address."""

    key: str
    span: Span
    kind: str
    name: str
    outcome: str
    bad: bool
    took: str
    at: str
    caption: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class AxisTick:
    """A line of the axis."""

    x: float
    label: str


@dataclass(frozen=True)
class Waterfall:
    """Rows from `start` to `end`. `folded` is the number of spans in rows for several spans."""

    start: int
    end: int
    rows: tuple[WaterfallRow, ...]
    ticks: tuple[AxisTick, ...]
    spans: int
    folded: int
    zooms: tuple[tuple[str, int, int], ...] = ()
    """Other ranges of time, each with its label."""
    zoomed: bool = False


def waterfall(story: Story, *, start: int | None = None, end: int | None = None) -> Waterfall:
    """Return the rows of a story, for its full duration or a part of it."""
    full_range = story.start, max(story.until, story.start + 1)
    low = full_range[0] if start is None else min(max(start, full_range[0]), full_range[1] - 1)
    high = full_range[1] if end is None else max(min(end, full_range[1]), low + 1)
    # Spans outside the range are removed first, so that zooming in leaves rows for folded spans.
    spans = tuple(span for span in story.spans if _ends(span, story) >= low and span.start <= high)
    visible = fold(replace(story, spans=spans), MAX_ROWS).spans if spans else ()
    return Waterfall(
        low,
        high,
        tuple(_row(span, story, low, high) for span in visible),
        tuple(_ticks(low, high, story.start)),
        len(story.spans),
        sum(span.count for span in visible if span.count > 1),
        tuple(_zooms(low, high, *full_range)),
        (low, high) != full_range,
    )


def _zooms(low: int, high: int, first: int, last: int) -> Iterator[tuple[str, int, int]]:
    """Yield the ranges for navigation without a mouse."""
    quarter = (high - low) // 4
    if quarter > _MIN_RANGE:
        yield "Zoom in", low + quarter, high - quarter
    if (low, high) == (first, last):
        return
    yield "Zoom out", max(first, low - 2 * quarter), min(last, high + 2 * quarter)
    if low > first:
        yield "Earlier", max(first, low - 2 * quarter), max(first, low - 2 * quarter) + high - low
    if high < last:
        yield "Later", min(last, high + 2 * quarter) - (high - low), min(last, high + 2 * quarter)


_MIN_RANGE = 1_000
_TICKS = 8


def _ends(span: Span, story: Story) -> int:
    return story.until if span.end is None else span.end


def _row(span: Span, story: Story, low: int, high: int) -> WaterfallRow:
    pieces = span.segments or (Segment(span.start, _ends(span, story), _phase(span)),)
    notes = [captions.counted(span), _due_text(span, story), span.note, captions.reason(span)]
    return WaterfallRow(
        key=f"{span.id}-{span.depth}",
        span=span,
        kind=captions.KINDS[span.kind],
        name=span.name,
        outcome=captions.outcome(span.outcome),
        bad=span.outcome.bad,
        took=captions.length(span, story),
        at=f"+{duration(span.start - story.start)}",
        caption="; ".join(note for note in notes if note),
        bars=tuple(_bars(pieces, low, high)),
    )


def _due_text(span: Span, story: Story) -> str:
    """Return when an open step is due or will be retried."""
    at = span.due or span.next_attempt
    if span.end is not None or at is None or at <= story.until:
        return ""
    return f"{'due' if span.due else 'retry'} in {duration(at - story.until)}"


def _phase(span: Span) -> Phase:
    if span.kind in (Kind.SIGNAL, Kind.CANCEL, Kind.MARKER) or span.end == span.start:
        return Phase.POINT
    return Phase.FAILED if span.outcome in (Outcome.FAILED, Outcome.TIMED_OUT) else Phase.RUNNING


def _bars(pieces: tuple[Segment, ...], low: int, high: int) -> Iterator[Bar]:
    scale = WIDTH / (high - low)
    for piece in pieces:
        if piece.end < low or piece.start > high:
            continue
        x = (max(piece.start, low) - low) * scale
        width = max((min(piece.end, high) - low) * scale - x, MIN_WIDTH)
        title = f"{piece.phase.value} for {duration(piece.end - piece.start)}"
        yield Bar(
            round(min(x, WIDTH - MIN_WIDTH), 3), round(width, 3), piece.phase.value, piece.guessed, title
        )


_STEPS = tuple(
    base * unit
    for unit, bases in (
        (1_000, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (1_000_000, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (1_000_000_000, (1, 2, 5, 10, 15, 30)),
        (60_000_000_000, (1, 2, 5, 10, 15, 30)),
        (3_600_000_000_000, (1, 2, 3, 6, 12)),
        (86_400_000_000_000, (1, 2, 5, 10, 30, 90, 365, 3650)),
    )
    for base in bases
)


def _ticks(low: int, high: int, zero: int) -> Iterator[AxisTick]:
    step = next((candidate for candidate in _STEPS if (high - low) / candidate <= _TICKS), _STEPS[-1])
    first = -(-(low - zero) // step)
    for number in range(first, (high - zero) // step + 1):
        at = zero + number * step
        yield AxisTick(
            round((at - low) * WIDTH / (high - low), 2), f"+{duration(at - zero)}" if number else "0"
        )
