"""A story on a console: coloured lines as wide as the terminal, in ASCII if the terminal does not support Unicode.

If stdout is not a terminal, the picture has no colours, and a picture that would be redrawn is drawn only once, at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from hourglass._tools.cli.console import one_line, screen
from hourglass._tools.timeline.spans import Story
from hourglass._tools.timeline.terminal import LIMIT, lines
from hourglass._tools.timeline.text import near_place

STYLES = {
    "plain": "",
    "bold": "bold",
    "dim": "bright_black",
    "bad": "bold red",
    "good": "bold green",
    "cancelled": "yellow",
    "run": "bold",
    "activity": "blue",
    "local": "cyan",
    "timer": "yellow",
    "child": "magenta",
    "message": "green",
}


class Picture:
    """A story as an object that rich can print."""

    def __init__(self, story: Story, *, width: int | None = None, limit: int | None = None) -> None:
        faults = tuple(replace(fault, place=near_place(fault.place)) for fault in story.faults)
        self._story, self._width, self._limit = replace(story, faults=faults), width, limit or LIMIT

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = self._width or options.max_width
        for line in lines(self._story, width, plain=options.ascii_only, limit=self._limit):
            yield Text.assemble(
                *((one_line(text), STYLES[style]) for text, style in line), no_wrap=True, overflow="ignore"
            )


def show(picture: Picture, width: int | None = None) -> None:
    """Draw a picture on stdout. It is wider than the terminal only if `width` requests that."""
    screen(width=width).print(picture, crop=False, soft_wrap=True)


@contextmanager
def redrawn(width: int | None = None, *, quiet: bool = False) -> Iterator[Callable[[Picture], None]]:
    """Yield a function that redraws a picture in place until the block ends. It draws only if stdout is a terminal."""
    console = screen(width=width)
    if quiet or not console.is_terminal:
        yield lambda picture: None
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop", transient=True) as live:
        yield lambda picture: live.update(picture, refresh=True)


def is_seen() -> bool:
    """Whether stdout is a terminal."""
    return screen().is_terminal
