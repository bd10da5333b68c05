"""The errors that are raised in a test: parked runs, and errors in the test itself.

An error in the test itself is raised immediately. The error of a parked run is raised by the first wait after the run was
parked, and by every later wait for that run, because the run will never close. `explain` describes a wait that will never
end: the pending activities, or the current line of code, of each awaited workflow.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

from hourglass._contract.service import Connection
from hourglass._contract.workflows import DescribeWorkflow, QueryWorkflow, WaitForClose
from hourglass._evaluator.events import RunEvicted
from hourglass._worker.code_origin import is_library, is_ours, where_raised
from hourglass._worker.health.parked import ParkedRuns
from hourglass._worker.health.stopping import LaneStopped
from hourglass.converter import default_converter
from hourglass.errors import HourglassError, NondeterminismError, ServiceError, WorkflowParked, WorkflowStuck

if TYPE_CHECKING:
    from hourglass.testing._driver import EnvironmentDriver


# The eviction reasons of an engine that could not accept the completion of a run.
_REFUSED = frozenset(("FATAL", "NONDETERMINISM"))
_NOT_A_BUG = (KeyboardInterrupt, SystemExit)


class EnvironmentErrors(ParkedRuns):
    """The parked runs that the evaluations report, and the urgent errors that the driver reports."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        """Create an empty collection. With `is_quiet`, errors are not logged, because `explore` reports the errors itself."""
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


_PATIENCE = 2.0
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def explain(driver: EnvironmentDriver, reason: str) -> WorkflowStuck:
    """Return the error for a wait that will never end: the reason, and the position of each awaited workflow."""
    parts = [driver.run_now(_position(driver.connection, wait)) for wait in tuple(driver.waited_for)]
    parked = driver.errors.known()
    parts += [str(error) for error in parked]
    stuck = WorkflowStuck(f"{reason}: {'; '.join(parts)}" if parts else reason)
    stuck.__cause__ = parked[0] if parked else None
    return stuck


async def _position(connection: Connection, waited: WaitForClose) -> str:
    name = f"workflow {waited.workflow_id!r}"
    try:
        description = await connection.call(
            DescribeWorkflow(workflow_id=waited.workflow_id, run_id=waited.run_id)
        )
    except HourglassError as error:
        return f"{name}: {error}"
    pending = [
        f"activity {activity.activity_type} ({activity.state.lower().replace('_', ' ')}, attempt {activity.attempt})"
        for activity in description.pending_activities
    ]
    if pending:
        return f"{name} waits for {', '.join(pending)}, which code outside the workflow must complete"
    place = await _place(connection, waited)
    return f"{name} waits{place} for a signal, or for a condition that no timer or activity will make true"


async def _place(connection: Connection, waited: WaitForClose) -> str:
    query = QueryWorkflow(
        workflow_id=waited.workflow_id,
        run_id=waited.run_id,
        query_name="__stack_trace",
        rpc_timeout=_PATIENCE,
    )
    try:
        answer = await connection.call(query)
    except HourglassError:
        return ""
    place = place_of(default_converter.decode(answer.result[0], str))
    return f" at {place}" if place else ""


def place_of(stacks: str) -> str:
    """Return the innermost line of user code in the stacks of a workflow; "" if there is none."""
    frames = [match.groupdict() for match in _FRAME.finditer(stacks)]
    own = [frame for frame in frames if not is_ours(frame["file"]) and not is_library(frame["file"])]
    return f"{own[-1]['file']}:{own[-1]['line']}" if own else ""
