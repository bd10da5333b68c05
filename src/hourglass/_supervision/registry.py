"""Unique names for processes, removed when the process dies.

A registry can be used alone or as a child of a supervisor (`registry.as_child(id)`). As a child, it is empty
after each start, and rejects names while it is not running. A registry monitors processes but does not own
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from hourglass._supervision.exits import DeadProcess, NameTaken, NotRunning
from hourglass._supervision.process import Context, Down, Monitor, Process
from hourglass._supervision.spec import ChildSpec


class ProcessRegistry:
    """A registry of live processes by name."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[Process, Monitor]] = {}
        self._process: Process | None = None

    async def __call__(self, context: Context) -> None:
        """Run as a process, so that children that depend on the names are restarted with the registry."""
        self._clear()
        self._process = context.process
        context.process.monitor(self._on_own_end)
        await context.started(self)
        await asyncio.get_running_loop().create_future()

    def as_child(self, id: str) -> ChildSpec:
        """Return the spec of this registry as a child of a supervisor."""
        return ChildSpec(id, self)

    def register(self, name: Hashable, process: Process) -> None:
        """Register a live process under a name. Raise `NameTaken` if another live process has the name."""
        if self._process is not None and not self._process.alive:
            raise NotRunning(f"cannot register {name!r}: the registry {self._process.path} is down")
        if not process.alive:
            raise DeadProcess(f"cannot register {name!r}: {process.path} is dead")
        if name in self._entries:
            holder = self._entries[name][0]
            raise NameTaken(
                f"cannot register {process.path} as {name!r}: {holder.path} already has this name"
            )
        monitor = process.monitor(lambda down: self._on_end(name, down))
        self._entries[name] = (process, monitor)

    def unregister(self, name: Hashable) -> None:
        entry = self._entries.pop(name, None)
        if entry is not None:
            entry[1].cancel()

    def whereis(self, name: Hashable) -> Process | None:
        entry = self._entries.get(name)
        return entry[0] if entry is not None else None

    def names(self) -> tuple[Hashable, ...]:
        """Return all names, oldest first."""
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
