"""What must not pass in silence: runs that are parked, errors of the test itself, and why nothing happens any more.

What is wrong with the test itself is raised at once. A parked run is told once, by the wait that meets it first, and
again by each wait for that very run, which will never close.

Where nothing will ever happen, `explain` says what the workflows that the test waits for wait for themselves, and
where they stand. It asks the engine and the runs, and changes nothing.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol

from hourglass._contract.service import Connection
from hourglass._contract.workflows import DescribeWorkflow, QueryWorkflow, WaitForClose
from hourglass._evaluator.events import RunEvicted
from hourglass._worker.code_origin import is_library, is_ours, where_raised
from hourglass._worker.health.parked import ParkedRuns
from hourglass._worker.health.stopping import LaneStopped
from hourglass.converter import default_converter
from hourglass.errors import HourglassError, NondeterminismError, ServiceError, WorkflowParked, WorkflowStuck

# --- parked runs, and what is urgent --------------------------------------------------------------


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

    def say_parked(
        self, workflow: str, workflow_id: str, run_id: str, error: BaseException | None, task_queue: str = ""
    ) -> None:
        """A run's code has a bug."""
        if error is not None and isinstance(error.__cause__, LaneStopped):
            return  # it hung, and the guard that interrupted it says so
        super().say_parked(workflow, workflow_id, run_id, error, task_queue)
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
    """The same for `explore`, which looks for troubles and tells of them itself: nothing is logged."""

    def say_parked(
        self, workflow: str, workflow_id: str, run_id: str, error: BaseException | None, task_queue: str = ""
    ) -> None:
        """A run's code has a bug."""
        if error is None or not isinstance(error.__cause__, LaneStopped):
            self._park(run_id, f"workflow {workflow} ({workflow_id})", error)

    def say_died(self, run_id: str, error: BaseException) -> None:
        """A run could not be evaluated."""
        self._park(run_id, f"run {run_id}", error)


def is_to_be_let_out(error: BaseException) -> bool:
    """Whether an exception in user code is meant for the test runner: Ctrl-C, `pytest.fail`, `pytest.skip`."""
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


# --- why nothing happens any more -----------------------------------------------------------------


_PATIENCE = 2.0
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


class Scene(Protocol):
    """What is asked of a driver."""

    connection: Connection
    waited_for: list[WaitForClose]
    troubles: Troubles

    def ask(self, coro: Coroutine[Any, Any, str]) -> str:
        """Run a coroutine without letting time pass."""
        ...


def explain(scene: Scene, why: str) -> WorkflowStuck:
    """The error that says so."""
    said = [scene.ask(_said(scene.connection, each)) for each in tuple(scene.waited_for)]
    parked = scene.troubles.known()
    said += [str(each) for each in parked]
    stuck = WorkflowStuck(f"{why}: {'; '.join(said)}" if said else why)
    stuck.__cause__ = parked[0] if parked else None
    return stuck


async def _said(connection: Connection, waited: WaitForClose) -> str:
    name = f"workflow {waited.workflow_id!r}"
    try:
        description = await connection.call(
            DescribeWorkflow(workflow_id=waited.workflow_id, run_id=waited.run_id)
        )
    except HourglassError as error:
        return f"{name}: {error}"
    pending = [
        f"activity {each.activity_type} ({each.state.lower().replace('_', ' ')}, attempt {each.attempt})"
        for each in description.pending_activities
    ]
    if pending:
        return f"{name} waits for {', '.join(pending)}, which code outside the workflow must complete"
    place = await _place(connection, waited)
    return (
        f"{name} waits{place} for a signal, or for a condition that no timer and no activity will make true"
    )


async def _place(connection: Connection, waited: WaitForClose) -> str:
    question = QueryWorkflow(
        workflow_id=waited.workflow_id,
        run_id=waited.run_id,
        query_name="__stack_trace",
        rpc_timeout=_PATIENCE,
    )
    try:
        answer = await connection.call(question)
    except HourglassError:
        return ""
    place = place_of(default_converter.decode(answer.result[0], str))
    return f" at {place}" if place else ""


def place_of(stacks: str) -> str:
    """The line of the author's own that a stack of a workflow ends at; empty if there is none."""
    found = [match.groupdict() for match in _FRAME.finditer(stacks)]
    own = [each for each in found if not is_ours(each["file"]) and not is_library(each["file"])]
    return f"{own[-1]['file']}:{own[-1]['line']}" if own else ""
