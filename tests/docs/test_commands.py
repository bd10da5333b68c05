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


def console_commands(page: Path) -> list[list[str]]:
    """Return the words of each command in a page's console blocks."""
    texts = [block.text.replace("\\\n", " ") for block in blocks_of(page) if block.language == "console"]
    return [shlex.split(line, comments=True) for text in texts for line in _TYPED.findall(text)]


def inline_commands(page: Path) -> list[list[str]]:
    """Return the words of each command named in a page's text."""
    return [found.split() for found in _INLINE.findall(page.read_text())]


def unknown_words(words: list[str]) -> list[str]:
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
    used = [word.split("=")[0] for word in words[1:] if word.startswith("--")]
    return [option for option in used if option not in options]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_in_the_manual_exist(page: Path) -> None:
    assert [(words, unknown_words(words)) for words in console_commands(page) if unknown_words(words)] == []
    assert [(words, unknown_words(words)) for words in inline_commands(page) if unknown_words(words)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_in_the_manual_name_the_message_before_the_workflow_id(page: Path) -> None:
    """The ids of internal workflows, which begin with `hourglass.`, reveal the opposite order."""
    sent = [
        words
        for words in console_commands(page) + inline_commands(page)
        if words[0] in ("signal", "query", "update")
    ]
    assert [words for words in sent if len(words) > 1 and words[1].startswith("hourglass.")] == []


def test_invalid_command_in_the_manual_is_detected() -> None:
    assert sum(len(console_commands(page)) for page in PAGES) > 30
    assert sum(len(inline_commands(page)) for page in PAGES) > 10
    assert unknown_words(["shwo", "order-1"]) == ["shwo"]
    assert unknown_words(["show", "order-1", "--htlm", "x"]) == ["--htlm"]
    assert unknown_words(["schedule", "crate", "x"]) == ["schedule", "crate"]
    assert unknown_words(["schedule", "create", "--evry", "x"]) == ["--evry"]
