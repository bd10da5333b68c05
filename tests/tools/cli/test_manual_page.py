"""The manual's page about the command line names every command."""

from __future__ import annotations

import re
from pathlib import Path

from command_line import commands

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"


def test_cli_page_documents_every_command() -> None:
    text = PAGE.read_text()
    undocumented = [
        name for name in commands() if f"`{name}`" not in text and f"hourglass {name}" not in text
    ]
    assert not undocumented, f"docs/cli.md says nothing of {', '.join(undocumented)}"
    used = set(re.findall(r"^\$ hourglass (\w+)", text, re.M))
    assert used <= set(commands())
