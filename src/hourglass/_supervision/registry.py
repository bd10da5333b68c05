"""Names for processes: unique, and gone when the process dies.

A registry works by itself, or as a child of a supervisor (`registry.as_child(id)`): then it is empty after each
start, and refuses names while it is down. It watches processes and owns none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from hourglass._supervision.exits import DeadProcess, NameTaken, NotRunning
from hourglass._supervision.process import Context, Down, Monitor, Process
from hourglass._supervision.spec import ChildSpec


class ProcessRegistry:
    """The living processes by their names."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[Process, Monitor]] = {}
        self._process: Process | None = None

    async def __call__(self, context: Context) -> None:
        """Be a process, so that children that depend on the names can be restarted with them."""
        self._clear()
        self._process = context.process
        context.process.monitor(self._on_own_end)
        await context.started(self)
        await asyncio.get_running_loop().create_future()

    def as_child(self, id: str) -> ChildSpec:
        """This registry as a child of a supervisor."""
        return ChildSpec(id, self)

    def register(self, name: Hashable, process: Process) -> None:
        """Give a living process a name; `NameTaken` if another living one has it."""
        if self._process is not None and not self._process.alive:
            raise NotRunning(f"cannot register {name!r}: the registry {self._process.path} is down")
        if not process.alive:
            raise DeadProcess(f"cannot register {name!r}: {process.path} is dead")
        if name in self._entries:
            holder = self._entries[name][0]
            raise NameTaken(f"cannot register {process.path} as {name!r}: {holder.path} has that name")
        monitor = process.monitor(lambda down: self._on_end(name, down))
        self._entries[name] = (process, monitor)

    def unregister(self, name: Hashable) -> None:
        """Take a name back. Idempotent."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            entry[1].cancel()

    def whereis(self, name: Hashable) -> Process | None:
        """The process of that name, if there is one."""
        entry = self._entries.get(name)
        return entry[0] if entry is not None else None

    def names(self) -> tuple[Hashable, ...]:
        """All names, oldest first."""
        return tuple(self._entries)

    def _on_end(self, name: Hashable, down: Down) -> None:
        if self.whereis(name) is down.process:
            del self._entries[name]

    def _on_own_end(self, down: Down) -> None:
        if self._process is down.process:
            self._clear()

    def _clear(self) -> None:
        for name in self.names():
            self.unregister(name)
