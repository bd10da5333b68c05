"""`hourglass` commands on the pages of the manual: each exists, with all its options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from hourglass._tools.cli.app import build

from .test_pages import PAGES, blocks_of

CLI = get_command(build([]))
_TYPED = re.compile(r"^\$ (?:\w+=\S+ )*(?:\S*/)?hourglass (.+)$", re.M)
_INLINE = re.compile(r"`hourglass ([a-z][^`]*)`")


def typed_in(page: Path) -> list[list[str]]:
    """Return the words of each command in a page's console blocks."""
    texts = [block.text.replace("\\\n", " ") for block in blocks_of(page) if block.language == "console"]
    return [shlex.split(line, comments=True) for text in texts for line in _TYPED.findall(text)]


def named_in(page: Path) -> list[list[str]]:
    """Return the words of each command named in a page's text."""
    return [found.split() for found in _INLINE.findall(page.read_text())]


def unknown(words: list[str]) -> list[str]:
    """Return the command or options of a command line that do not exist."""
    commands = CLI.commands  # type: ignore[attr-defined]
    if words[0] not in commands:
        return words[:1]
    command = commands[words[0]]
    if hasattr(command, "commands"):  # a group of commands: the next word is one of them
        if words[1:2] and words[1] not in command.commands:
            return words[:2]
        command = command.commands[words[1]] if words[1:] else command
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {"--help"}
    given = [word.split("=")[0] for word in words[1:] if word.startswith("--")]
    return [option for option in given if option not in options]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_on_the_pages_exist(page: Path) -> None:
    assert [(words, unknown(words)) for words in typed_in(page) if unknown(words)] == []
    assert [(words, unknown(words)) for words in named_in(page) if unknown(words)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_message_name_precedes_the_workflow_id(page: Path) -> None:
    """The ids of internal workflows, which begin with `hourglass.`, reveal the opposite order."""
    sent = [words for words in typed_in(page) + named_in(page) if words[0] in ("signal", "query", "update")]
    assert [words for words in sent if len(words) > 1 and words[1].startswith("hourglass.")] == []


def test_invalid_command_on_a_page_is_detected() -> None:
    assert sum(len(typed_in(page)) for page in PAGES) > 30
    assert sum(len(named_in(page)) for page in PAGES) > 10
    assert unknown(["shwo", "order-1"]) == ["shwo"]
    assert unknown(["show", "order-1", "--htlm", "x"]) == ["--htlm"]
    assert unknown(["schedule", "crate", "x"]) == ["schedule", "crate"]
    assert unknown(["schedule", "create", "--evry", "x"]) == ["--evry"]
