"""The tables of docs/migrating.md about the two engines are true: each row has a test of its name.

A row about one engine alone, or about processes that die, names a test in another file, which must exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from hourglass import workflow
from hourglass._embedded.transitions.size_limits import MEGABYTE, Limits
from hourglass.client import Client, Schedule, ScheduleActionStartWorkflow, ScheduleSpec
from hourglass.errors import ServiceError, WorkflowNotFoundError
from hourglass.testing import DevServer
from hourglass.worker import Worker

from . import test_scenarios  # noqa: F401 - enters all scenarios
from .scenario import SCENARIOS

ROOT = Path(__file__).parent.parent.parent
# The rest of the page, about `hourglass move`, is tested with the command.
PAGE = (ROOT / "docs" / "migrating.md").read_text().partition("## Open runs")[0]
_ROW = re.compile(r"^\| (?P<name>[^|]+) \| [^|]+ \|", re.MULTILINE)

Both = dict[str, Client]
LINES: dict[str, Callable[[Both], None]] = {}

ELSEWHERE = {
    "where runs live": "tests/embedded/multiprocess/test_hosts.py::test_client_works_without_an_owner",
    "workers": "tests/embedded/multiprocess/test_hosts.py::test_second_process_works_for_the_owner_and_takes_over",
    "a worker dies": "tests/embedded/runs/test_recovery.py::test_attempt_in_progress_is_retried_with_its_heartbeat_details",
    "namespaces": "tests/embedded/multiprocess/test_serving.py::test_other_namespace_is_rejected",
    "closed runs": "tests/embedded/runs/test_upkeep.py::test_closed_runs_are_deleted_after_the_retention",
    "`priority_key`": "tests/embedded/matching/test_priorities.py::test_tasks_are_dispatched_by_priority",
    "signals": "tests/embedded/transitions/test_limits.py::test_number_of_signals_is_limited",
    "pending": "tests/embedded/transitions/test_limits.py",
    "updates": "tests/embedded/transitions/test_updates.py",
    "names": "names_longer_than_a_thousand_bytes_are_rejected",
    "search attributes": "invalid_search_attributes_are_rejected_at_start",
    "task timeout": "tests/conformance/test_migrating.py::test_task_timeout_is_capped_at_two_minutes",
    "a repeated update id": "tests/embedded/transitions/test_message_chains.py::test_update_id_is_unique_along_a_chain",
    "a call repeated after its answer was lost": (
        "tests/embedded/transitions/test_message_chains.py::test_signal_is_delivered_once_along_a_chain"
    ),
    "continue-as-new while signals arrive": (
        "tests/embedded/transitions/test_message_chains.py::test_signals_during_the_last_task_move_to_the_next_run"
    ),
    "event ids and times": "cancellation_ends_delayed_start_immediately",
}
"""Rows that are tested by scenarios or by tests of one engine."""


def checks_row(name: str) -> Callable[[Callable[[Both], None]], Callable[[Both], None]]:
    """Register a test of this row."""

    def enter(walk: Callable[[Both], None]) -> Callable[[Both], None]:
        LINES[name] = walk
        return walk

    return enter


@pytest.fixture(scope="module")
def both(quick_server: DevServer) -> Iterator[Both]:
    """A client of each engine."""
    with Client.connect("local:") as embedded, Client.connect(quick_server.target) as server:
        yield {"embedded": embedded, "server": server}


def row_names() -> list[str]:
    """Return the first cells of the page's tables."""
    cells = [match["name"].strip() for match in _ROW.finditer(PAGE)]
    return [name for name in cells if name and name != "limit" and not name.startswith("---")]


def test_every_row_of_the_migration_page_has_a_test() -> None:
    assert set(row_names()) == {*LINES, *ELSEWHERE}
    for place in ELSEWHERE.values():
        path, _, test = place.partition("::")
        if "/" not in path:
            assert place in SCENARIOS, place
        else:
            assert (ROOT / path).exists(), place
            assert f"def {test}" in (ROOT / path).read_text(), place


@workflow.defn
def measures_sleep(seconds: float) -> float:
    began = workflow.time()
    workflow.sleep(seconds)
    return workflow.time() - began


@workflow.defn
def continues_as_new(left: int) -> int:
    if left:
        workflow.continue_as_new(left - 1)
    return left


def run_workflow(client: Client, *call: Any) -> Any:
    """Run a workflow of this module and return its result."""
    with Worker(client, "moving", workflows=[measures_sleep, continues_as_new]):
        return client.execute_workflow(*call, task_queue="moving")


@checks_row("payload")
def _payload(both: Both) -> None:
    assert Limits().blob_bytes == 2 * MEGABYTE
    for client in both.values():
        with pytest.raises(ServiceError, match="size"):
            client.start_workflow("any", "x" * (2 * MEGABYTE + 1), task_queue="moving-idle")


@checks_row("history")
def _history(both: Both) -> None:
    assert (Limits().history_events, Limits().history_bytes) == (51_200, 50 * MEGABYTE)


@checks_row("timers")
def _timers(both: Both) -> None:
    for client in both.values():
        assert run_workflow(client, measures_sleep, 0.05) >= 0.05


@checks_row("the next run of a retry or continue-as-new")
def _next_run(both: Both) -> None:
    assert run_workflow(both["embedded"], continues_as_new, 20) == 0
    runs = list(both["embedded"].list_workflows("WorkflowType = 'continues_as_new'"))
    assert len(runs) == 21
    for run in runs:  # by default a server waits a second between two runs
        begun = both["embedded"].get_workflow_handle(run.id, run_id=run.run_id).history().events[0]
        backoff = begun["workflowExecutionStartedEventAttributes"].get("firstWorkflowTaskBackoff", "0s")
        assert backoff == "0s"
    assert run_workflow(both["server"], continues_as_new, 2) == 0


@checks_row("events during one workflow task")
def _held(both: Both) -> None:
    assert Limits().held_events == 5_000


@checks_row("a run id that is not a UUID")
def _run_id(both: Both) -> None:
    with pytest.raises(WorkflowNotFoundError):
        both["embedded"].get_workflow_handle("w", run_id="no-uuid").describe()
    with pytest.raises(ServiceError, match="Invalid RunId"):
        both["server"].get_workflow_handle("w", run_id="no-uuid").describe()


@pytest.mark.server
@pytest.mark.parametrize("name", sorted(LINES))
def test_statement_of_the_migration_page_is_true(name: str, both: Both) -> None:
    LINES[name](both)


@workflow.defn
def own_task_timeout() -> float:
    return current_task_timeout()


@workflow.defn
def task_timeouts(n: int) -> list[float]:
    if n:
        workflow.continue_as_new(n - 1, task_timeout=300)
    return [own_task_timeout.options(task_timeout=300)(), current_task_timeout()]


def current_task_timeout() -> float:
    limit = workflow.info().task_timeout
    return 0.0 if limit is None else limit.total_seconds()


@pytest.mark.server
def test_task_timeout_is_capped_at_two_minutes(both: Both) -> None:
    """From clients, parents and schedules."""
    timeouts: dict[str, list[float]] = {}
    for name, client in both.items():
        with Worker(client, workflows=[task_timeouts, own_task_timeout]):
            limits = client.execute_workflow(task_timeouts, 1, task_timeout=300)
            action = ScheduleActionStartWorkflow(own_task_timeout, task_timeout=timedelta(minutes=5))
            schedule = client.create_schedule(
                "task-timeouts", Schedule(action, ScheduleSpec()), trigger_immediately=True
            )
            until(lambda schedule=schedule: bool(schedule.describe().info.recent_actions))
            started = schedule.describe().info.recent_actions[0].action.workflow_id
            limits.append(client.get_workflow_handle(started, result_type=float).result())
            schedule.delete()
        timeouts[name] = limits
    assert set(map(tuple, timeouts.values())) == {(120.0, 120.0, 120.0)}
