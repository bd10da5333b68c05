"""`hourglass docs`: show the manual that is part of the package, as a list of pages or a single page."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from hourglass._tools.cli import connecting, console
from hourglass._tools.cli.connecting import Json
from hourglass._tools.cli.console import Column, lines
from hourglass.errors import UsageError

_COLUMNS = (Column("PAGE"), Column("TITLE"))
_FIRST = ("index", "tutorial", "examples", "concepts")
"""The pages to read first."""


def docs(
    page: Annotated[
        str | None,
        typer.Argument(metavar="PAGE", help="A page, such as cli or howto/sagas.  [default: list all]"),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option("--search", "-s", metavar="TEXT", help="List the pages that contain this text."),
    ] = None,
    path: Annotated[bool, typer.Option("--path", help="Show the path of the page's file.")] = False,
    json: Json = False,
) -> None:
    """Read the manual, which is included in the package.

    It is the manual of this version, and needs no network. A terminal shows formatted text, a pipe receives Markdown.

    \b
    Examples:
      hourglass docs
      hourglass docs tutorial
      hourglass docs howto/sagas | less
      hourglass docs --search "continue_as_new"
    """
    root = manual()
    if page is None:
        _list(root, search, json)
        return
    file = _found(root, page)
    if path or json:
        if json:
            connecting.write_json({"page": _name(root, file), "file": str(file)})
        else:
            console.show(str(file), soft_wrap=True)
        return
    console.show_page(file.read_text(encoding="utf-8").rstrip("\n"))


def manual() -> Path:
    """Return the directory of the manual, either in the package or beside the sources in a checkout."""
    package = Path(__file__).parents[2]
    for folder in (package / "_manual", package.parents[1] / "docs"):
        if (folder / "index.md").is_file():
            return folder
    raise UsageError(
        "this installation of Hourglass has no manual: pip install --force-reinstall hourglass-temporal"
    )


def pages(root: Path) -> list[Path]:
    """Return all pages: the pages to read first, then the rest of the manual, the how-tos and the reference."""
    files = [file for file in root.rglob("*.md") if file.is_file()]
    first = {name: at for at, name in enumerate(_FIRST)}
    return sorted(
        files,
        key=lambda file: (len(file.relative_to(root).parts), first.get(_name(root, file), len(first)), file),
    )


def _name(root: Path, page: Path) -> str:
    return page.relative_to(root).with_suffix("").as_posix()


def _list(root: Path, search: str | None, json: bool) -> None:
    rows: list[tuple[str, str]] = []
    for file in pages(root):
        text = file.read_text(encoding="utf-8")
        if search is None or search.casefold() in text.casefold():
            title = next((line for line in text.splitlines() if line.startswith("# ")), "# ")
            rows.append((_name(root, file), title.removeprefix("# ")))
    pages_found = [{"page": name, "title": title} for name, title in rows]
    table = lines(_COLUMNS, [[(name, ""), (title, "")] for name, title in rows], console.room())
    connecting.report_found(pages_found, table, json, nothing=f"no page contains {search!r}")
    if rows and not json:
        begin = "; start with `hourglass docs tutorial`" if search is None else ""
        console.show(f"`hourglass docs PAGE` shows a page{begin}")


def _found(root: Path, page: str) -> Path:
    """Return a page by its name, its path, or the last part of its path. Raise `UsageError` if there is none."""
    requested = page.removeprefix("docs/").removesuffix(".md").strip("/")
    names = {_name(root, file): file for file in pages(root)}
    if requested in names:
        return names[requested]
    ending = [name for name in names if name.rpartition("/")[2] == requested]
    if len(ending) == 1:
        return names[ending[0]]
    near = ending or get_close_matches(requested, list(names), 3, 0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "`hourglass docs` lists all pages"
    raise UsageError(f"the manual has no page {page!r}: {hint}")
