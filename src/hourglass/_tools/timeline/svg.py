"""A story rendered as SVG: self-contained, for light and dark screens and for print.

Each span is one row: its name on the left, bars in the middle, its duration on the right. Nothing overlaps: rows do
not share space, bars occupy columns of one unit, and text is truncated to the available width.

All text from a history is escaped in the shape functions below, and nowhere else. The colours are the Okabe-Ito
palette, which colour-blind readers can distinguish. Colour never carries information alone: failures are also hatched
and crossed, waits are thin, messages are diamonds.

Each element has its colours for a light background as attributes, because programs other than browsers support
neither CSS variables nor media queries. The style sheet for dark screens (`dark`) is for browsers only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from math import ceil

from hourglass._tools.timeline import captions
from hourglass._tools.timeline.axis import Scale, Stretch, fold, scale, stretches, ticks
from hourglass._tools.timeline.spans import Kind, Outcome, Phase, Span, Story
from hourglass._tools.timeline.text import fit, mono, sans

LIGHT = {
    "paper": "#ffffff",
    "ink": "#1b2430",
    "muted": "#566273",
    "grid": "#e4e8ee",
    "band": "#f2f4f7",
    "run": "#3d4a5c",
    "activity": "#0072b2",
    "local": "#4ba3d9",
    "timer": "#b47b00",
    "child": "#9a4f87",
    "message": "#00855f",
    "cancelled": "#6b7684",
    "bad": "#c44f00",
    "good": "#00734f",
    "pale": "#fbe9dd",
}
DARK = {
    "paper": "#11161d",
    "ink": "#e6ebf1",
    "muted": "#9aa7b5",
    "grid": "#242d38",
    "band": "#1a212a",
    "run": "#b9c4d0",
    "activity": "#56b4e9",
    "local": "#a9dbf7",
    "timer": "#e69f00",
    "child": "#d38bb4",
    "message": "#2cc295",
    "cancelled": "#8f9baa",
    "bad": "#ff8a4a",
    "good": "#35c996",
    "pale": "#3a2418",
}

SANS = "'Inter','Segoe UI',Roboto,'Helvetica Neue',Arial,'Liberation Sans',sans-serif"
MONO = "ui-monospace,'SF Mono',Menlo,'Cascadia Mono',Consolas,'Liberation Mono','DejaVu Sans Mono',monospace"


def _variables(colours: dict[str, str]) -> str:
    return ";".join(f"--{name}:{value}" for name, value in colours.items())


def variables() -> str:
    """Return the colours as CSS variables for elements with the class `hg`."""
    return (
        f".hg{{{_variables(LIGHT)};color-scheme:light dark}}"
        f"@media (prefers-color-scheme:dark){{.hg{{{_variables(DARK)}}}}}"
        f"@media print{{.hg{{{_variables(LIGHT)};color-scheme:light;"
        "-webkit-print-color-adjust:exact;print-color-adjust:exact}}"
    )


KINDS = ("run", "activity", "local", "timer", "child", "message", "cancelled", "bad")

_BY_ROLE = {
    "bar": 'fill="{kind}"',
    "mark": 'fill="{kind}"',
    "line": 'fill="none" stroke="{kind}" stroke-width="1.6" stroke-linecap="round"',
    "cross": 'fill="none" stroke="{paper}" stroke-width="1.8" stroke-linecap="round"',
    "paper": 'fill="{paper}"',
    "band": 'fill="{band}"',
    "grid": 'stroke="{grid}" stroke-width="1"',
    "tear": 'fill="none" stroke="{muted}" stroke-width="1" stroke-dasharray="2 3"',
    "hit": 'fill="{ink}" fill-opacity="0"',
}
_OPACITY = {"queued": ".38", "backoff": ".55"}


@cache
def _style(classes: str) -> str:
    names = classes.split()
    kind = next((LIGHT[name] for name in names if name in KINDS), LIGHT["run"])
    attributes = [_BY_ROLE[name].format(kind=kind, **LIGHT) for name in names if name in _BY_ROLE][:1]
    attributes += [f'fill-opacity="{_OPACITY[name]}"' for name in names if name in _OPACITY]
    return "".join(f" {name}" for name in attributes)


@cache
def _letters(classes: str) -> str:
    names = classes.split()
    colour = next((LIGHT[name] for name in ("bad", "good", "muted") if name in names), LIGHT["ink"])
    family = f' font-family="{MONO}"' if "mono" in names else ""
    weight = ' font-weight="600"' if "strong" in names else ""
    return f' fill="{colour}"{family}{weight}'


def dark() -> str:
    """Return the style sheet for dark screens and for hovered elements."""
    rules = [
        f".hg text{{fill:{DARK['ink']}}}.hg .muted{{fill:{DARK['muted']}}}",
        f".hg text.bad{{fill:{DARK['bad']}}}.hg text.good{{fill:{DARK['good']}}}",
        f".hg .paper{{fill:{DARK['paper']}}}.hg .band{{fill:{DARK['band']}}}.hg .hit{{fill:{DARK['ink']}}}",
        f".hg .grid{{stroke:{DARK['grid']}}}.hg .tear{{stroke:{DARK['muted']}}}.hg .cross{{stroke:{DARK['paper']}}}",
    ]
    for kind in KINDS:
        colour = DARK[kind]
        rules.append(
            f".hg .bar.{kind},.hg .mark.{kind},.hg .hatch.{kind}{{fill:{colour}}}.hg .line.{kind}{{stroke:{colour}}}"
        )
    return (
        f"@media screen and (prefers-color-scheme:dark){{{''.join(rules)}}}"
        "@media print{.hg{-webkit-print-color-adjust:exact;print-color-adjust:exact}}"
        ".hg .row:hover .hit{fill-opacity:.05}"
    )


def number(value: float) -> str:
    """Return a coordinate, rounded to hundredths."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def text(
    x: float, y: float, content: str, classes: str, size: float, anchor: str = "", more: str = ""
) -> str:
    """Return a text with its baseline at `y`. `more` follows in a fainter colour."""
    fainter = ""
    if more:
        faint = f'class="muted" fill="{LIGHT["muted"]}" font-weight="400"'
        fainter = f'<tspan {faint} xml:space="preserve">{escape(more)}</tspan>'
    end = f' text-anchor="{anchor}"' if anchor else ""
    return (
        f'<text x="{number(x)}" y="{number(y)}" class="{classes}"{_letters(classes)} font-size="{number(size)}"{end}>'
        f"{escape(content)}{fainter}</text>"
    )


def rect(x: float, y: float, width: float, height: float, classes: str, extra: str = "") -> str:
    """Return a rectangle."""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
        f'class="{classes}"{"" if " fill=" in extra else _style(classes)}{extra}/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, classes: str) -> str:
    """Return a straight line."""
    return f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" class="{classes}"{_style(classes)}/>'


def path(d: str, classes: str) -> str:
    """Return a path."""
    return f'<path d="{d}" class="{classes}"{_style(classes)}/>'


def diamond(x: float, y: float, size: float, classes: str) -> str:
    """Return a diamond around a point."""
    n = number
    return path(
        f"M{n(x)} {n(y - size)}L{n(x + size)} {n(y)}L{n(x)} {n(y + size)}L{n(x - size)} {n(y)}Z", classes
    )


def title(content: str) -> str:
    """Return a tooltip."""
    return f"<title>{escape(content)}</title>"


def hatches(prefix: str) -> str:
    """Return the patterns for waits and failures, with names that begin with `prefix`."""
    made = []
    for kind in ("run", "timer", "activity", "child", "message"):
        made.append(
            f'<pattern id="{prefix}{kind}" width="5" height="4" patternUnits="userSpaceOnUse">'
            f'<rect width="3" height="4" class="hatch {kind}" fill="{LIGHT[kind]}" fill-opacity=".75"/></pattern>'
        )
    made.append(
        f'<pattern id="{prefix}bad" width="6" height="6" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="6" height="6" class="hatch bad" fill="{LIGHT["bad"]}"/>'
        f'<rect width="2" height="6" class="paper" fill="{LIGHT["paper"]}" fill-opacity=".45"/></pattern>'
    )
    return f"<defs>{''.join(made)}</defs>"


def end_mark(outcome: Outcome, x: float, y: float) -> str:
    """Return the mark after a bar that shows the outcome: a shape of at most 12 by 12 around a point."""
    n = number
    match outcome:
        case Outcome.FAILED | Outcome.TIMED_OUT | Outcome.TERMINATED:
            disc = f'<circle cx="{n(x)}" cy="{n(y)}" r="6" class="mark bad"{_style("mark bad")}/>'
            arms = f"M{n(x - 2.3)} {n(y - 2.3)}l4.6 4.6M{n(x + 2.3)} {n(y - 2.3)}l-4.6 4.6"
            return disc + path(arms, "cross")
        case Outcome.RETRYING:
            return path(
                f"M{n(x + 3.6)} {n(y - 2.4)}A4.4 4.4 0 1 0 {n(x + 4.4)} {n(y + 0.6)}", "line bad"
            ) + path(f"M{n(x + 5)} {n(y - 5)}v3.4h-3.4", "line bad")
        case Outcome.CANCELLED:
            ring = (
                f'<circle cx="{n(x)}" cy="{n(y)}" r="4.4" class="line cancelled"{_style("line cancelled")}/>'
            )
            return ring + path(f"M{n(x - 3)} {n(y + 3)}l6 -6", "line cancelled")
        case Outcome.OPEN:
            return path(f"M{n(x - 3)} {n(y - 4.5)}L{n(x + 4)} {n(y)}L{n(x - 3)} {n(y + 4.5)}Z", "mark run")
        case Outcome.CONTINUED:
            return path(f"M{n(x - 4)} {n(y)}h8m-3 -3l3 3l-3 3", "line run")
        case Outcome.LEFT:
            return path(f"M{n(x - 3)} {n(y - 4)}v8", "line cancelled")
    return ""


WIDTH = 1200
LIMIT = 400
_EDGE, _ROW, _WHY, _AXIS, _GUTTER, _LENGTH = 24, 22, 15, 34, 18, 92
_NAME, _SMALL, _TICK = 12.5, 11.5, 11.0
_LEAST_BREAK = 44.0
_BAR, _THIN = 12, 4

_CLASS = {**captions.STYLES, Kind.TASK: "run", Kind.CANCEL: "bad", Kind.MARKER: "cancelled"}
_HATCHED = ("run", "timer", "activity", "child", "message")

_mono = partial(mono, size=_NAME)
_small = partial(mono, size=_SMALL)
_tick = partial(sans, size=_TICK)


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout shared by all rows: the left end of the bars, the number of columns, and the scale."""

    story: Story
    left: int
    columns: int
    scale: Scale
    prefix: str

    @property
    def right(self) -> int:
        """The right end of the bars."""
        return self.left + self.columns


def draw(story: Story, *, limit: int = LIMIT) -> str:
    """Return the whole picture, with a heading and a legend, as a standalone file."""
    story = fold(story, limit)
    layout = _layout(story, "hg-")
    y = 96.0
    rows, bottom = _rows(layout, story.spans, y + _AXIS)
    legend, height = _legend(layout, bottom + 26)
    body = "".join((_heading(story), _axis(layout, y, bottom), rows, legend))
    background = rect(0, 0, WIDTH, height, "paper")
    style = f"<style>{dark()}</style>"
    return _wrap(story, height, "hg", f"{style}{hatches('hg-')}{background}{body}", standalone=True)


def panels(story: Story, rows: int, *, limit: int = LIMIT) -> tuple[str, ...]:
    """Return the bars as panels with `rows` rows and an axis each, for a page that contains the style."""
    story = fold(story, limit)
    made = []
    for start in range(0, len(story.spans), rows):
        layout = _layout(story, f"hg-{start}-")
        drawn, bottom = _rows(layout, story.spans[start : start + rows], _AXIS)
        legend, height = "", bottom + 8
        if start + rows >= len(story.spans):
            legend, height = _legend(layout, bottom + 26)
        body = f"{hatches(layout.prefix)}{_axis(layout, 0, bottom)}{drawn}{legend}"
        made.append(_wrap(story, height, f"hg-{start}", body, standalone=False))
    return tuple(made)


def _layout(story: Story, prefix: str) -> Layout:
    widest = max(_mono(_name(span)) + _indent(span) for span in story.spans)
    left = ceil(min(max(widest, 90), 330)) + _EDGE + 34
    columns = WIDTH - left - _GUTTER - _LENGTH - _EDGE
    return Layout(story, left, columns, scale(story, columns, _LEAST_BREAK), prefix)


def _wrap(story: Story, height: float, name: str, body: str, *, standalone: bool) -> str:
    description = (
        f"{captions.status(story)}; {'; '.join(captions.facts(story))}; {len(story.spans) - 1} rows."
    )
    heading = f"Timeline of workflow {story.workflow_type} {story.workflow_id}".rstrip()
    size = f' width="{WIDTH}" height="{number(height)}"' if standalone else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="hg" viewBox="0 0 {WIDTH} {number(height)}"{size} '
        f'font-family="{SANS}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(heading)}</title>'
        f'<desc id="{name}-desc">{escape(description)}</desc>{body}</svg>'
    )


def _heading(story: Story) -> str:
    status = captions.status(story)
    style = "bad" if story.outcome.bad else "good" if story.outcome is Outcome.DONE else "muted"
    room = WIDTH - 2 * _EDGE - sans(status, 15) * 1.1 - 24
    kind = fit(story.workflow_type, room * 0.6, partial(sans, size=20 * 1.08))
    name = fit(story.workflow_id, room - sans(kind, 20 * 1.08) - 14, partial(mono, size=14))
    facts = "  ·  ".join((*captions.facts(story), *(f"{what} {value}" for what, value in story.links)))
    wide = WIDTH - 2 * _EDGE
    made = [
        text(_EDGE, 40, kind, "label strong", 20),
        text(_EDGE + sans(kind, 20 * 1.08) + 14, 40, name, "label mono muted", 14),
        text(WIDTH - _EDGE, 40, status, f"label strong {style}", 15, "end"),
        text(_EDGE, 66, fit(facts, wide, partial(sans, size=12.5)), "label muted", 12.5),
    ]
    if story.run_id:
        label = fit(f"run {story.run_id}", wide, _small)
        made.append(text(_EDGE, 84, label, "label mono muted", _SMALL))
    return "".join(made)


def _axis(layout: Layout, top: float, bottom: float) -> str:
    """Draw the axis: hairlines at the ticks with labels above, and torn bands where time is cut."""
    made = []
    for piece in layout.scale.breaks:
        left, right = layout.left + piece.left, layout.left + piece.right
        made.append(rect(left, top + 6, right - left, bottom - top - 2, "band"))
        for x in (left, right):
            made.append(line(x, top + 6, x, bottom + 4, "tear"))
    for tick in ticks(layout.scale, _tick, 6.0):
        x = layout.left + tick.at
        if tick.centred:
            made.append(text(x, top + 20, tick.label, "label tick strong muted", _TICK, "middle"))
            continue
        made.append(line(x, top + 26, x, bottom + 4, "grid"))
        made.append(text(x + 3, top + 20, tick.label, "label tick muted", _TICK))
    return "".join(made)


def _legend(layout: Layout, top: float) -> tuple[str, float]:
    x, y, made = float(_EDGE), top, []
    for drawn, label in _entries(layout):
        wide = 30 + sans(label, _SMALL) + 22
        if x + wide > WIDTH - _EDGE and x > _EDGE:
            x, y = float(_EDGE), y + 22
        made.append(f'<g transform="translate({number(x)} {number(y)})">{drawn}</g>')
        made.append(text(x + 30, y + 4, label, "label legend muted", _SMALL))
        x += wide
    return f'<g class="legend">{"".join(made)}</g>', y + 24


def _entries(layout: Layout) -> Iterator[tuple[str, str]]:
    spans = layout.story.spans
    for kinds, style, label in _SHOWN:
        if not any(item.kind in kinds for item in spans):
            continue
        if style == "message" or kinds == (Kind.MARKER,):
            yield diamond(12, 0, 5, f"mark {style}"), label
        elif style == "timer":
            yield rect(0, -2, 24, _THIN, "sample", f' fill="url(#{layout.prefix}timer)"'), label
        else:
            yield rect(0, -6, 24, _BAR, f"bar sample {style}"), label
    seen = {(item.phase, span.kind) for span in spans for item in span.segments}
    phases = {phase for phase, _ in seen}
    if Phase.QUEUED in phases:
        yield rect(0, -2, 24, _THIN, "bar sample queued run"), "queued"
    if Phase.FAILED in phases:
        yield rect(0, -6, 24, _BAR, "sample", f' fill="url(#{layout.prefix}bad)"'), "failed attempt"
    for hatch, label, is_shown in (
        ("activity", "waits for a retry", Phase.BACKOFF in phases),
        ("run", "workflow waits", (Phase.WAITING, Kind.RUN) in seen),
    ):
        if is_shown:
            yield rect(0, -2, 24, _THIN, "sample", f' fill="url(#{layout.prefix}{hatch})"'), label
    ended = {item.outcome for item in spans}
    for outcome, label in _ENDS:
        if outcome in ended:
            yield end_mark(outcome, 12, 0), label
    if layout.scale.breaks:
        yield (
            rect(0, -8, 24, 16, "band sample") + line(0, -8, 0, 8, "tear") + line(24, -8, 24, 8, "tear"),
            "time omitted",
        )


_SHOWN = (
    ((Kind.RUN,), "run", "workflow code is running"),
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
    (Outcome.RETRYING, "is retried"),
    (Outcome.CANCELLED, "cancelled"),
    (Outcome.OPEN, "continues"),
    (Outcome.LEFT, "left open"),
    (Outcome.CONTINUED, "continued as new"),
)


def _rows(layout: Layout, spans: Sequence[Span], top: float) -> tuple[str, float]:
    """Return the rows of these spans, and their lower end. A reason is not repeated in the next row."""
    made, y, previous = [], top, ""
    for span in spans:
        why = captions.reason_beside(span, layout.story)
        shown = why if why != previous else ""
        height = _ROW + (_WHY if shown else 0)
        made.append(_row(layout, span, y, height, shown))
        y += height
        previous = why or previous
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
        title(captions.tooltip(span, layout.story)),
        rect(_EDGE - 8, top + 0.5, WIDTH - 2 * _EDGE + 16, height - 1, "hit"),
        _swatch(layout, span, _EDGE + indent + 6, middle),
        text(_EDGE + indent + 20, middle + 4, name[:extra], f"label {style}{bad}", _NAME, more=name[extra:]),
        *(_bar(layout, span, stretch, middle) for stretch in drawn),
        end_mark(span.outcome, layout.left + right + 9, middle),
        text(WIDTH - _EDGE, middle + 4, length, "label length mono muted", _SMALL, "end") if length else "",
        _reason(layout, drawn, top + _ROW + 8, why) if why else "",
    ]
    return f'<g class="row">{"".join(parts)}</g>'


def _bar(layout: Layout, span: Span, stretch: Stretch, middle: float) -> str:
    kind, phase = _CLASS[span.kind], stretch.phase
    x, width = layout.left + stretch.left, stretch.right - stretch.left
    if phase is Phase.POINT:
        if width <= 10:
            return diamond(min(max(x + width / 2, layout.left), layout.right), middle, 5.5, f"mark {kind}")
        return rect(x, middle - 4, width, 8, f"bar {kind}", ' rx="3"')
    if phase is Phase.FAILED:
        hatch = f' style="fill:url(#{layout.prefix}bad)"'
        return rect(x, middle - _BAR / 2, width, _BAR, "bar failed", hatch)
    if phase is Phase.RUNNING:
        return rect(x, middle - _BAR / 2, width, _BAR, f"bar {kind}", ' rx="1.5"')
    if phase is Phase.QUEUED:
        return rect(x, middle - _THIN / 2, width, _THIN, f"bar queued {kind}")
    hatch = kind if kind in _HATCHED else "run"
    return rect(
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
        return diamond(x, y, 4.2, f"mark {kind}")
    if span.kind is Kind.TIMER:
        return rect(x - 5, y - 2, 10, _THIN, "swatch", f' fill="url(#{layout.prefix}timer)"')
    if span.kind is Kind.TASK:
        kind = "bad"
    return rect(x - 4, y - 4, 8, 8, f"mark swatch {kind}", ' rx="1.5"')


def _reason(layout: Layout, drawn: Sequence[Stretch], y: float, why: str) -> str:
    """Return the reason below the bar, from the bar's left end, or aligned to the right if it does not fit."""
    start = layout.left + (drawn[0].left if drawn else 0)
    wide = partial(sans, size=_SMALL)
    if start + wide(why) <= layout.right:
        return text(start, y, why, "label why bad", _SMALL)
    label = fit(why, layout.columns, wide)
    return text(layout.right, y, label, "label why bad", _SMALL, "end")


def _indent(span: Span) -> int:
    return 16 * min(span.depth, 8)


def _name(span: Span) -> str:
    extra = captions.counted(span)
    return f"{span.name}  {extra}" if extra else span.name
