"""The story as a picture in SVG: self-contained, for light and dark screens and for paper.

One span is one row: name to the left, bars in the middle, how long it took to the right. Rows do not share space, bars stand
in columns of one unit, text is cut to the width that is there: so nothing overlaps, however much there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from math import ceil

from hourglass._story import captions, palette, shapes
from hourglass._story.axis import Scale, scale, ticks
from hourglass._story.columns import Stretch, stretches
from hourglass._story.folding import fold
from hourglass._story.spans import Kind, Outcome, Phase, Span, Story
from hourglass._story.textwidth import fit, mono, sans

WIDTH = 1200
LIMIT = 400
_EDGE, _ROW, _WHY, _AXIS, _GUTTER, _LENGTH = 24, 22, 15, 34, 18, 92
_NAME, _SMALL, _TICK = 12.5, 11.5, 11.0
_LEAST_BREAK = 44.0
_BAR, _THIN = 12, 4

_CLASS = {
    Kind.RUN: "run",
    Kind.TASK: "run",
    Kind.ACTIVITY: "activity",
    Kind.LOCAL: "local",
    Kind.TIMER: "timer",
    Kind.CHILD: "child",
    Kind.NEXUS: "child",
    Kind.EXTERNAL: "message",
    Kind.UPDATE: "message",
    Kind.SIGNAL: "message",
    Kind.CANCEL: "bad",
    Kind.MARKER: "cancelled",
}
_HATCHED = ("run", "timer", "activity", "child", "message")

_mono = partial(mono, size=_NAME)
_small = partial(mono, size=_SMALL)
_tick = partial(sans, size=_TICK)


@dataclass(frozen=True, slots=True)
class Layout:
    """What all rows share: where the bars begin, how many columns they have, and the scale."""

    story: Story
    left: int
    columns: int
    scale: Scale
    prefix: str

    @property
    def right(self) -> int:
        """Where the bars end."""
        return self.left + self.columns


def draw(story: Story, *, limit: int = LIMIT) -> str:
    """The whole picture, with a heading and a legend, as a file of its own."""
    story = fold(story, limit)
    layout = _layout(story, "hg-")
    y = 96.0
    rows, bottom = _rows(layout, story.spans, y + _AXIS)
    legend, height = _legend(layout, bottom + 26)
    body = "".join((_heading(story), _axis(layout, y, bottom), rows, legend))
    background = shapes.rect(0, 0, WIDTH, height, "paper")
    style = f"<style>{palette.variables()}{palette.picture()}</style>"
    return _wrap(story, height, "hg", f"{style}{shapes.hatches('hg-')}{background}{body}", standalone=True)


def panels(story: Story, rows: int, *, limit: int = LIMIT) -> tuple[str, ...]:
    """The bars alone, so many rows in each, every panel with an axis of its own. For a page that has the style."""
    story = fold(story, limit)
    made = []
    for start in range(0, len(story.spans), rows):
        layout = _layout(story, f"hg-{start}-")
        drawn, bottom = _rows(layout, story.spans[start : start + rows], _AXIS)
        legend, height = "", bottom + 8
        if start + rows >= len(story.spans):
            legend, height = _legend(layout, bottom + 26)
        body = f"{shapes.hatches(layout.prefix)}{_axis(layout, 0, bottom)}{drawn}{legend}"
        made.append(_wrap(story, height, f"hg-{start}", body, standalone=False))
    return tuple(made)


def _layout(story: Story, prefix: str) -> Layout:
    widest = max(_mono(_name(each)) + _indent(each) for each in story.spans)
    left = ceil(min(max(widest, 90), 330)) + _EDGE + 34
    columns = WIDTH - left - _GUTTER - _LENGTH - _EDGE
    return Layout(story, left, columns, scale(story, columns, _LEAST_BREAK), prefix)


def _wrap(story: Story, height: float, name: str, body: str, *, standalone: bool) -> str:
    told = f"{captions.status(story)}; {'; '.join(captions.facts(story))}; {len(story.spans) - 1} rows."
    heading = f"Timeline of workflow {story.workflow_type} {story.workflow_id}".rstrip()
    size = f' width="{WIDTH}" height="{shapes.number(height)}"' if standalone else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hg" viewBox="0 0 {WIDTH} {shapes.number(height)}"{size} '
        f'role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(heading)}</title>'
        f'<desc id="{name}-desc">{escape(told)}</desc>{body}</svg>'
    )


# --- heading, axis, legend -------------------------------------------------------------------------------------------


def _heading(story: Story) -> str:
    status = captions.status(story)
    style = "bad" if story.outcome.bad else "good" if story.outcome is Outcome.DONE else "muted"
    room = WIDTH - 2 * _EDGE - sans(status, 15) * 1.1 - 24
    kind = fit(story.workflow_type, room * 0.6, partial(sans, size=20 * 1.08))
    name = fit(story.workflow_id, room - sans(kind, 20 * 1.08) - 14, partial(mono, size=14))
    facts = "  ·  ".join((*captions.facts(story), *(f"{what} {value}" for what, value in story.links)))
    wide = WIDTH - 2 * _EDGE
    made = [
        shapes.text(_EDGE, 40, kind, "label strong", 20),
        shapes.text(_EDGE + sans(kind, 20 * 1.08) + 14, 40, name, "label mono muted", 14),
        shapes.text(WIDTH - _EDGE, 40, status, f"label strong {style}", 15, "end"),
        shapes.text(_EDGE, 66, fit(facts, wide, partial(sans, size=12.5)), "label muted", 12.5),
    ]
    if story.run_id:
        said = fit(f"run {story.run_id}", wide, _small)
        made.append(shapes.text(_EDGE, 84, said, "label mono muted", _SMALL))
    return "".join(made)


def _axis(layout: Layout, top: float, bottom: float) -> str:
    """Light: hairlines at the ticks, labels above them, bands with torn edges where time is cut short."""
    made = []
    for piece in layout.scale.breaks:
        left, right = layout.left + piece.left, layout.left + piece.right
        made.append(shapes.rect(left, top + 6, right - left, bottom - top - 2, "band"))
        for x in (left, right):
            made.append(shapes.line(x, top + 6, x, bottom + 4, "tear"))
    for tick in ticks(layout.scale, _tick, 6.0):
        x = layout.left + tick.at
        if tick.centred:
            made.append(shapes.text(x, top + 20, tick.label, "label tick strong muted", _TICK, "middle"))
            continue
        made.append(shapes.line(x, top + 26, x, bottom + 4, "grid"))
        made.append(shapes.text(x + 3, top + 20, tick.label, "label tick muted", _TICK))
    return "".join(made)


def _legend(layout: Layout, top: float) -> tuple[str, float]:
    x, y, made = float(_EDGE), top, []
    for drawn, said in _entries(layout):
        wide = 30 + sans(said, _SMALL) + 22
        if x + wide > WIDTH - _EDGE and x > _EDGE:
            x, y = float(_EDGE), y + 22
        made.append(f'<g transform="translate({shapes.number(x)} {shapes.number(y)})">{drawn}</g>')
        made.append(shapes.text(x + 30, y + 4, said, "label legend muted", _SMALL))
        x += wide
    return f'<g class="legend">{"".join(made)}</g>', y + 24


def _entries(layout: Layout) -> Iterator[tuple[str, str]]:
    spans = layout.story.spans
    for kinds, style, said in _SHOWN:
        if not any(each.kind in kinds for each in spans):
            continue
        if style == "message" or kinds == (Kind.MARKER,):
            yield shapes.diamond(12, 0, 5, f"mark {style}"), said
        elif style == "timer":
            yield shapes.rect(0, -2, 24, _THIN, "sample", f' fill="url(#{layout.prefix}timer)"'), said
        else:
            yield shapes.rect(0, -6, 24, _BAR, f"bar sample {style}"), said
    seen = {(each.phase, span.kind) for span in spans for each in span.segments}
    phases = {phase for phase, _ in seen}
    if Phase.QUEUED in phases:
        yield shapes.rect(0, -2, 24, _THIN, "bar sample queued run"), "queued"
    if Phase.FAILED in phases:
        yield shapes.rect(0, -6, 24, _BAR, "sample", f' fill="url(#{layout.prefix}bad)"'), "failed attempt"
    if Phase.BACKOFF in phases:
        yield (
            shapes.rect(0, -2, 24, _THIN, "sample", f' fill="url(#{layout.prefix}activity)"'),
            "waits to try again",
        )
    if (Phase.WAITING, Kind.RUN) in seen:
        yield shapes.rect(0, -2, 24, _THIN, "sample", f' fill="url(#{layout.prefix}run)"'), "workflow waits"
    ended = {each.outcome for each in spans}
    for outcome, said in _ENDS:
        if outcome in ended:
            yield shapes.end_mark(outcome, 12, 0), said
    if layout.scale.breaks:
        yield (
            shapes.rect(0, -8, 24, 16, "band sample")
            + shapes.line(0, -8, 0, 8, "tear")
            + shapes.line(24, -8, 24, 8, "tear"),
            "time cut short",
        )


_SHOWN = (
    ((Kind.RUN,), "run", "workflow code runs"),
    ((Kind.ACTIVITY,), "activity", "activity"),
    ((Kind.LOCAL,), "local", "local activity"),
    ((Kind.CHILD, Kind.NEXUS), "child", "child workflow"),
    ((Kind.TIMER,), "timer", "timer"),
    ((Kind.SIGNAL, Kind.UPDATE, Kind.EXTERNAL), "message", "signal, update"),
    ((Kind.MARKER,), "cancelled", "note"),
)
_ENDS = (
    (Outcome.FAILED, "failed"),
    (Outcome.TIMED_OUT, "timed out"),
    (Outcome.RETRYING, "is tried again"),
    (Outcome.CANCELLED, "cancelled"),
    (Outcome.OPEN, "goes on"),
    (Outcome.LEFT, "left open"),
    (Outcome.CONTINUED, "continued as new"),
)


# --- rows ------------------------------------------------------------------------------------------------------------


def _rows(layout: Layout, spans: Sequence[Span], top: float) -> tuple[str, float]:
    """The rows of some spans, and where they end. A reason that was just given is not given again."""
    made, y, said = [], top, ""
    for span in spans:
        why = captions.reason_beside(span, layout.story)
        told = why if why != said else ""
        height = _ROW + (_WHY if told else 0)
        made.append(_row(layout, span, y, height, told))
        y += height
        said = why or said
    return "".join(made), y


def _row(layout: Layout, span: Span, top: float, height: float, why: str) -> str:
    middle = top + _ROW / 2
    drawn = stretches(span.segments, layout.scale, layout.columns, least=3)
    style = "mono strong" if span.kind is Kind.RUN else "mono"
    bad = " bad" if span.outcome.bad else ""
    indent = _indent(span)
    room = layout.left - _EDGE - 34 - indent
    name = fit(_name(span), room, _mono)
    extra = len(span.name) if name.startswith(f"{span.name}  ") else len(name)
    length = captions.length(span, layout.story)
    right = drawn[-1].right if drawn else 0
    parts = [
        shapes.title(captions.tooltip(span, layout.story)),
        shapes.rect(_EDGE - 8, top + 0.5, WIDTH - 2 * _EDGE + 16, height - 1, "hit"),
        _swatch(layout, span, _EDGE + indent + 6, middle),
        shapes.text(
            _EDGE + indent + 20, middle + 4, name[:extra], f"label {style}{bad}", _NAME, more=name[extra:]
        ),
        *(_bar(layout, span, each, middle) for each in drawn),
        shapes.end_mark(span.outcome, layout.left + right + 9, middle),
        shapes.text(WIDTH - _EDGE, middle + 4, length, "label length mono muted", _SMALL, "end")
        if length
        else "",
        _reason(layout, drawn, top + _ROW + 8, why) if why else "",
    ]
    return f'<g class="row">{"".join(parts)}</g>'


def _bar(layout: Layout, span: Span, stretch: Stretch, middle: float) -> str:
    kind, phase = _CLASS[span.kind], stretch.phase
    x, width = layout.left + stretch.left, stretch.right - stretch.left
    if phase is Phase.POINT:
        if width <= 10:
            return shapes.diamond(
                min(max(x + width / 2, layout.left), layout.right), middle, 5.5, f"mark {kind}"
            )
        return shapes.rect(x, middle - 4, width, 8, f"bar {kind}", ' rx="3"')
    if phase is Phase.FAILED:
        hatch = f' style="fill:url(#{layout.prefix}bad)"'
        return shapes.rect(x, middle - _BAR / 2, width, _BAR, "bar failed", hatch)
    if phase is Phase.RUNNING:
        return shapes.rect(x, middle - _BAR / 2, width, _BAR, f"bar {kind}", ' rx="1.5"')
    if phase is Phase.QUEUED:
        return shapes.rect(x, middle - _THIN / 2, width, _THIN, f"bar queued {kind}")
    hatch = kind if kind in _HATCHED else "run"
    return shapes.rect(
        x,
        middle - _THIN / 2,
        width,
        _THIN,
        f"bar {phase} {kind}",
        f' style="fill:url(#{layout.prefix}{hatch})"',
    )


def _swatch(layout: Layout, span: Span, x: float, y: float) -> str:
    kind = _CLASS[span.kind]
    if span.kind in (Kind.SIGNAL, Kind.UPDATE, Kind.EXTERNAL, Kind.CANCEL, Kind.MARKER):
        return shapes.diamond(x, y, 4.2, f"mark {kind}")
    if span.kind is Kind.TIMER:
        return shapes.rect(x - 5, y - 2, 10, _THIN, "swatch", f' fill="url(#{layout.prefix}timer)"')
    if span.kind is Kind.TASK:
        kind = "bad"
    return shapes.rect(x - 4, y - 4, 8, 8, f"mark swatch {kind}", ' rx="1.5"')


def _reason(layout: Layout, drawn: Sequence[Stretch], y: float, why: str) -> str:
    """Below the bar, from where it begins, or ending where the bars end if that does not fit."""
    start = layout.left + (drawn[0].left if drawn else 0)
    wide = partial(sans, size=_SMALL)
    if start + wide(why) <= layout.right:
        return shapes.text(start, y, why, "label why bad", _SMALL)
    said = fit(why, layout.columns, wide)
    return shapes.text(layout.right, y, said, "label why bad", _SMALL, "end")


def _indent(span: Span) -> int:
    return 16 * min(span.depth, 8)


def _name(span: Span) -> str:
    extra = captions.counted(span)
    return f"{span.name}  {extra}" if extra else span.name
