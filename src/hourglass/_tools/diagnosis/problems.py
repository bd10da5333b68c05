"""The problems of open runs in a list: the code fails (*parked*), an activity keeps failing, or no worker polls
the task queue.

The command line, the web UI and `hourglass doctor` share these words and limits.

The embedded engine reports parked runs and failing activities with every list. A server reports only parked runs, from the
fifth failure on, so its runs are described one by one, at most `MOST_DESCRIBED` per list. Both are queried for the pollers
of a task queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from hourglass._contract.workflows import ACTIVITY_FAILS, PARKED_RUNS, REPORTED_PROBLEMS
from hourglass._tools.diagnosis.asking import PATIENCE, alive, kept_by_engine
from hourglass._tools.timeline.run_state import FILTERED, Problem, problem_of
from hourglass.errors import HourglassError, WorkflowNotFoundError

if TYPE_CHECKING:
    from hourglass.client import Client, WorkflowExecution

MOST_DESCRIBED = 200
"""The maximum number of a server's open runs, newest first, that are described to find failing activities."""

_AT_ONCE = 16
_MOST_QUEUES = 50
_PAGE = 100


def reports_activities(client: Client) -> bool:
    """Whether the engine reports failing activities with every list. The embedded engine does, but a server does not."""
    return kept_by_engine(client) is not None


def problems_of(
    client: Client, runs: Iterable[WorkflowExecution], *, describe: bool | None = None
) -> dict[str, Problem]:
    """Return the problems of these runs by run id, without healthy runs.

    Each run is described if `describe` is true, or if it is None and the engine does not report failing
    activities.
    """
    opened = [run for run in runs if run.close_time is None]
    problems = {run.run_id: problem for run in opened if (problem := problem_of(run)) is not None}
    healthy = [run for run in opened if run.run_id not in problems]
    if healthy and (describe or (describe is None and not reports_activities(client))):
        problems |= _described(client, healthy[:MOST_DESCRIBED])
    healthy = [run for run in healthy if run.run_id not in problems]
    unserved = unserved_queues(client, (run.task_queue for run in healthy))
    return problems | {run.run_id: Problem.NO_WORKER for run in healthy if run.task_queue in unserved}


def _described(client: Client, runs: Sequence[WorkflowExecution]) -> Mapping[str, Problem]:
    def check(run: WorkflowExecution) -> tuple[str, Problem | None]:
        try:
            handle = client.get_workflow_handle(run.id, run_id=run.run_id)
            return run.run_id, problem_of(handle.describe(rpc_timeout=PATIENCE))
        except WorkflowNotFoundError:  # deleted meanwhile
            return run.run_id, None

    with ThreadPoolExecutor(min(_AT_ONCE, len(runs)), "hourglass-problems") as threads:
        return {run_id: problem for run_id, problem in threads.map(check, runs) if problem is not None}


def unserved_queues(client: Client, names: Iterable[str]) -> frozenset[str]:
    """Return the task queues that no worker polls for workflow tasks. Only the first 50 queues are checked."""
    queues = [name for name in dict.fromkeys(names) if name][:_MOST_QUEUES]
    if not queues:
        return frozenset()

    def is_unserved(name: str) -> bool:
        try:
            return not any(alive(client.describe_task_queue(name, rpc_timeout=PATIENCE).workflow_pollers))
        except HourglassError:
            return False  # not every server allows every client to describe queues

    with ThreadPoolExecutor(min(_AT_ONCE, len(queues)), "hourglass-problems") as threads:
        return frozenset(
            name for name, bare in zip(queues, threads.map(is_unserved, queues), strict=True) if bare
        )


OPEN = "ExecutionStatus = 'Running'"
_NONE = "ExecutionStatus = 'Running' AND ExecutionStatus = 'Completed'"
_REPORTED = {
    Problem.PARKED: PARKED_RUNS,
    Problem.ACTIVITY_FAILS: f"{OPEN} AND {REPORTED_PROBLEMS} = '{ACTIVITY_FAILS}'",
}


@dataclass(frozen=True)
class ProblemFilter:
    """A filter for open runs with a problem. `limit` is the number of newest runs searched, or 0 for all."""

    query: str
    limit: int = 0


@dataclass(frozen=True)
class _Newest:
    """The newest open runs of a filter. `limit` is their number if there may be more, or else 0."""

    runs: Sequence[WorkflowExecution]
    limit: int
    problems: Mapping[str, Problem]
    """The problems found in the described runs, by run id."""


def _newest(client: Client, query: str, *, describe: bool) -> _Newest:
    runs = list(client.list_workflows(_both(query, OPEN), limit=MOST_DESCRIBED))
    limit = MOST_DESCRIBED if len(runs) == MOST_DESCRIBED else 0
    return _Newest(runs, limit, _described(client, runs) if describe and runs else {})


def filter_of(
    client: Client, problem: Problem, query: str = "", newest: _Newest | None = None
) -> ProblemFilter:
    """Return the filter of the runs with a problem among the open runs of `query`.

    The embedded engine reports parked runs and failing activities. Otherwise the newest open runs are examined now, and the
    filter names the runs with the problem.
    """
    is_reported = problem is not Problem.NO_WORKER and reports_activities(client)
    if is_reported:
        return ProblemFilter(_REPORTED[problem])
    newest = newest or _newest(client, query, describe=problem is not Problem.NO_WORKER)
    if problem is Problem.NO_WORKER:
        unserved = sorted(unserved_queues(client, (run.task_queue for run in newest.runs)))
        return ProblemFilter(
            f"{OPEN} AND TaskQueue IN ({', '.join(map(literal, unserved))})" if unserved else _NONE,
            newest.limit,
        )
    run_ids = [run_id for run_id, candidate in newest.problems.items() if candidate is problem]
    named = f"{OPEN} AND RunId IN ({', '.join(map(literal, run_ids))})" if run_ids else _NONE
    # A server reports parked runs from the fifth failure on, including runs that are not among the newest.
    either = f"(({named}) OR ({PARKED_RUNS}))" if problem is Problem.PARKED else named
    return ProblemFilter(either, newest.limit)


def _both(first: str, second: str) -> str:
    return f"({first}) AND {second}" if first.strip() else second


def literal(value: str) -> str:
    """Return a string as a quoted literal for a filter."""
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


@dataclass(frozen=True)
class ProblemCount:
    """The number of open runs with a problem. `limit` is the number of newest runs that were examined, or 0 for all."""

    problem: Problem
    count: int
    limit: int = 0


def count(client: Client, query: str = "") -> tuple[ProblemCount, ...]:
    """Count the open runs of a filter that are parked, have a failing activity, or have no worker."""
    counts = []
    newest = _newest(client, query, describe=not reports_activities(client))
    for problem in FILTERED:
        narrow = filter_of(client, problem, query, newest)
        number = int(client.count_workflows(_both(query, narrow.query)))
        counts.append(ProblemCount(problem, number, narrow.limit))
    return tuple(counts)


def find(client: Client, problem: Problem, query: str, limit: int) -> Iterator[WorkflowExecution]:
    """Yield all open runs of a filter that have a problem, newest first. The search may take long."""
    filter_text = _both(query, OPEN)
    if problem is Problem.ACTIVITY_FAILS and reports_activities(client):
        filter_text += f" AND {_REPORTED[problem]}"
    runs = client.list_workflows(filter_text)
    left = limit
    while left > 0 and (chunk := list(islice(runs, _PAGE))):
        # Describe the runs, so that a run is found from its first failure on.
        problems = problems_of(client, chunk, describe=problem is not Problem.NO_WORKER)
        matching = [run for run in chunk if problems.get(run.run_id) is problem][:left]
        left -= len(matching)
        yield from matching
