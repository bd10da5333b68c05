"""The errors that are raised in a test: parked runs, and errors in the test itself.

An error in the test itself is raised immediately. The error of a parked run is raised by the first wait after the run was
parked, and by every later wait for that run, because the run will never close.
"""

from __future__ import annotations

from collections import deque

from hourglass._evaluator.events import RunEvicted
from hourglass._worker.code_origin import where_raised
from hourglass._worker.health.parked import ParkedRuns
from hourglass._worker.health.stopping import LaneStopped
from hourglass.errors import NondeterminismError, ServiceError, WorkflowParked

# The eviction reasons of an engine that could not accept the completion of a run.
_REFUSED = frozenset(("FATAL", "NONDETERMINISM"))
_NOT_A_BUG = (KeyboardInterrupt, SystemExit)


class EnvironmentErrors(ParkedRuns):
    """The parked runs that the evaluations report, and the urgent errors that the driver reports."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        """Create an empty collection. With `is_quiet` nothing is logged, because `explore` reports the errors itself."""
        super().__init__()
        self._is_quiet = is_quiet
        self.urgent: deque[BaseException] = deque()
        """The errors to raise immediately."""
        self._unraised: deque[tuple[str, BaseException]] = deque()
        self._parked: dict[str, BaseException] = {}

    def add(self, error: BaseException) -> None:
        """Add an error that is raised immediately."""
        self.urgent.append(error)

    def parked(self) -> BaseException | None:
        """Return the error of a parked run that has not yet been raised, and mark it as raised."""
        return self._unraised.popleft()[1] if self._unraised else None

    @property
    def any_parked(self) -> bool:
        """Whether any run is parked."""
        return bool(self._parked)

    def is_parked(self, run_id: str) -> bool:
        """Whether a run is parked."""
        return run_id in self._parked

    def known(self) -> list[BaseException]:
        """Return the errors of all parked runs."""
        return list(self._parked.values())

    def of_run(self, run_id: str) -> BaseException | None:
        """Return the error of this run if it is parked, and mark it as raised."""
        error = self._parked.get(run_id)
        if error is not None:
            self._unraised = deque(entry for entry in self._unraised if entry[0] != run_id)
        return error

    def log_parked(
        self, workflow: str, workflow_id: str, run_id: str, error: BaseException | None, task_queue: str = ""
    ) -> None:
        """Record a run that was parked because of its code."""
        if error is not None and isinstance(error.__cause__, LaneStopped):
            return  # the code hung, and the guard that interrupted it reports that
        if not self._is_quiet:
            super().log_parked(workflow, workflow_id, run_id, error, task_queue)
        self._park(run_id, f"workflow {workflow} ({workflow_id})", error)

    def log_died(self, run_id: str, error: BaseException) -> None:
        """Record a run that could not be evaluated: its type is unknown, or Hourglass has a bug."""
        if not self._is_quiet:
            super().log_died(run_id, error)
        self._park(run_id, f"run {run_id}", error)

    def evicted(self, run_id: str, eviction: RunEvicted) -> None:
        """Record an eviction by the engine. Mark the run as parked if its completion was rejected."""
        if eviction.reason in _REFUSED:
            kind = NondeterminismError if eviction.reason == "NONDETERMINISM" else ServiceError
            self._park(run_id, f"run {run_id}", kind(eviction.message))

    def forget(self, run_id: str) -> bool:
        """Record that a run is no longer parked."""
        self._parked.pop(run_id, None)
        return super().forget(run_id)

    def _park(self, run_id: str, name: str, error: BaseException | None) -> None:
        if isinstance(error, WorkflowParked):
            error = error.__cause__ or error
        if error is not None and is_for_test_runner(error):
            self.urgent.append(error)
            return
        if run_id in self._parked:
            return
        self._parked[run_id] = parked = WorkflowParked(f"{name} is parked: {_described(error)}")
        parked.__cause__ = error
        self._unraised.append((run_id, parked))


def is_for_test_runner(error: BaseException) -> bool:
    """Whether an exception in user code is meant for the test runner: Ctrl-C, `pytest.fail`, `pytest.skip`."""
    return isinstance(error, _NOT_A_BUG) or _is_of_pytest(error)


def _is_of_pytest(error: BaseException | None) -> bool:
    # Compared by name, because pytest may not be installed.
    return any(base.__module__ == "_pytest.outcomes" for base in type(error).__mro__)


def _described(error: BaseException | None) -> str:
    if error is None:
        return "its task failed"
    raised_at = where_raised(error)
    place = f" at {raised_at[0]}:{raised_at[1]}" if raised_at is not None else ""
    return f"{type(error).__name__}{place}: {error}"
