"""What people see: results on stdout, errors on stderr. No colour where none is wanted (`NO_COLOR`, a pipe), no lines broken
where a program reads, no complaint where nobody reads any more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from rich.console import Console
from rich.text import Text


@cache
def _console(*, stderr: bool) -> Console:
    return Console(stderr=stderr, highlight=False, emoji=False, markup=False)


def show(text: str | Text, *, whole: bool = False) -> None:
    """A line of output; `whole` ones, such as commands, are not broken between words: they get copied."""
    _say(_console(stderr=False), text, whole=whole)


def _say(out: Console, text: str | Text, *, whole: bool = False) -> None:
    """In a terminal broken between words, under its own indentation; as it is where a program reads."""
    if whole or not out.is_terminal:
        out.print(text, soft_wrap=True)
        return
    for line in (Text(text) if isinstance(text, str) else text).split("\n", allow_blank=True):
        body = line.plain.lstrip(" ")
        indent = len(line.plain) - len(body)
        rest = line[indent:] if indent else line
        for each in rest.wrap(out, max(out.width - indent, 20)) or [rest]:
            each.rstrip()
            out.print(Text.assemble(" " * indent, each), no_wrap=True, overflow="ignore", crop=False)


def room() -> int | None:
    """How many columns there are; None where a program reads, for which nothing is cut."""
    out = _console(stderr=False)
    return out.width if out.is_terminal else None


def rows() -> int | None:
    """How many lines a screen shows; None where a program reads."""
    out = _console(stderr=False)
    return out.height if out.is_terminal else None


@contextmanager
def live() -> Iterator[Callable[[Any], None]]:
    """Draw something again and again in its place, until the block ends."""
    from rich.live import Live

    with Live(console=_console(stderr=False), auto_refresh=False) as screen:
        yield lambda thing: screen.update(thing, refresh=True)


def note(text: str) -> None:
    """A remark for people, on stderr."""
    _say(_console(stderr=True), text)


def error(text: str) -> None:
    """An error: the first line says what, the others where and what to do."""
    _say(_console(stderr=True), Text.assemble(("error: ", "bold red"), text))


def stop_writing() -> None:
    """Nobody reads stdout any more: what is still buffered must not be written at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
