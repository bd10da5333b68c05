"""What people see in a narrow terminal: lines broken between words under their own indentation; commands whole."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

from hourglass._cli import console


def said(text: str | Text, *, terminal: bool = True, whole: bool = False) -> str:
    """What a console of 30 columns shows, without colours."""
    out = Console(file=io.StringIO(), force_terminal=terminal, width=30, color_system=None, highlight=False)
    console._say(out, text, whole=whole)
    shown = out.file
    assert isinstance(shown, io.StringIO)
    return shown.getvalue()


def test_lines_break_between_words() -> None:
    """Each line of a message keeps its indentation when it is broken."""
    text = "one\n  the words of this line need more than one\n\nlast"
    assert said(text) == "one\n  the words of this line need\n  more than one\n\nlast\n"


def test_styles_survive() -> None:
    """A line in several styles is broken like any other."""
    assert said(Text.assemble(("error: ", "bold red"), "a message that is longer than that")) == (
        "error: a message that is\nlonger than that\n"
    )


def test_commands_stay_whole() -> None:
    """What gets copied is one line for the terminal to break; so is everything where a program reads."""
    command = "    hourglass why order-1 --target local:orders.db"
    assert said(command, whole=True) == f"{command}\n"
    assert said(command, terminal=False) == f"{command}\n"
