"""What a worker tells of itself: its queue, its figures, its tree, its status. Nothing here waits but the tree."""

from __future__ import annotations

from typing import Any

from hourglass._runtime.application import Application
from hourglass._runtime.plan import Plan
from hourglass._runtime.portal import Portal
from hourglass._runtime.services import QueueServices
from hourglass._runtime.status import StatusServer, status_report
from hourglass._runtime.worker_life import WorkerLife
from hourglass._runtime.worker_view import WorkerStatistics, WorkerTree, worker_statistics
from hourglass.errors import UsageError


class WorkerFacts:
    """A worker's facts. Workers are made by `Worker(…)`."""

    _plan: Plan
    _life: WorkerLife
    _status: StatusServer | None
    _application: Application | None
    _services: dict[str, QueueServices]

    @property
    def task_queue(self) -> str:
        """The task queue it serves."""
        return self._plan.config.task_queue

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.task_queue!r}, {self._life.state}>"

    @property
    def tree(self) -> WorkerTree:
        """The supervision tree that this worker is part of, for looking and for fire drills."""
        return WorkerTree(self._portal, lambda: self._app.require_tree())

    def statistics(self) -> WorkerStatistics:
        """How the worker is doing. Cheap, from any thread."""
        return worker_statistics(
            self.task_queue, self._life.state, self._application, list(self._services.values())
        )

    @property
    def status_address(self) -> str | None:
        """Where the status endpoint listens; None if it was not asked for."""
        return None if self._status is None else self._status.address

    def _report(self) -> dict[str, Any]:
        return status_report(self._app, self._life.state)

    @property
    def _app(self) -> Application:
        if self._application is None:
            raise UsageError("this worker has not been started")
        return self._application

    @property
    def _portal(self) -> Portal:
        raise NotImplementedError
