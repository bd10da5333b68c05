"""A process without a body: the work is done elsewhere, by callbacks, and whoever does it says when it has ended.

There may be ten thousand of them in a second, so its whole life is two calls, and what nobody asks for is not made. It is seen,
stopped, killed and monitored as any other process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from hourglass._supervision.exits import NORMAL, Exit
from hourglass._supervision.process import Process
from hourglass._supervision.states import State

OnDeath: TypeAlias = Callable[[Exit], object]

_RUNNING, _DEAD = State.RUNNING, State.DEAD


class Job(Process):
    """One piece of work. `on_death` is called when it ends, whatever the reason, before any monitor."""

    __slots__ = ("_name", "_number", "on_death")

    def __init__(self, parent: Process, name: str, number: int, on_death: OnDeath | None) -> None:
        # Not `super().__init__`: this is half the cost of a job, and a job begins where others arrive.
        self.parent: Process | None = parent
        self.node = parent.node
        self.state = _RUNNING
        self.exit = self.value = self.returned = None
        self.started_at = 0.0
        self.family = tuple
        self.links = {}
        self._quiet = True
        self._monitors = {}
        self._waiters = self._timer = self._terminate = self._terminating = None
        self._failure = self._body = None
        self._name = name
        self._number = number
        self.on_death = on_death
        parent.links[self] = None

    @property
    def id(self) -> str:  # type: ignore[override]
        """Its name and number."""
        return f"{self._name}-{self._number}"

    @property
    def path(self) -> str:  # type: ignore[override]
        """Where in the tree it is."""
        return f"{self.parent.path}/{self.id}" if self.parent else self.id

    def finish(self, error: BaseException | None = None) -> None:
        """Its work is done, or has failed with `error`. Nothing happens if it is dead."""
        if self.state is not _RUNNING or error is not None or self._waiters or self._monitors:
            super().finish(error)
            return
        self.state, self.exit = _DEAD, NORMAL
        assert self.parent is not None
        self.parent.links.pop(self, None)
        on_death, self.on_death = self.on_death, None
        if on_death is not None:
            self.guarded(on_death, NORMAL)

    def drop(self) -> None:
        """It was for nothing: it dies without a word to `on_death`."""
        self.on_death = None
        self.kill()

    def _tell(self, reason: Exit) -> None:
        if self.on_death is not None:
            on_death, self.on_death = self.on_death, None
            self.guarded(on_death, reason)
        super()._tell(reason)
