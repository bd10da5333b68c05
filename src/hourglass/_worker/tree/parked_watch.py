"""The number of parked runs according to the engine.

A worker knows only the failures that it has seen itself. It does not know about failures in other processes, or about
runs that were fixed elsewhere or have ended. Every few seconds the engine is therefore asked for the runs that it
reports as parked, and for the state of the runs that this process remembers. Invariant: a process counts a run once,
either as remembered here or as one of `others`.
"""

from __future__ import annotations

import logging
from asyncio import sleep
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from hourglass._contract.workflows import (
    PARKED_RUNS,
    CountWorkflows,
    DescribeWorkflow,
    ListWorkflows,
    WorkflowStatus,
    WorkflowSummary,
    reports_task_problem,
)
from hourglass._worker.health.parked import ParkedRuns, WorkflowLabel
from hourglass.errors import HourglassError, ServiceError, WorkflowNotFoundError

if TYPE_CHECKING:
    from hourglass._worker.tree.application import Application

logger = logging.getLogger("hourglass.worker")

INTERVAL = 4.0
"""Seconds between two queries: a change elsewhere shows in the metric within twice this time."""

_TIMEOUT = 4.0
_MAX_LISTED = 1000
_IDS_PER_QUERY = 200
_MAX_DESCRIBED = 20


class ParkedCounts:
    """The number of parked runs of each task queue that this process does not remember, by the engine's last answer."""

    def __init__(self) -> None:
        self.others: Mapping[str, int] = {}
        self.missed: Collection[str] = frozenset()
        """The remembered runs that the last query did not find. They may still exist, because a server's list is
        eventually consistent.
        """

    def count(self, queue: str, remembered: int) -> int:
        """Return the number of parked runs of a task queue: the number `remembered` by this process, plus the runs of
        other processes.
        """
        return remembered + self.others.get(queue, 0)


async def watch_parked(app: Application) -> None:
    """Query parked runs at intervals while the worker is running."""
    while True:
        try:
            await query_parked_runs(app)
        except HourglassError as error:
            logger.debug("the engine does not report parked runs: %s", error)
        except Exception:
            logger.exception("the watchdog could not query parked runs")
        await sleep(INTERVAL)


async def query_parked_runs(app: Application) -> None:
    """Query once: forget runs that are no longer parked, and count the runs that only other processes have seen fail."""
    reported = await _reported_by_queue(app)
    count = await _count_by_queue(app)
    for services in app.configured():
        reported_count = reported.get(services.queue, 0)
        if services.queue in count:
            count[services.queue] = max(0, count[services.queue] - reported_count)
    app.parked.others = count


async def _reported_by_queue(app: Application) -> dict[str, int]:
    """Count the remembered runs that the engine reports as parked, by task queue. Forget the runs that are no longer
    parked.
    """
    missed: set[str] = set()
    missed_before = app.parked.missed
    reported: dict[str, int] = {}
    describe_count = 0
    for services in app.configured():
        parked = services.lanes.parked
        await _log_unnamed(app, services.queue, parked)
        remembered = list(parked.kinds())
        summaries = await _runs(app, remembered)
        for run_id in remembered:
            run = summaries.get(run_id)
            if run is None:
                missed.add(run_id)
                is_over = run_id in missed_before
            elif run.status is not WorkflowStatus.RUNNING:
                is_over = True
            elif reports_task_problem(run):
                is_over = False
                reported[services.queue] = reported.get(services.queue, 0) + 1
            else:
                describe_count += 1
                is_over = describe_count <= _MAX_DESCRIBED and not await _is_parked(app, run)
            if is_over:
                parked.forget(run_id)
        missed.update(parked.unnamed)
    app.parked.missed = missed
    return reported


async def _log_unnamed(app: Application, queue: str, parked: ParkedRuns) -> None:
    """Log the nondeterministic runs of which this process knows only the run id. The workflow id and type come from the
    engine.
    """
    unnamed = dict(parked.unnamed)
    summaries = await _runs(app, list(unnamed))
    for run_id, difference in unnamed.items():
        run = summaries.get(run_id)
        if run is None and run_id not in app.parked.missed:
            continue
        parked.drop_unnamed(run_id)
        if run is not None and run.status is WorkflowStatus.RUNNING:
            label = WorkflowLabel(run.workflow_type, run.workflow_id, run_id, queue)
            parked.log_misfit(label, difference, "", "")


async def _runs(app: Application, run_ids: Sequence[str]) -> dict[str, WorkflowSummary]:
    summaries: dict[str, WorkflowSummary] = {}
    for start in range(0, len(run_ids), _IDS_PER_QUERY):
        names = ", ".join(map(_quoted, run_ids[start : start + _IDS_PER_QUERY]))
        request = ListWorkflows(query=f"RunId IN ({names})", page_size=_IDS_PER_QUERY, rpc_timeout=_TIMEOUT)
        summaries |= {run.run_id: run for run in (await app.raw.call(request)).workflows}
    return summaries


async def _is_parked(app: Application, run: WorkflowSummary) -> bool:
    request = DescribeWorkflow(workflow_id=run.workflow_id, run_id=run.run_id, rpc_timeout=_TIMEOUT)
    try:
        return (await app.raw.call(request)).task_attempt > 1
    except WorkflowNotFoundError:
        return False


async def _count_by_queue(app: Application) -> dict[str, int]:
    """Count the parked runs that the engine reports, by task queue.

    Count all queues if this process runs the engine, otherwise only the queues that the process serves.
    """
    query = PARKED_RUNS
    figures = app.raw.status().figures
    if figures is None:
        query += f" AND TaskQueue IN ({', '.join(map(_quoted, sorted(app.queues)))})"
    try:
        total = await _count(app, query)
    except ServiceError as error:
        if error.status == "INVALID_ARGUMENT":  # the server is too old to report parked runs
            return {}
        raise
    if not total:
        return {}
    page = await app.raw.call(ListWorkflows(query=query, page_size=_MAX_LISTED, rpc_timeout=_TIMEOUT))
    listed = Counter(run.task_queue for run in page.workflows)
    if not page.next_page_token:
        return dict(listed)
    queues = {*listed, *app.queues, *(() if figures is None else figures.queues)}
    return {queue: await _count(app, f"{query} AND TaskQueue = {_quoted(queue)}") for queue in sorted(queues)}


async def _count(app: Application, query: str) -> int:
    return (await app.raw.call(CountWorkflows(query=query, rpc_timeout=_TIMEOUT))).count


def _quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
