"""Where in the code each command was asked for, by which fiber, and the orders in which SDKs would have asked. Pure.

Must not know: events, what commands lead to. Two timers of the same length that were started in one task look alike in a history;
which is which follows only from the order in which they were asked for. That order is not the same everywhere: a function that
is spawned begins at once in TypeScript and .NET, and in the next turn in Python and here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from hourglass._engine import commands as c
from hourglass._engine.context import Site
from hourglass._engine.state import CommandId, PathStep

NOWHERE: Site = ("", 0)
ORDERS = 3
"""As asked for here; as if spawned functions began at once; the last first."""

C = TypeVar("C", bound=c.Command)
_Path: TypeAlias = tuple[PathStep, ...]
Turn: TypeAlias = tuple[int, int, tuple[tuple[bool, PathStep], ...], int]


class _Origin(msgspec.Struct, frozen=True):
    command: c.Command
    site: Site
    turn: Turn
    """When it would be asked for where spawned functions begin at once: those of one fiber one after another."""


class Origins:
    """What is known of all commands of a run."""

    def __init__(self) -> None:
        self._known: dict[int, _Origin] = {}
        self._numbered: dict[tuple[type[c.Command], int], _Origin] = {}
        self._batches = 0

    def note(
        self, commands: Sequence[tuple[c.Command, Site]], ids: Iterable[CommandId], there: Collection[_Path]
    ) -> None:
        """These were asked for in one activation, in this order; the fibers with these paths had been there before it."""
        self._batches += 1
        first: dict[_Path, int] = {}
        for place, ((command, site), (path, _)) in enumerate(zip(commands, ids, strict=True)):
            elder = _elder(path, there)
            own = tuple((isinstance(step, str), step) for step in path[len(elder) :])
            turn = (self._batches, first.setdefault(elder, place), own, place)
            origin = self._known[id(command)] = _Origin(command, site, turn)
            self._numbered[type(command), getattr(command, "seq", 0)] = origin

    def site(self, command: c.Command) -> Site:
        """File and line."""
        found = self._find(command)
        return NOWHERE if found is None else found.site

    def _find(self, command: c.Command) -> _Origin | None:
        found = self._known.get(id(command))
        if found is not None and found.command is command:
            return found
        # A child's command is kept with its namespace filled in: it is found by its number.
        return self._numbered.get((type(command), getattr(command, "seq", 0)))

    def ordered(self, commands: Sequence[C], order: int) -> list[C]:
        """Commands, as they were asked for, in one of the orders, numbered from 0."""
        if order == 0 or len(commands) < 2:
            return list(commands)
        if order == 2:
            return list(reversed(commands))
        return sorted(commands, key=self.turn)

    def turn(self, command: c.Command) -> Turn:
        """Where a command stands in the second of the orders."""
        found = self._find(command)
        return (0, 0, (), 0) if found is None else found.turn


def _elder(path: _Path, there: Collection[_Path]) -> _Path:
    """The fiber itself, or the nearest of those that spawned it which was there before the activation."""
    top = 2 if path and isinstance(path[0], str) else 0  # a handler, or the body
    return next((path[:size] for size in range(len(path), top, -1) if path[:size] in there), path[:top])
