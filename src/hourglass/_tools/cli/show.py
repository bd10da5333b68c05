"""`hourglass show`: the steps of a run, as a timeline in the terminal, a page, a picture, or JSON."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from hourglass._tools.cli import connecting, console, picture
from hourglass._tools.cli.connecting import DecodingEngine, RunId
from hourglass.errors import UsageError

if TYPE_CHECKING:
    from hourglass._tools.timeline.spans import Story
    from hourglass._tools.timeline.watching import Watched

What: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="ID|FILE", help="A workflow's id, or a file with a history in JSON (- for stdin)."
    ),
]
Html: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML page.")]
Svg: TypeAlias = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a picture.")]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Write JSON to stdout.")]
Width: TypeAlias = Annotated[
    int | None, typer.Option(min=40, max=1000, metavar="N", help="Columns.  [default: the terminal's]")
]
Rows: TypeAlias = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Fold similar rows beyond this number.")
]
Follow: TypeAlias = Annotated[bool, typer.Option("--follow", "-f", help="Follow until the run closes.")]
Payloads: TypeAlias = Annotated[
    bool, typer.Option("--payloads", help="Show arguments and results, shortened. They may be secret.")
]
Children: TypeAlias = Annotated[bool, typer.Option("--children", help="Also show what children did.")]

_PAUSE = 1.0


def show(
    what: What,
    *,
    engine: DecodingEngine,
    run_id: RunId = None,
    html: Html = None,
    svg: Svg = None,
    json: Json = False,
    width: Width = None,
    rows: Rows = None,
    follow: Follow = False,
    payloads: Payloads = False,
    children: Children = False,
) -> None:
    """Show what a workflow did, when, and what it waited for.

    Works on live and closed runs, and on histories that Temporal's web UI or command line exported.

    \b
    Examples:
      hourglass show order-1
      hourglass show order-1 --target localhost:7233 --follow
      hourglass show history.json --html order-1.html
    """
    from hourglass._tools.timeline.spans import document
    from hourglass._tools.timeline.values import hidden, peek
    from hourglass._tools.timeline.watching import Watched, decoder, is_file, story_of_file

    chosen = engine.payload_codec()
    show_values = peek(None if chosen is None else decoder(chosen)) if payloads else hidden
    if is_file(what) and engine.target is None and run_id is None:
        if follow or children:
            raise UsageError("--follow and --children need a workflow id, not a file")
        story = story_of_file(what, show_values, chosen)
    else:
        with engine.connect(about=what, run_id=run_id) as client:
            watched = Watched(client, what, run_id, show_values, children)
            story = _follow(watched, width, rows, quiet=json) if follow else watched.story()
    _write(story, html, svg, rows)
    if json:
        connecting.write_json(document(story))
    elif html is None and svg is None:
        picture.show(picture.Picture(story, width=width, limit=rows), width)


def _write(story: Story, html: Path | None, svg: Path | None, rows: int | None) -> None:
    from hourglass._tools.timeline import html as page
    from hourglass._tools.timeline import svg as drawing

    for path, draw in ((html, page.draw), (svg, drawing.draw)):
        if path is None:
            continue
        try:
            path.write_text(draw(story, limit=rows or drawing.LIMIT), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be written: {error.strerror}") from error
        console.note(f"written: {path}")


def _follow(watched: Watched, width: int | None, rows: int | None, *, quiet: bool) -> Story:
    """Draw the run until it closes, and return the last story."""
    never = threading.Event()
    stories = watched.stories(lambda: never.wait(_PAUSE))
    story = next(stories)
    with picture.redrawn(width, quiet=quiet) as redraw:
        redraw(picture.Picture(story, width=width, limit=rows))
        for story in stories:
            redraw(picture.Picture(story, width=width, limit=rows))
    return story
