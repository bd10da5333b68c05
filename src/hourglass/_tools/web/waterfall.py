"""The story of a run as rows of bars, positioned on a time range. Pure.

The ticks, folding and captions come from `timeline`, as for pictures. Only the scale is different: it covers the selected
range, without breaks. Positions are percentages of the width, so that a page can draw them as SVG attributes at any size,
without inline styles. Must not know: HTML.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hourglass._tools.timeline import captions
from hourglass._tools.timeline.axis import Piece, Scale, Tick, fold, ticks
from hourglass._tools.timeline.spans import Kind, Outcome, Phase, Segment, Span, Story
from hourglass._tools.timeline.text import duration, sans

WIDTH = 100.0
MIN_WIDTH = 0.15
"""The minimum width of a bar, so that short spans are visible."""

MAX_ROWS = 400
"""The maximum number of rows before similar spans are folded."""


@dataclass(frozen=True)
class Bar:
    """A piece of a row in the waterfall."""

    x: float
    width: float
    phase: str
    guessed: bool
    title: str


@dataclass(frozen=True)
class WaterfallRow:
    """A span with its bars. `key` identifies the row in the page's URL."""

    key: str
    span: Span
    took: str
    caption: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Waterfall:
    """Rows for the time range from `start` to `end`. `folded` is the number of spans in rows for several spans."""

    start: int
    end: int
    rows: tuple[WaterfallRow, ...]
    ticks: tuple[Tick, ...]
    spans: int
    folded: int
    zooms: tuple[tuple[str, int, int], ...] = ()
    """Other time ranges for navigation, each with its label."""
    zoomed: bool = False


def waterfall(story: Story, *, start: int | None = None, end: int | None = None) -> Waterfall:
    """Return the rows of a story, for its full duration or for a part."""
    full_range = story.start, max(story.until, story.start + 1)
    low = full_range[0] if start is None else min(max(start, full_range[0]), full_range[1] - 1)
    high = full_range[1] if end is None else max(min(end, full_range[1]), low + 1)
    # Spans outside the range are removed first, so that folded spans become visible when zooming in.
    spans = tuple(span for span in story.spans if _ends(span, story) >= low and span.start <= high)
    visible = fold(replace(story, spans=spans), MAX_ROWS).spans if spans else ()
    # Without breaks, so that dragging over the bars selects a time range.
    scale = Scale((Piece(low, high, 0.0, WIDTH),))
    return Waterfall(
        low,
        high,
        tuple(_row(span, story, scale) for span in visible),
        ticks(scale, lambda label: sans(label, 11) * WIDTH / 1000, _LABEL_ROOM, origin=story.start),
        len(story.spans),
        sum(span.count for span in visible if span.count > 1),
        tuple(_zooms(low, high, *full_range)),
        (low, high) != full_range,
    )


def _zooms(low: int, high: int, first: int, last: int) -> Iterator[tuple[str, int, int]]:
    """Yield the time ranges for navigation without a mouse."""
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
_LABEL_ROOM = 4.4
"""The minimum space between two labels of the axis. At this value there are at most eight labels."""


def _ends(span: Span, story: Story) -> int:
    return story.until if span.end is None else span.end


def _row(span: Span, story: Story, scale: Scale) -> WaterfallRow:
    pieces = span.segments or (Segment(span.start, _ends(span, story), _phase(span)),)
    notes = [captions.counted(span), _due_text(span, story), span.note, captions.reason(span)]
    return WaterfallRow(
        key=f"{span.id}-{span.depth}",
        span=span,
        took=captions.length(span, story),
        caption="; ".join(note for note in notes if note),
        bars=tuple(_bars(pieces, scale)),
    )


def _due_text(span: Span, story: Story) -> str:
    at = span.due or span.next_attempt
    if span.end is not None or at is None or at <= story.until:
        return ""
    return f"{'due' if span.due else 'retry'} in {duration(at - story.until)}"


def _phase(span: Span) -> Phase:
    if span.kind in (Kind.SIGNAL, Kind.CANCEL, Kind.MARKER) or span.end == span.start:
        return Phase.POINT
    return Phase.FAILED if span.outcome in (Outcome.FAILED, Outcome.TIMED_OUT) else Phase.RUNNING


def _bars(pieces: tuple[Segment, ...], scale: Scale) -> Iterator[Bar]:
    low, high = scale.pieces[0].start, scale.pieces[0].end
    for piece in pieces:
        if piece.end < low or piece.start > high:
            continue
        x = scale.at(piece.start)
        width = max(scale.at(piece.end) - x, MIN_WIDTH)
        title = f"{piece.phase.value} for {duration(piece.end - piece.start)}"
        yield Bar(
            round(min(x, WIDTH - MIN_WIDTH), 3), round(width, 3), piece.phase.value, piece.guessed, title
        )
