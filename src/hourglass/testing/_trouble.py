"""What must not pass in silence: runs that are parked, and what else a test has to hear of.

What is wrong with the test itself is raised at once. A parked run is told once, by the wait that meets it first, and
again by each wait for that very run, which will never close.
"""

from __future__ import annotations

from collections import deque

from hourglass._engine.events import RunEvicted
from hourglass._runtime.code_origin import where_raised
from hourglass._runtime.hung import LaneStopped
from hourglass._runtime.parked import ParkedRuns
from hourglass.errors import NondeterminismError, ServiceError, WorkflowParked

# Why an engine evicts a run whose task it could not accept.
_REFUSED = frozenset(("FATAL", "NONDETERMINISM"))
_NOT_A_BUG = (KeyboardInterrupt, SystemExit)


class Troubles(ParkedRuns):
    """Hears of parked runs from the evaluations, and of the rest from the driver."""

    def __init__(self) -> None:
        super().__init__()
        self.urgent: deque[BaseException] = deque()
        """What the test must hear of at once."""
        self._untold: deque[tuple[str, BaseException]] = deque()
        self._parked: dict[str, BaseException] = {}

    def add(self, error: BaseException) -> None:
        """Something that the test must hear of at once."""
        self.urgent.append(error)

    def parked(self) -> BaseException | None:
        """Why a run is parked, if that was not told yet."""
        return self._untold.popleft()[1] if self._untold else None

    @property
    def any_parked(self) -> bool:
        """Whether any run is parked."""
        return bool(self._parked)

    def is_parked(self, run_id: str) -> bool:
        """Whether a run is parked."""
        return run_id in self._parked

    def known(self) -> list[BaseException]:
        """Why runs are parked, told or not."""
        return list(self._parked.values())

    def of_run(self, run_id: str) -> BaseException | None:
        """Why this run is parked; it then counts as told."""
        error = self._parked.get(run_id)
        if error is not None:
            self._untold = deque(each for each in self._untold if each[0] != run_id)
        return error

    # --- what the evaluations say (ParkedRuns) ------------------------------------------------------------

    def say_parked(self, workflow: str, workflow_id: str, run_id: str, error: BaseException | None) -> None:
        """A run's code has a bug."""
        if error is not None and isinstance(error.__cause__, LaneStopped):
            return  # it hung, and whoever interrupted it says so
        super().say_parked(workflow, workflow_id, run_id, error)
        self._park(run_id, f"workflow {workflow} ({workflow_id})", error)

    def say_died(self, run_id: str, error: BaseException) -> None:
        """A run could not be evaluated: its type is unknown, or we have a bug."""
        super().say_died(run_id, error)
        self._park(run_id, f"run {run_id}", error)

    def evicted(self, run_id: str, eviction: RunEvicted) -> None:
        """The engine has taken a run away; where it could not take the run's answer, it never will."""
        if eviction.reason in _REFUSED:
            kind = NondeterminismError if eviction.reason == "NONDETERMINISM" else ServiceError
            self._park(run_id, f"run {run_id}", kind(eviction.message))

    def forget(self, run_id: str) -> bool:
        """A run goes on."""
        self._parked.pop(run_id, None)
        return super().forget(run_id)

    def _park(self, run_id: str, name: str, error: BaseException | None) -> None:
        if isinstance(error, WorkflowParked):
            error = error.__cause__ or error
        if error is not None and is_to_be_let_out(error):
            self.urgent.append(error)
            return
        if run_id in self._parked:
            return
        self._parked[run_id] = parked = WorkflowParked(f"{name} is parked: {_described(error)}")
        parked.__cause__ = error
        self._untold.append((run_id, parked))


class QuietTroubles(Troubles):
    """The same, for whoever looks for troubles and tells of them himself: nothing is logged."""

    def say_parked(self, workflow: str, workflow_id: str, run_id: str, error: BaseException | None) -> None:
        """A run's code has a bug."""
        if error is None or not isinstance(error.__cause__, LaneStopped):
            self._park(run_id, f"workflow {workflow} ({workflow_id})", error)

    def say_died(self, run_id: str, error: BaseException) -> None:
        """A run could not be evaluated."""
        self._park(run_id, f"run {run_id}", error)


def is_to_be_let_out(error: BaseException) -> bool:
    """Whether an exception in user code is meant for whoever runs the tests: Ctrl-C, `pytest.fail`, `pytest.skip`."""
    return isinstance(error, _NOT_A_BUG) or _is_of_pytest(error)


def _is_of_pytest(error: BaseException | None) -> bool:
    # By name: pytest need not be installed.
    return any(each.__module__ == "_pytest.outcomes" for each in type(error).__mro__)


def _described(error: BaseException | None) -> str:
    if error is None:
        return "its task failed"
    found = where_raised(error)
    place = f" at {found[0]}:{found[1]}" if found is not None else ""
    return f"{type(error).__name__}{place}: {error}"
