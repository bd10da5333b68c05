"""Output in a narrow terminal: lines break between words and keep their indentation; commands stay on one line."""

from __future__ import annotations

import io
import os

import pytest
from rich.console import Console
from rich.pager import SystemPager
from rich.text import Text

from hourglass._tools.cli import console


def render(text: str | Text, *, terminal: bool = True, whole: bool = False) -> str:
    """Return the output of a console of 30 columns, without colours."""
    out = Console(file=io.StringIO(), force_terminal=terminal, width=30, color_system=None, highlight=False)
    console._print(out, text, soft_wrap=whole)
    stream = out.file
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def test_console_breaks_lines_between_words_and_keeps_indentation() -> None:
    text = "one\n  the words of this line need more than one\n\nlast"
    assert render(text) == "one\n  the words of this line need\n  more than one\n\nlast\n"


def test_console_breaks_styled_text_like_plain_text() -> None:
    assert render(Text.assemble(("error: ", "bold red"), "a message that is longer than that")) == (
        "error: a message that is\nlonger than that\n"
    )


def test_console_does_not_break_commands_or_piped_output() -> None:
    command = "    hourglass why order-1 --target local:orders.db"
    assert render(command, whole=True) == f"{command}\n"
    assert render(command, terminal=False) == f"{command}\n"


@pytest.mark.parametrize(
    ("less_option", "options", "coloured"), [(None, "FRX", True), ("-R", "-R", True), ("-S", "-S", False)]
)
def test_pager_gets_colours_only_if_its_options_support_them(
    less_option: str | None, options: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LESS", less_option or "")
    if less_option is None:
        monkeypatch.delenv("LESS")
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system="256")
    monkeypatch.setattr(console, "_console", lambda *, stderr: terminal)
    paged: list[str] = []
    monkeypatch.setattr(SystemPager, "show", lambda _, content: paged.append(content))
    console.show_page("# Heading\n\n```python\nimport os\n```")
    assert "Heading" in paged[0]
    assert ("\x1b[" in paged[0]) is coloured
    assert os.environ["LESS"] == options
