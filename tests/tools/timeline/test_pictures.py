"""What the pictures look like: parsed and measured, nothing overlaps and nothing leaves the frame, however much there is."""

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

from .histories import START, Made, many, order

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


def check(text: str) -> int:
    """No two labels and no two bars of a row meet, no label meets a bar, all are in the frame; gives the number of rows."""
    root = ElementTree.fromstring(text)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    labels = [_text_box(each) for each in root.iter(f"{SVG}text")]
    bars: list[Box] = []
    rows = [each for each in root.iter(f"{SVG}g") if each.attrib.get("class") == "row"]
    for row in rows:
        drawn = [_bar_box(each) for each in row.iter(f"{SVG}rect") if "bar" in each.attrib["class"].split()]
        bars += drawn
        for one, other in pairwise(sorted(drawn, key=lambda each: each.left)):
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
def test_rows_do_not_overlap(spans: int) -> None:
    """With 3, 40 and 200 activities, each in a row of its own, nothing overlaps; in the file and in the panels of the page."""
    story = build_story(many(spans).read)
    assert check(svg.draw(story)) == spans + 1
    assert sum(check(each) for each in svg.panels(story, html.ROWS)) == spans + 1


def test_long_timer_is_drawn_with_a_break() -> None:
    """A month's timer among seconds is cut short by a visible break that says how long it is; its length stays true."""
    text = svg.draw(build_story(order().read))
    assert check(text) == 8
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
def test_random_timelines_do_not_overlap(story: Story) -> None:
    """Whatever the spans, names and lengths are, nothing overlaps and nothing leaves the frame."""
    assert check(svg.draw(story)) == len(story.spans)


@settings(max_examples=cases(30, 600), deadline=None, suppress_health_check=list(HealthCheck))
@given(_stories(), st.integers(40, 220), st.booleans())
def test_random_timelines_fit_into_a_terminal(story: Story, width: int, plain: bool) -> None:
    """No line is wider than the terminal, every style is known, and pieces of one line never run into each other."""
    for line in lines(story, width, plain=plain):
        assert cells("".join(text for text, _ in line)) <= width
        assert {style for _, style in line} <= STYLES.keys()


@pytest.mark.parametrize("width", [80, 200])
def test_terminal_timeline_is_complete(width: int) -> None:
    """At 80 and 200 columns every span, the reason of a failure, the waits and the axis are there."""
    drawn = ["".join(text for text, _ in line) for line in lines(build_story(order().read), width)]
    whole = "\n".join(drawn)
    for said in (
        "charge_card (3 attempts)",
        "address_changed",
        "timer 30 d",
        "no carrier serves this address",
        "2 s",
    ):
        assert said in whole
    assert "waited" in whole
    assert whole.count("✗") >= 2
    rows = [each for each in drawn if "█" in each and "workflow code" not in each]
    assert max(map(cells, rows)) > width - 3


def test_ascii_timeline_contains_only_ascii() -> None:
    """The plain picture of a plain history holds nothing but ASCII, and tells failed from done without colour."""
    drawn = "\n".join(
        "".join(text for text, _ in line) for line in lines(build_story(order().read), 100, plain=True)
    )
    assert drawn.isascii()
    assert "xX" in drawn


def test_picture_is_readable_without_a_style_sheet() -> None:
    """Programs that are no browsers know no variables and no media: every shape and text has its colour as an attribute."""
    drawn = svg.draw(build_story(order().read))
    assert "var(" not in drawn
    outside = re.sub(
        r"@media [^{]*\{(?:[^{}]*\{[^}]*\})*\}", "", re.findall(r"<style>(.*?)</style>", drawn)[0]
    )
    assert outside == ".hg .row:hover .hit{fill-opacity:.05}"
    shapes = re.findall(r"<(?:rect|path|circle|line|text)\b[^>]*>", drawn)
    assert len(shapes) > 20
    for each in shapes:
        assert re.search(r' (?:fill|stroke)="(?:#[0-9a-f]{6}|url\(#[\w-]+\))"', each), each


def test_page_is_self_contained() -> None:
    """The page and the picture load nothing, run nothing, and carry light, dark and paper."""
    story = build_story(order().read)
    for text in (html.draw(story), svg.draw(story)):
        assert "<script" not in text
        assert not re.search(r"(?:src|href)=|@import|url\((?!#)", text)
        assert "prefers-color-scheme:dark" in text
        assert "@media print" in text


def test_pictures_are_accessible() -> None:
    """A picture has a role, a title and a description; its rows have tooltips, the page a table of them."""
    story = build_story(order().read)
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


def test_text_of_a_history_is_escaped() -> None:
    """Names and messages cannot become markup."""
    made = Made("<script>alert(1)</script>", '"><b>').task().activity("<img src=x>", fails="</text><script>")
    story = build_story(made.fail("</style><script>").read)
    for text in (html.draw(story), svg.draw(story)):
        assert "<script" not in text
        assert "<img" not in text
    assert check(svg.draw(story)) == 2


def test_axis_and_legend_are_drawn() -> None:
    """A picture explains itself: an axis with times, a legend for what it shows, and how long each row took."""
    text = svg.draw(build_story(many(3).read))
    root = ElementTree.fromstring(text)
    classes = [each.attrib["class"] for each in root.iter(f"{SVG}text")]
    assert sum("tick" in each for each in classes) >= 3
    assert sum("legend" in each for each in classes) >= 3
    assert sum("length" in each for each in classes) == 4


@pytest.mark.parametrize(
    "length", [3 * US, 40 * MS, 2 * S, 59 * S, 90 * MIN, 20 * H, 9 * D, 100 * D, 7 * YEAR]
)
@pytest.mark.parametrize("width", [40.0, 150.0, 900.0])
def test_axis_ticks_from_microseconds_to_years(length: int, width: float) -> None:
    """Every length has at least two ticks where there is room, in order, with labels that keep apart and do not repeat."""
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
    ("ns", "said"),
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
def test_durations_are_readable(ns: int, said: str) -> None:
    """Durations are short, in at most two units, and rounded to what matters."""
    assert duration(ns) == said


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("colours", [svg.LIGHT, svg.DARK], ids=["light", "dark"])
def test_colours_have_enough_contrast(colours: dict[str, str]) -> None:
    """Text stands out from the paper by 4.5 to 1, and bars by 3 to 1 (but for local activities, 2.5), light and dark."""
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
