"""The manual's page about the command line names every command."""

from __future__ import annotations

import re
from pathlib import Path

from command_line import commands

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"


def test_every_command_is_documented() -> None:
    text = PAGE.read_text()
    silent = [name for name in commands() if f"`{name}`" not in text and f"hourglass {name}" not in text]
    assert not silent, f"docs/cli.md says nothing of {', '.join(silent)}"
    called = set(re.findall(r"^\$ hourglass (\w+)", text, re.M))
    assert called <= set(commands())
