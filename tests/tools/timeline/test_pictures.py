"""Timelines as SVG, HTML and terminal text: nothing overlaps or exceeds the frame, whatever the history."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import cases

from hourglass._tools.cli.picture import STYLES
from hourglass._tools.timeline import html, svg
from hourglass._tools.timeline.axis import scale, ticks
from hourglass._tools.timeline.spans import Kind, Outcome, Phase, Segment, Span, Story
from hourglass._tools.timeline.terminal import lines
from hourglass._tools.timeline.text import MIN, MS, US, YEAR, D, H, S, cells, duration, mono, sans
from hourglass._tools.timeline.timeline import build_story

from .histories import START, HistoryBuilder, fan_out_history, order_history

SVG = "{http://www.w3.org/2000/svg}"


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float
    what: str

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right - 0.01
            and other.left < self.right - 0.01
            and self.top < other.bottom - 0.01
            and other.top < self.bottom - 0.01
        )


def _text_box(node: ElementTree.Element) -> Box:
    content, size = "".join(node.itertext()), float(node.attrib["font-size"])
    width = (mono if "mono" in node.attrib["class"].split() else sans)(content, size)
    x, y = float(node.attrib["x"]), float(node.attrib["y"])
    left = x - {"end": width, "middle": width / 2}.get(node.attrib.get("text-anchor", ""), 0.0)
    return Box(left, y - 0.72 * size, left + width, y + 0.2 * size, content)


def _bar_box(node: ElementTree.Element) -> Box:
    x, y, width, height = (float(node.attrib[each]) for each in ("x", "y", "width", "height"))
    return Box(x, y, x + width, y + height, node.attrib["class"])


def check_layout(text: str) -> int:
    """Check that labels and bars do not overlap and are inside the frame. Return the number of rows."""
    root = ElementTree.fromstring(text)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    labels = [_text_box(each) for each in root.iter(f"{SVG}text")]
    bars: list[Box] = []
    rows = [each for each in root.iter(f"{SVG}g") if each.attrib.get("class") == "row"]
    for row in rows:
        text_lines = [
            _bar_box(each) for each in row.iter(f"{SVG}rect") if "bar" in each.attrib["class"].split()
        ]
        bars += text_lines
        for one, other in pairwise(sorted(text_lines, key=lambda each: each.left)):
            assert not one.meets(other)
    for each in (*labels, *bars):
        assert each.left >= -0.01, each
        assert each.top >= -0.01, each
        assert each.right <= width + 0.01, each
        assert each.bottom <= height + 0.01, each
    for bar in bars:
        assert not any(bar.meets(label) for label in labels), bar
    lines_of: dict[int, list[Box]] = {}
    for label in labels:
        lines_of.setdefault(int(label.top // 40), []).append(label)
    for at, group in lines_of.items():
        near = [*group, *lines_of.get(at + 1, [])]
        for index, one in enumerate(group):
            for other in near[index + 1 :]:
                assert not one.meets(other), (one, other)
    return len(rows)


@pytest.mark.parametrize("spans", [3, 40, 200])
def test_svg_timeline_rows_do_not_overlap(spans: int) -> None:
    story = build_story(fan_out_history(spans).read)
    assert check_layout(svg.draw(story)) == spans + 1
    assert sum(check_layout(each) for each in svg.panels(story, html.ROWS)) == spans + 1


def test_svg_timeline_shortens_a_long_timer_with_a_visible_break() -> None:
    text = svg.draw(build_story(order_history().read))
    assert check_layout(text) == 8
    assert "time omitted" in text
    assert '<line x1="' in text
    assert text.count(">30 d<") >= 3


_names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=60)
_moments = st.integers(0, 400 * D)


@st.composite
def _spans(draw: st.DrawFn, number: int) -> Span:
    edges = sorted(draw(st.lists(_moments, min_size=2, max_size=8)))
    phases = st.sampled_from(Phase)
    outcome = draw(st.sampled_from(Outcome))
    return Span(
        id=number,
        kind=draw(st.sampled_from(Kind)),
        name=draw(_names),
        start=START + edges[0],
        end=None if outcome in (Outcome.OPEN, Outcome.RETRYING) else START + edges[-1],
        outcome=outcome,
        segments=tuple(Segment(START + a, START + b, draw(phases)) for a, b in pairwise(edges)),
        attempts=draw(st.integers(1, 2000)),
        depth=draw(st.integers(0, 12)),
    )


@st.composite
def _stories(draw: st.DrawFn) -> Story:
    spans = tuple(draw(_spans(number)) for number in range(draw(st.integers(1, 12))))
    length = draw(st.sampled_from((0, 5 * US, 3 * MS, 7 * S, 40 * MIN, 400 * D)))
    end = START + length
    kept = [
        Span(
            id=each.id,
            kind=each.kind,
            name=each.name,
            start=min(each.start, end),
            end=None if each.end is None else min(each.end, end),
            outcome=each.outcome,
            segments=tuple(Segment(min(s.start, end), min(s.end, end), s.phase) for s in each.segments),
            attempts=each.attempts,
            depth=each.depth,
        )
        for each in spans
    ]
    return Story(
        workflow_id=draw(_names),
        run_id=draw(_names),
        workflow_type=draw(_names),
        task_queue=draw(_names),
        outcome=draw(st.sampled_from(Outcome)),
        start=START,
        end=end,
        until=end,
        spans=tuple(kept),
        links=((draw(_names), draw(_names)),),
        events=draw(st.integers(1, 60_000)),
    )


@settings(max_examples=cases(30, 600), deadline=None, suppress_health_check=list(HealthCheck))
@given(_stories())
def test_random_svg_timelines_do_not_overlap(story: Story) -> None:
    assert check_layout(svg.draw(story)) == len(story.spans)


@settings(max_examples=cases(30, 600), deadline=None, suppress_health_check=list(HealthCheck))
@given(_stories(), st.integers(40, 220), st.booleans())
def test_random_terminal_timelines_fit_the_width(story: Story, width: int, plain: bool) -> None:
    for line in lines(story, width, plain=plain):
        assert cells("".join(text for text, _ in line)) <= width
        assert {style for _, style in line} <= STYLES.keys()


@pytest.mark.parametrize("width", [80, 200])
def test_terminal_timeline_shows_spans_failures_waits_and_axis(width: int) -> None:
    text_lines = [
        "".join(text for text, _ in line) for line in lines(build_story(order_history().read), width)
    ]
    output = "\n".join(text_lines)
    for text in (
        "charge_card (3 attempts)",
        "address_changed",
        "timer 30 d",
        "no carrier serves this address",
        "2 s",
    ):
        assert text in output
    assert "waited" in output
    assert output.count("✗") >= 2
    rows = [each for each in text_lines if "█" in each and "workflow code" not in each]
    assert max(map(cells, rows)) > width - 3


def test_plain_terminal_timeline_is_ascii_and_marks_failures_without_colour() -> None:
    text_lines = "\n".join(
        "".join(text for text, _ in line)
        for line in lines(build_story(order_history().read), 100, plain=True)
    )
    assert text_lines.isascii()
    assert "xX" in text_lines


def test_svg_timeline_has_colours_as_attributes() -> None:
    """Programs other than browsers support neither CSS variables nor media queries."""
    text_lines = svg.draw(build_story(order_history().read))
    assert "var(" not in text_lines
    outside = re.sub(
        r"@media [^{]*\{(?:[^{}]*\{[^}]*\})*\}", "", re.findall(r"<style>(.*?)</style>", text_lines)[0]
    )
    assert outside == ".hg .row:hover .hit{fill-opacity:.05}"
    shapes = re.findall(r"<(?:rect|path|circle|line|text)\b[^>]*>", text_lines)
    assert len(shapes) > 20
    for each in shapes:
        assert re.search(r' (?:fill|stroke)="(?:#[0-9a-f]{6}|url\(#[\w-]+\))"', each), each


def test_html_and_svg_timelines_load_no_external_resources() -> None:
    story = build_story(order_history().read)
    for text in (html.draw(story), svg.draw(story)):
        assert "<script" not in text
        assert not re.search(r"(?:src|href)=|@import|url\((?!#)", text)
        assert "prefers-color-scheme:dark" in text
        assert "@media print" in text


def test_svg_timeline_has_role_title_description_and_tooltips() -> None:
    story = build_story(order_history().read)
    root = ElementTree.fromstring(svg.draw(story))
    assert root.attrib["role"] == "img"
    named = root.attrib["aria-labelledby"].split()
    assert [each.attrib["id"] for each in root if each.tag in (f"{SVG}title", f"{SVG}desc")] == named
    rows = [each for each in root.iter(f"{SVG}g") if each.attrib.get("class") == "row"]
    assert all((each.findtext(f"{SVG}title") or "").count("\n") >= 2 for each in rows)
    page = html.draw(story)
    assert page.count("<tr>") >= len(story.spans)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_timeline_escapes_markup_in_names_and_messages() -> None:
    history = (
        HistoryBuilder("<script>alert(1)</script>", '"><b>')
        .task()
        .activity("<img src=x>", fails="</text><script>")
    )
    story = build_story(history.fail("</style><script>").read)
    for text in (html.draw(story), svg.draw(story)):
        assert "<script" not in text
        assert "<img" not in text
    assert check_layout(svg.draw(story)) == 2


def test_svg_timeline_has_axis_legend_and_durations() -> None:
    text = svg.draw(build_story(fan_out_history(3).read))
    root = ElementTree.fromstring(text)
    classes = [each.attrib["class"] for each in root.iter(f"{SVG}text")]
    assert sum("tick" in each for each in classes) >= 3
    assert sum("legend" in each for each in classes) >= 3
    assert sum("length" in each for each in classes) == 4


@pytest.mark.parametrize(
    "length", [3 * US, 40 * MS, 2 * S, 59 * S, 90 * MIN, 20 * H, 9 * D, 100 * D, 7 * YEAR]
)
@pytest.mark.parametrize("width", [40.0, 150.0, 900.0])
def test_axis_ticks_are_ordered_and_distinct_from_microseconds_to_years(length: int, width: float) -> None:
    story = Story(
        workflow_id="",
        run_id="",
        workflow_type="w",
        task_queue="",
        outcome=Outcome.DONE,
        start=START,
        end=START + length,
        until=START + length,
        spans=(Span(id=1, kind=Kind.RUN, name="w", start=START, end=START + length),),
    )
    found = ticks(scale(story, width, 5.0), lambda text: float(len(text)), 1.0)
    assert len(found) >= 2
    assert len({each.label for each in found}) == len(found)
    assert all(a.at + len(a.label) < b.at for a, b in pairwise(found))


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0"),
        (420 * US, "420 µs"),
        (1_270 * MS, "1.27 s"),
        (59_999_900_000, "1 min"),
        (125 * S, "2 min 5 s"),
        (3 * H + 12 * MIN, "3 h 12 min"),
        (30 * D, "30 d"),
        (400 * D, "400 d"),
        (3 * YEAR, "3 y"),
    ],
)
def test_duration_text_has_at_most_two_units(ns: int, text: str) -> None:
    assert duration(ns) == text


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [svg.LIGHT, svg.DARK], ids=["light", "dark"])
def test_timeline_colours_have_enough_contrast(colours: dict[str, str]) -> None:
    paper = _luminance(colours["paper"])
    for name, least in {
        "ink": 7,
        "muted": 4.5,
        "bad": 4.5,
        "good": 4.5,
        "activity": 3,
        "child": 3,
        "timer": 3,
    }.items():
        one, other = sorted((_luminance(colours[name]), paper))
        assert (other + 0.05) / (one + 0.05) >= least, name
