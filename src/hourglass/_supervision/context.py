"""A process's own view of itself: what its body is given, and all that it can say and do in the tree.

Every method first asks whether the process lives: a body that outlives its process (it swallowed a kill) gets
`DeadProcess`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from hourglass._supervision.failures import DeadProcess
from hourglass._supervision.node import Node
from hourglass._supervision.process import Family, Process, Terminate
from hourglass._supervision.spec import ChildSpec, Start


class Context:
    """What a process has in its hands: the way to say that it has started, and to have children of its own."""

    __slots__ = ("process",)

    def __init__(self, process: Process) -> None:
        self.process = process

    @property
    def path(self) -> str:
        """Where in the tree it is, such as `Application/Subsystem/BridgeHolder`."""
        return self.process.path

    @property
    def node(self) -> Node:
        """What it shares with all of its tree."""
        return self._alive().node

    async def started(self, value: Any = None) -> None:
        """I am ready: the next child may start. `value` is what other processes find in `process.value`."""
        self._alive().has_started(value)

    def on_terminate(self, callback: Terminate) -> None:
        """Run this on an ordered stop, before the body is cancelled; never on a kill. The latest callback counts."""
        self._alive().set_terminate(callback)

    def shows(self, family: Family) -> None:
        """How the tree finds its children."""
        self._alive().family = family

    def spawn(self, spec: ChildSpec) -> Process:
        """Start a child that is linked to this process; `await child.wait_started()` waits until it is ready."""
        child = Process(self.node, spec.id, self.process)
        launch(child, spec)
        return child

    def spawn_task(self, id: str, body: Coroutine[Any, Any, object]) -> Process:
        """Start a linked child that needs no start of its own and is reported only if it ends badly."""
        try:
            child = Process(self.node, id, self.process, quiet=True)
        except DeadProcess:
            body.close()
            raise
        child.has_started(None)
        child.run(body)
        return child

    def _alive(self) -> Process:
        if not self.process.alive:
            raise DeadProcess(
                f"{self.process.path} is dead ({self.process.exit}) and can do nothing any more"
            )
        return self.process


def launch(process: Process, spec: ChildSpec) -> None:
    """Give a process the body that its spec describes."""
    limit = spec.start_limit
    process.run(_body(spec.start, Context(process)), start_limit=None if limit == "infinity" else limit)


async def _body(start: Start, context: Context) -> object:
    # Called in here, so that a start that is no coroutine function is a failed start as any other.
    return await start(context)
