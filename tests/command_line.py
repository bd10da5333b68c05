"""The `hourglass` command in this process, as its console script calls it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module


def main(arguments: Sequence[str]) -> int:
    """Run `hourglass` with these arguments and return its exit code."""
    code: int = import_module("hourglass.__main__").main(list(arguments))
    return code


def commands() -> list[str]:
    """Return the names of all commands, in the order of the help page."""
    return list(import_module("hourglass._tools.cli.app").COMMANDS)


def forget_consoles() -> None:
    """Let the next command look at its terminal again: consoles are kept for a process."""
    import_module("hourglass._tools.cli.console")._console.cache_clear()
