"""The story drawn with characters: one line per span, an axis, failures and waits.

The module creates lines of styled text, independent of any console: a `Line` consists of pairs of a text and a style name.
All information shown by colour is also shown by a character. No line is wider than requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from hourglass._tools.timeline import captions
from hourglass._tools.timeline.axis import Scale, fold, scale, stretches, ticks
from hourglass._tools.timeline.spans import Fault, Kind, Outcome, Phase, Span, Story
from hourglass._tools.timeline.text import cells, fit

Line: TypeAlias = tuple[tuple[str, str], ...]

LIMIT = 60
_LEAST_BREAK = 5
_LENGTH = 11


_PHASES = {
    Phase.WAITING: "╌",
    Phase.QUEUED: "░",
    Phase.BACKOFF: "┈",
    Phase.RUNNING: "█",
    Phase.POINT: "◆",
    Phase.FAILED: "▚",
}
_ENDS = {
    Outcome.OPEN: "▸",
    Outcome.RETRYING: "↻",
    Outcome.FAILED: "✗",
    Outcome.TIMED_OUT: "✗",
    Outcome.TERMINATED: "✗",
    Outcome.CANCELLED: "⊘",
    Outcome.CONTINUED: "→",
    Outcome.LEFT: "┤",
}
_CHILD, _TASK, _LINE, _TICK, _TORN, _BRANCH = "▓", "┃", "─", "┬", "╱", "└ "
_ASCII = str.maketrans("╌░┈█◆▚▸↻✗⊘→┤▓┃─┬╱└µ−×", "-:.#*x>@Xo>|=|-+/-u-x")


def lines(story: Story, width: int, *, plain: bool = False, limit: int = LIMIT) -> tuple[Line, ...]:
    """Return the picture for a terminal of this width. With `plain`, use ASCII characters only."""
    picture = _Painter(fold(story, limit), max(width, 40), plain=plain).picture()
    if not plain:
        return tuple(picture)
    return tuple(tuple((text.translate(_ASCII), style) for text, style in line) for line in picture)


class _Painter:
    """A painter of one story, with the widths and the scale that all lines share."""

    def __init__(self, story: Story, width: int, *, plain: bool) -> None:
        self.story, self.width = story, width
        self.ellipsis, self.dot = ("...", "") if plain else ("…", "·")
        longest = max(cells(_name(span)) + 2 * span.depth for span in story.spans) + 1
        self.names = min(max(longest, 14), max(14, min(44, int(width * 0.36))))
        self.columns = width - self.names - _LENGTH - 3  # two for the mark after a bar, one before a bar
        self.scale: Scale = scale(story, self.columns, _LEAST_BREAK)

    def picture(self) -> Iterator[Line]:
        yield from self._head()
        yield ()
        yield from self._axis()
        previous = ""
        for span in self.story.spans:
            yield self._row(span)
            why = captions.reason(span) if span.kind is not Kind.RUN else ""
            if why and why != previous:
                yield self._why(span, why)
            previous = why or previous
        yield ()
        yield from self._foot()

    def _head(self) -> Iterator[Line]:
        story, status = self.story, captions.status(self.story)
        style = "bad" if story.outcome.bad else "good" if story.outcome is Outcome.DONE else "bold"
        room = self.width - cells(status) - 2
        title = self._fit(f"{story.workflow_type}  {story.workflow_id}".rstrip(), room)
        gap = self.width - cells(title) - cells(status)
        name = title[: len(story.workflow_type)]
        yield (name, "bold"), (title[len(name) :], "plain"), (" " * gap, "plain"), (status, style)
        parts = list(captions.facts(story))
        if story.run_id:
            parts.append(f"run {story.run_id}")
        parts += [f"{label} {value}" for label, value in story.links]
        yield from self._wrapped(parts)
        for what, value in story.shown:
            yield ((self._fit(f"{what} {value}", self.width), "plain"),)

    def _wrapped(self, parts: Iterable[str]) -> Iterator[Line]:
        """Yield the parts in as many lines as necessary, without breaking a part."""
        line = ""
        for part in parts:
            longer = f"{line} {self.dot} {part}" if line else part
            if cells(longer) > self.width and line:
                yield ((line, "dim"),)
                longer = part
            line = self._fit(longer, self.width)
        if line:
            yield ((line, "dim"),)

    def _axis(self) -> Iterator[Line]:
        """Yield a line of labels and a line of marks, both in the columns of the bars."""
        labels = [" "] * self.columns
        marks = [_LINE] * self.columns
        for piece in self.scale.breaks:
            for column in range(int(piece.left), min(int(piece.right), self.columns)):
                marks[column] = _TORN
        for tick in ticks(self.scale, lambda text: float(cells(text)), 1.0):
            label = tick.label
            at = int(tick.at - cells(label) / 2) if tick.centred else int(tick.at)
            if not tick.centred:
                marks[min(at, self.columns - 1)] = _TICK
            labels[at : at + len(label)] = label
        yield self._beside("", "".join(labels[: self.columns]), "dim")
        yield self._beside("", "".join(marks), "dim")

    def _beside(self, name: str, text: str, style: str) -> Line:
        return (name.ljust(self.names) + " ", "plain"), (text.rstrip(), style)

    def _row(self, span: Span) -> Line:
        indent = "  " * min(span.depth, 8)
        name = self._fit(indent + _name(span), self.names)
        bar = list(self._bar(span))
        length = captions.length(span, self.story)
        used = sum(cells(text) for text, _ in bar)
        gap = " " * (self.columns + 2 - used + max(_LENGTH - cells(length), 0))
        style = "bad" if span.outcome.bad else "bold" if span.kind is Kind.RUN else "plain"
        pad = " " * (self.names + 1 - cells(name))
        measured = ((gap, "plain"), (length, "dim")) if length else ()
        return (name, style), (pad, "plain"), *bar, *measured

    def _bar(self, span: Span) -> Iterator[tuple[str, str]]:
        at = 0
        style = captions.STYLES.get(span.kind, "dim")
        for stretch in stretches(span.segments, self.scale, self.columns):
            if stretch.left > at:
                yield " " * (stretch.left - at), "plain"
            drawn = self._phase(span, stretch.phase) * (stretch.right - stretch.left)
            yield self._torn(drawn, stretch.left), _style(stretch.phase, style)
            at = stretch.right
        if end := _ENDS.get(span.outcome):
            yield end, "bad" if span.outcome.bad else "cancelled"

    def _phase(self, span: Span, phase: Phase) -> str:
        if phase is Phase.RUNNING and span.kind is Kind.RUN:
            return _TASK
        if phase is Phase.RUNNING and span.kind in (Kind.CHILD, Kind.NEXUS):
            return _CHILD
        return _PHASES[phase]

    def _torn(self, text: str, left: int) -> str:
        drawn = list(text)
        for piece in self.scale.breaks:
            middle = int((piece.left + piece.right) / 2) - left
            if 0 < middle < len(drawn) - 1:
                drawn[middle] = _TORN
        return "".join(drawn)

    def _why(self, span: Span, why: str) -> Line:
        indent = "  " * (min(span.depth, 8) + 1)
        return ((self._fit(f"{indent}{_BRANCH}{why}", self.width), "bad"),)

    def _foot(self) -> Iterator[Line]:
        story = self.story
        yield from self._list("waits for", [("", wait) for wait in story.waiting_for[:8]])
        if len(story.waiting_for) > 8:
            yield ((f"{'':<11}and {len(story.waiting_for) - 8} more", "dim"),)
        yield from self._list("waited", captions.waited(story))
        yield from self._faults(story.faults)
        yield from self._legend()

    def _list(self, head: str, entries: Iterable[tuple[str, str]]) -> Iterator[Line]:
        for index, (measured, what) in enumerate(entries):
            first = f"{head if not index else '':<11}"
            text = f"{measured:>10}  {what}" if measured else what
            yield (first, "bold"), (self._fit(text, self.width - 11), "plain")

    def _faults(self, faults: tuple[Fault, ...]) -> Iterator[Line]:
        for index, fault in enumerate(faults):
            first = f"{'because' if index else 'failed':<11}"
            place = f" ({fault.place})" if fault.place else ""
            yield (first, "bold"), (self._fit(f"{fault}{place}", self.width - 11), "bad")

    def _legend(self) -> Iterator[Line]:
        seen = {segment.phase for span in self.story.spans[1:] for segment in span.segments}
        seen |= {segment.phase for segment in self.story.run.segments if segment.phase is Phase.WAITING}
        parts = [f"{_TASK} workflow code is running"]
        parts += [f"{_PHASES[phase]} {label}" for phase, label in _LEGEND if phase in seen]
        if any(span.kind in (Kind.CHILD, Kind.NEXUS) for span in self.story.spans):
            parts.append(f"{_CHILD} child")
        if self.scale.breaks:
            parts.append(f"{_TORN} time omitted")
        yield ()
        yield from self._wrapped(parts)

    def _fit(self, text: str, width: int) -> str:
        return fit(text, width, cells, self.ellipsis)


_LEGEND = (
    (Phase.RUNNING, "runs"),
    (Phase.QUEUED, "queued"),
    (Phase.FAILED, "failed"),
    (Phase.BACKOFF, "waits for a retry"),
    (Phase.WAITING, "waits"),
    (Phase.POINT, "happened"),
)


def _style(phase: Phase, style: str) -> str:
    if phase is Phase.FAILED:
        return "bad"
    is_dim = phase in (Phase.QUEUED, Phase.BACKOFF) or (phase is Phase.WAITING and style == "run")
    return "dim" if is_dim else style


def _name(span: Span) -> str:
    """Return a span's name with its count, and for messages with their kind: bars do not show it."""
    prefix = _PREFIX.get(span.kind, "")
    name = span.name if span.name.startswith(prefix) else f"{prefix}{span.name}"
    extra = captions.counted(span)
    return f"{name} ({extra})" if extra else name


_PREFIX = {Kind.SIGNAL: "signal ", Kind.UPDATE: "update ", Kind.LOCAL: "local ", Kind.CHILD: "child "}
