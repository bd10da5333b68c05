"""SVG plots: bar charts, and line charts with two logarithmic axes. Small text files that can be committed with the docs.

The colours are Wong's palette, which is distinguishable with any kind of colour vision; labels are readable on light and dark
pages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a8a", "#b8a600")
_WIDTH = 720
_LEFT, _RIGHT, _TOP = 150, 24, 46
_ROW = 18

Point = tuple[float, float]


def bars(title: str, unit: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Return a bar chart with a group per case and a bar per subject."""
    subjects = list(dict.fromkeys(name for values in groups.values() for name in values))
    colours = dict(zip(subjects, _cycle(len(subjects)), strict=True))
    largest = max((value for values in groups.values() for value in values.values()), default=0.0) or 1.0
    plot_width = _WIDTH - _LEFT - _RIGHT - 90
    parts, y = [], float(_TOP)
    for case, values in groups.items():
        middle = y + _ROW * len(values) / 2 + 4
        parts.append(_text(_LEFT - 10, middle, case, anchor="end"))
        for name, value in values.items():
            width = max(1.0, plot_width * value / largest)
            parts.append(
                f'<rect x="{_LEFT}" y="{y:.1f}" width="{width:.1f}" height="{_ROW - 4}" rx="2" fill="{colours[name]}">'
                f"<title>{escape(name)}: {_number(value)} {escape(unit)}</title></rect>"
            )
            parts.append(_text(_LEFT + width + 6, y + 11, _number(value), size=11))
            y += _ROW
        y += 14
    return _svg(f"{title} ({unit})", parts, colours, y)


def lines(
    title: str,
    unit: str,
    x_label: str,
    series: Mapping[str, Sequence[Point]],
) -> str:
    """Return a line chart with a line per subject and two logarithmic axes."""
    colours = dict(zip(series, _cycle(len(series)), strict=True))
    points = [point for values in series.values() for point in values if min(point) > 0]
    if not points:
        return _svg(title, [], colours, _TOP)
    left, right = _decades(x for x, _ in points)
    low, high = _decades(y for _, y in points)
    bottom, height = _TOP + 260.0, 260.0
    plot_width = _WIDTH - 80 - _RIGHT

    def place(x: float, y: float) -> Point:
        x_share = (math.log10(x) - left) / (right - left)
        y_share = (math.log10(y) - low) / (high - low)
        return 80 + plot_width * x_share, bottom - height * y_share

    parts = _grid(left, right, low, high, place)
    parts.append(_text(80 + plot_width / 2, bottom + 34, x_label, anchor="middle"))
    for name, values in series.items():
        positions = [place(x, y) for x, y in values if x > 0 and y > 0]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in positions)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colours[name]}" stroke-width="2"/>')
        for (x, y), (_, value) in zip(positions, values, strict=False):
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colours[name]}">'
                f"<title>{escape(name)}: {_number(value)} {escape(unit)}</title></circle>"
            )
    return _svg(f"{title} ({unit})", parts, colours, bottom + 50)


def _grid(left: int, right: int, low: int, high: int, place: object) -> list[str]:
    parts = []
    for decade in range(left, right + 1):
        (x, bottom), (_, top) = place(10.0**decade, 10.0**low), place(10.0**decade, 10.0**high)  # type: ignore[operator]
        parts.append(_line(x, bottom, x, top))
        parts.append(_text(x, bottom + 16, _number(10.0**decade), anchor="middle", size=11))
    for decade in range(low, high + 1):
        (start, y), (end, _) = place(10.0**left, 10.0**decade), place(10.0**right, 10.0**decade)  # type: ignore[operator]
        parts.append(_line(start, y, end, y))
        parts.append(_text(start - 8, y + 4, _number(10.0**decade), anchor="end", size=11))
    return parts


def _decades(values: object) -> tuple[int, int]:
    numbers = list(values)  # type: ignore[call-overload]
    low, high = math.floor(math.log10(min(numbers)) + 1e-9), math.ceil(math.log10(max(numbers)) - 1e-9)
    return low, max(high, low + 1)


def _cycle(count: int) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(count)]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#888" stroke-opacity="0.35"/>'
    )


def _text(x: float, y: float, label: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(label)}</text>'


def _number(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1e6:,.4g} M"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _svg(title: str, parts: Sequence[str], colours: Mapping[str, str], height: float) -> str:
    legend, x, y = [], 12.0, height + 14
    for name, colour in colours.items():
        width = 26 + 6.6 * len(name)
        if x + width > _WIDTH:
            x, y = 12.0, y + 20
        legend.append(f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" rx="2" fill="{colour}"/>')
        legend.append(_text(x + 17, y, name, size=11))
        x += width
    total_height = y + 14
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {total_height:.0f}" role="img" '
            f'font-family="system-ui, sans-serif" fill="#808080">',
            f"<title>{escape(title)}</title>",
            f'<text x="12" y="24" font-size="15" font-weight="600">{escape(title)}</text>',
            *parts,
            *legend,
            "</svg>\n",
        ]
    )
