"""SVG as text, element by element. Everything that a history says is escaped here, and nowhere else."""

from __future__ import annotations

from html import escape

from hourglass._story.spans import Outcome


def number(value: float) -> str:
    """A coordinate, to a hundredth."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def text(
    x: float, y: float, content: str, classes: str, size: float, anchor: str = "", more: str = ""
) -> str:
    """A text on a line at `y`; `more` follows it, fainter."""
    fainter = f'<tspan class="muted" xml:space="preserve">{escape(more)}</tspan>' if more else ""
    end = f' text-anchor="{anchor}"' if anchor else ""
    return (
        f'<text x="{number(x)}" y="{number(y)}" class="{classes}" font-size="{number(size)}"{end}>'
        f"{escape(content)}{fainter}</text>"
    )


def rect(x: float, y: float, width: float, height: float, classes: str, extra: str = "") -> str:
    """A rectangle."""
    return (
        f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" '
        f'class="{classes}"{extra}/>'
    )


def line(x1: float, y1: float, x2: float, y2: float, classes: str) -> str:
    """A straight line."""
    return (
        f'<line x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}" class="{classes}"/>'
    )


def path(d: str, classes: str) -> str:
    """A path."""
    return f'<path d="{d}" class="{classes}"/>'


def diamond(x: float, y: float, size: float, classes: str) -> str:
    """A diamond around a point."""
    n = number
    return path(
        f"M{n(x)} {n(y - size)}L{n(x + size)} {n(y)}L{n(x)} {n(y + size)}L{n(x - size)} {n(y)}Z", classes
    )


def title(content: str) -> str:
    """A tooltip."""
    return f"<title>{escape(content)}</title>"


def hatches(prefix: str) -> str:
    """The patterns of what waits and of what failed, under names of this prefix."""
    made = []
    for kind in ("run", "timer", "activity", "child", "message"):
        made.append(
            f'<pattern id="{prefix}{kind}" width="5" height="4" patternUnits="userSpaceOnUse">'
            f'<rect width="3" height="4" fill="var(--{kind})" fill-opacity=".75"/></pattern>'
        )
    made.append(
        f'<pattern id="{prefix}bad" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="6" height="6" fill="var(--bad)"/>'
        '<rect width="2" height="6" fill="var(--paper)" fill-opacity=".45"/></pattern>'
    )
    return f"<defs>{''.join(made)}</defs>"


def end_mark(outcome: Outcome, x: float, y: float) -> str:
    """What stands behind a bar: how it ended, as a shape of at most 12 by 12 around a point."""
    n = number
    match outcome:
        case Outcome.FAILED | Outcome.TIMED_OUT | Outcome.TERMINATED:
            disc = f'<circle cx="{n(x)}" cy="{n(y)}" r="6" class="mark bad"/>'
            arms = f"M{n(x - 2.3)} {n(y - 2.3)}l4.6 4.6M{n(x + 2.3)} {n(y - 2.3)}l-4.6 4.6"
            return disc + path(arms, "cross")
        case Outcome.RETRYING:
            return path(
                f"M{n(x + 3.6)} {n(y - 2.4)}A4.4 4.4 0 1 0 {n(x + 4.4)} {n(y + 0.6)}", "line bad"
            ) + path(f"M{n(x + 5)} {n(y - 5)}v3.4h-3.4", "line bad")
        case Outcome.CANCELLED:
            ring = f'<circle cx="{n(x)}" cy="{n(y)}" r="4.4" class="line cancelled"/>'
            return ring + path(f"M{n(x - 3)} {n(y + 3)}l6 -6", "line cancelled")
        case Outcome.OPEN:
            return path(f"M{n(x - 3)} {n(y - 4.5)}L{n(x + 4)} {n(y)}L{n(x - 3)} {n(y + 4.5)}Z", "mark run")
        case Outcome.CONTINUED:
            return path(f"M{n(x - 4)} {n(y)}h8m-3 -3l3 3l-3 3", "line run")
        case Outcome.LEFT:
            return path(f"M{n(x - 3)} {n(y - 4)}v8", "line cancelled")
    return ""
