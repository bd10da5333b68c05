"""A process without a body: the work is done elsewhere, by callbacks, and the last of them calls `finish`.

There may be ten thousand of them in a second, so its whole life is two calls, and what is not asked for (monitors,
waiters, its path as text) is not made. It is seen, stopped, killed and monitored as any other process.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import cast

from hourglass._supervision.exits import NORMAL, Exit
from hourglass._supervision.node import logger
from hourglass._supervision.process import Process
from hourglass._supervision.states import State

_RUNNING, _DEAD = State.RUNNING, State.DEAD
_NO_LINKS = cast("dict[Process, None]", MappingProxyType({}))


class Job(Process):
    """One piece of work, made by `TaskSupervisor.spawn_job`. A subclass carries what the work needs, and hears of its end."""

    __slots__ = ("_is_dropped", "_name", "_number")

    def __init__(self, parent: Process, name: str, number: int) -> None:
        # Not `super().__init__`: this is half the cost of a job, and a job skips states: it is running at once.
        self.parent: Process | None = parent
        self.node = parent.node
        self.state = _RUNNING
        self.exit = self.value = self.returned = None
        self.started_at = 0.0
        self.family = tuple
        self.links = _NO_LINKS  # a process without a body cannot have children
        self._quiet = True
        self._monitors = self._waiters = self._timer = self._terminate = self._terminating = None
        self._failure = self._body = None
        self._name = name
        self._number = number
        self._is_dropped = False
        parent.links[self] = None

    @property
    def id(self) -> str:  # type: ignore[override]
        """Its name and number."""
        return f"{self._name}-{self._number}"

    @property
    def path(self) -> str:  # type: ignore[override]
        """Where in the tree it is."""
        return f"{self.parent.path}/{self.id}" if self.parent else self.id

    def on_death(self, reason: Exit) -> None:
        """It has ended, whatever the reason; called before any monitor."""

    def finish(self, error: BaseException | None = None) -> None:
        """Its work is done, or has failed with `error`. Nothing happens if it is dead."""
        if self.state is not _RUNNING or error is not None or self._waiters or self._monitors:
            super().finish(error)
            return
        # The usual end, the short way: without monitors, waiters and an error the rest of `Process.finish` does
        # nothing.
        self.state, self.exit = _DEAD, NORMAL
        assert self.parent is not None
        self.parent.links.pop(self, None)
        try:
            self.on_death(NORMAL)
        except Exception:
            logger.exception("what follows the end of %s failed", self.path)

    def drop(self) -> None:
        """It was for nothing: it dies without a word to `on_death`."""
        self._is_dropped = True
        self.kill()

    def _tell(self, reason: Exit) -> None:
        if not self._is_dropped:
            self.guarded(self.on_death, reason)
        super()._tell(reason)
