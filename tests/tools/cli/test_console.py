"""Output in a narrow terminal: lines break between words and keep their indentation; commands stay on one line."""

from __future__ import annotations

import io
import os

import pytest
from rich.console import Console
from rich.pager import SystemPager
from rich.text import Text

from hourglass._tools.cli import console


def said(text: str | Text, *, terminal: bool = True, whole: bool = False) -> str:
    """Return the output of a console of 30 columns, without colours."""
    out = Console(file=io.StringIO(), force_terminal=terminal, width=30, color_system=None, highlight=False)
    console._say(out, text, whole=whole)
    shown = out.file
    assert isinstance(shown, io.StringIO)
    return shown.getvalue()


def test_lines_break_between_words() -> None:
    text = "one\n  the words of this line need more than one\n\nlast"
    assert said(text) == "one\n  the words of this line need\n  more than one\n\nlast\n"


def test_styles_survive_line_breaks() -> None:
    assert said(Text.assemble(("error: ", "bold red"), "a message that is longer than that")) == (
        "error: a message that is\nlonger than that\n"
    )


def test_commands_are_not_broken() -> None:
    command = "    hourglass why order-1 --target local:orders.db"
    assert said(command, whole=True) == f"{command}\n"
    assert said(command, terminal=False) == f"{command}\n"


@pytest.mark.parametrize(
    ("given", "options", "coloured"), [(None, "FRX", True), ("-R", "-R", True), ("-S", "-S", False)]
)
def test_pager_shows_colours_if_supported(
    given: str | None, options: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LESS", given or "")
    if given is None:
        monkeypatch.delenv("LESS")
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system="256")
    monkeypatch.setattr(console, "_console", lambda *, stderr: terminal)
    paged: list[str] = []
    monkeypatch.setattr(SystemPager, "show", lambda _, content: paged.append(content))
    console.show_page("# Heading\n\n```python\nimport os\n```")
    assert "Heading" in paged[0]
    assert ("\x1b[" in paged[0]) is coloured
    assert os.environ["LESS"] == options
