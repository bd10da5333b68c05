"""The layout of a picture: the spans that have rows, the positions of times on the axis, the content of columns.

Folding reduces many spans to few. Spans of the same kind and name become one span with a count, the most numerous first,
until all spans fit. The run itself and independent failures have priority over frequent spans. Counts stay exact.

The axis consists of ticks and a scale of linear pieces, between which long idle waits are cut short. A wait of ten seconds
or more is cut if no step ran during the wait (except timers and children), if it is several times as long as all uncut time,
and if some bar would otherwise be too small to see. Cuts are separate pieces and always drawn as breaks.

Each column of a row shows one phase of its span, so that bars cannot overlap or leave the picture. A column is a character
in a terminal and a pixel elsewhere. If several phases share a column, the most informative phase is drawn.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from hourglass._tools.timeline.spans import Kind, Outcome, Phase, Segment, Span, Story
from hourglass._tools.timeline.text import MIN, MS, US, YEAR, D, H, S, duration

Group: TypeAlias = tuple[int, Kind, str]

_PLURALS = {
    Kind.ACTIVITY: "activities",
    Kind.LOCAL: "local activities",
    Kind.CHILD: "children",
    Kind.NEXUS: "nexus operations",
    Kind.EXTERNAL: "calls of other workflows",
    Kind.TASK: "workflow tasks",
}


def fold(story: Story, limit: int) -> Story:
    """Return the story folded to at most `limit` spans, if possible, or else to one span per kind."""
    first, steps = story.spans[0], story.spans[1:]
    if len(story.spans) <= limit:
        return story
    folded = _fold(steps, limit - 1, lambda span: (span.depth, span.kind, span.name))
    if len(folded) >= limit:
        folded = _fold(folded, limit - 1, lambda span: (0, span.kind, ""))
    return replace(story, spans=(first, *folded))


def _fold(spans: Sequence[Span], limit: int, key: Callable[[Span], Group]) -> tuple[Span, ...]:
    sizes = Counter(key(span) for span in spans)
    chosen: set[Group] = set()
    left = len(spans)
    for group, size in sizes.most_common():
        if left <= limit or size < 2:
            break
        chosen.add(group)
        left -= size - 1
    groups: dict[Group, list[Span]] = {}
    folded: list[Span | Group] = []
    for span in spans:
        group = key(span)
        if group not in chosen:
            folded.append(span)
        elif group in groups:
            groups[group].append(span)
        else:
            groups[group] = [span]
            folded.append(group)
    return tuple(entry if isinstance(entry, Span) else _one(groups[entry], entry) for entry in folded)


def _one(spans: list[Span], group: Group) -> Span:
    depth, kind, name = group
    count = sum(member.count for member in spans)
    ends = [member.end for member in spans]
    faulty = next((member.faults for member in reversed(spans) if member.faults), ())
    return Span(
        id=spans[0].id,
        kind=kind,
        name=name or f"{_PLURALS.get(kind, f'{kind}s')} of {len({member.name for member in spans})} names",
        start=min(member.start for member in spans),
        end=None if None in ends else max(member for member in ends if member is not None),
        outcome=min((span.outcome for span in spans), key=_ORDER.index),
        # Where segments overlap, the columns of the picture decide which segment is visible.
        segments=tuple(sorted((segment for member in spans for segment in member.segments), key=_range)),
        attempts=max(member.attempts for member in spans),
        faults=faulty,
        depth=depth,
        count=count,
        bad=sum(member.bad if member.count > 1 else member.outcome.bad for member in spans),
    )


_ORDER = (
    Outcome.RETRYING,
    Outcome.OPEN,
    Outcome.TERMINATED,
    Outcome.FAILED,
    Outcome.TIMED_OUT,
    Outcome.CANCELLED,
    Outcome.LEFT,
    Outcome.CONTINUED,
    Outcome.DONE,
)


def _range(segment: Segment) -> tuple[int, int]:
    return segment.start, segment.end


_FACTOR = 3  # a cut is at least this many times as long as all uncut time
_TOO_SMALL = 1 / 150  # as a fraction of the axis
_SHORTEST = 10 * S
_BUSY = (Phase.RUNNING, Phase.FAILED)

_STEPS = (
    *(n * unit for unit in (US, MS) for n in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(n * unit for unit in (S, MIN) for n in (1, 2, 5, 10, 15, 30)),
    *(n * H for n in (1, 2, 3, 6, 12)),
    *(n * D for n in (1, 2, 5, 10, 30, 60, 90, 180)),
    *(n * YEAR for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)),
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the axis: a range of time mapped to a range of positions. A broken piece is not to scale."""

    start: int
    end: int
    left: float
    right: float
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark on the axis. A `centred` label is centred on the mark's position; other labels begin there."""

    at: float
    label: str
    centred: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """The axis: consecutive pieces without gaps."""

    pieces: tuple[Piece, ...]

    def at(self, moment: int) -> float:
        """Return the position of a time, clamped to the axis."""
        index = bisect_right([candidate.start for candidate in self.pieces], moment) - 1
        piece = self.pieces[max(index, 0)]
        part = (moment - piece.start) / (piece.end - piece.start)
        return piece.left + min(max(part, 0.0), 1.0) * (piece.right - piece.left)

    @property
    def breaks(self) -> tuple[Piece, ...]:
        """The pieces that are not to scale."""
        return tuple(piece for piece in self.pieces if piece.broken)


def scale(story: Story, width: float, least_break: float) -> Scale:
    """Return the scale of a picture of this width. A break is at least `least_break` wide."""
    start, end = story.start, max(story.until, story.start + US)
    cuts = _cuts(story, start, end, int(0.6 * width / least_break))
    return Scale(tuple(_pieces(start, end, cuts, width)))


def _cuts(story: Story, start: int, end: int, most: int) -> list[tuple[int, int]]:
    busy = [
        _range(segment)
        for span in story.spans
        if span.kind is not Kind.CHILD
        for segment in span.segments
        if segment.phase in _BUSY or segment.phase is Phase.POINT
    ]
    idle = [gap for gap in _gaps(busy, start, end) if gap[1] - gap[0] >= _SHORTEST]
    gaps = sorted(idle, key=lambda gap: gap[0] - gap[1])[:most]
    best, left = 0, end - start
    for count, (begin, stop) in enumerate(gaps, 1):
        left -= stop - begin
        if stop - begin >= _FACTOR * left:
            best = count
    left = end - start - sum(stop - begin for begin, stop in gaps[:best])
    return sorted(gaps[:best]) if best and left > 0 and _helps(story, end - start) else []


def _helps(story: Story, length: int) -> bool:
    """Whether a cut makes visible a span that would otherwise be too small. Timers do not count."""
    return any(
        (span.end if span.end is not None else story.until) - span.start < _TOO_SMALL * length
        for span in story.spans[1:]
        if span.kind not in (Kind.TIMER, Kind.MARKER)
    )


def _gaps(busy: Iterable[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    gaps: list[tuple[int, int]] = []
    at = start
    for begin, stop in sorted(busy):
        if begin > at:
            gaps.append((at, begin))
        at = max(at, stop)
    if end > at:
        gaps.append((at, end))
    return gaps


def _pieces(start: int, end: int, cuts: Sequence[tuple[int, int]], width: float) -> Iterable[Piece]:
    if not cuts:
        return [Piece(start, end, 0.0, width)]
    share = min(0.2, 0.6 / len(cuts)) * width
    uncut = end - start - sum(stop - begin for begin, stop in cuts)
    edges = [start, *(moment for cut in cuts for moment in cut), end]
    pieces: list[Piece] = []
    at = 0.0
    for index, (begin, stop) in enumerate(pairwise(edges)):
        broken = index % 2 == 1
        size = share if broken else (width - share * len(cuts)) * (stop - begin) / uncut
        if stop > begin:
            pieces.append(Piece(begin, stop, at, at + size, broken))
            at += size
    return pieces


def ticks(
    scale: Scale, measure: Callable[[str], float], room: float, *, origin: int | None = None
) -> tuple[Tick, ...]:
    """Return marks with at least `room` between their labels. A break shows its length, and later labels count from the end
    of the break.

    Labels count from the time `origin`, by default the start of the scale.
    """
    result: list[Tick] = []
    right = scale.pieces[-1].right
    origin = scale.pieces[0].start if origin is None else origin
    occupied: list[tuple[float, float]] = []
    for piece in sorted(scale.pieces, key=lambda item: not item.broken):  # breaks have priority
        if piece.broken:
            middle = (piece.left + piece.right) / 2
            marks = [Tick(middle, duration(piece.end - piece.start), centred=True)]
        else:
            marks = _ticks(piece, origin, piece is scale.pieces[-1], measure, room)
        for tick in marks:
            half = measure(tick.label) / 2 if tick.centred else 0.0
            low = tick.at - half if tick.centred else tick.at
            high = low + measure(tick.label)
            if high > right + 1e-9 or low < -1e-9:
                continue
            if any(low < other_high + room and high + room > other_low for other_low, other_high in occupied):
                continue
            occupied.append((low, high))
            result.append(tick)
    return tuple(sorted(result, key=lambda item: item.at))


def _ticks(piece: Piece, origin: int, last: bool, measure: Callable[[str], float], room: float) -> list[Tick]:
    length = piece.end - piece.start
    most = max((piece.right - piece.left) / (measure("000 ms") + 2 * room), 1.0)
    step = next((interval for interval in _STEPS if length / interval <= most), length)
    later = piece.start > origin
    marks = []
    for number in range(int(length // step) + 1):
        label = duration(number * step)
        if later:
            label = f"+{label}" if number else duration(piece.start - origin)
        place = piece.left + (piece.right - piece.left) * number * step / length
        if last or place + measure(label) <= piece.right:  # otherwise the label would overlap a break
            marks.append(Tick(place, label))
    return marks


_WEIGHT = {phase: weight for weight, phase in enumerate(Phase, 1)}


@dataclass(frozen=True, slots=True)
class Stretch:
    """Columns from `left` up to, but not including, `right`."""

    left: int
    right: int
    phase: Phase


def stretches(segments: Iterable[Segment], scale: Scale, columns: int, least: int = 1) -> tuple[Stretch, ...]:
    """Return the segments as columns. Each segment is at least `least` columns wide if there is room."""
    row = bytearray(columns)
    for segment in segments:
        left = min(int(scale.at(segment.start) + 1e-6), columns - 1)
        right = max(int(scale.at(segment.end) + 0.999), left + _least(segment.phase, least))
        if right > columns:
            left, right = max(0, min(left, columns - _least(segment.phase, least))), columns
        weight = _WEIGHT[segment.phase]
        for column in range(left, right):
            if row[column] < weight:
                row[column] = weight
    return tuple(_runs(row))


def _least(phase: Phase, least: int) -> int:
    return least if phase in (Phase.RUNNING, Phase.FAILED, Phase.POINT) else 1


def _runs(row: bytearray) -> Iterable[Stretch]:
    phases = tuple(Phase)
    left = 0
    for column in range(1, len(row) + 1):
        if column == len(row) or row[column] != row[left]:
            if row[left]:
                yield Stretch(left, column, phases[row[left] - 1])
            left = column
