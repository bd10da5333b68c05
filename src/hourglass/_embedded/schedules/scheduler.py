"""The schedules of an engine: keeps their records, processes each schedule when it is due, and carries out its
decisions.

Must not know: requests, the meaning of specs, overlap policies (see `transitions`). Invariants: a schedule's step, the
workflows that it starts, and those that it ends form one change of the store, so that a crash leaves all or none of it.
A workflow that a schedule awaits reports its end in the change that ends it. A schedule that cannot be read, or whose
workflow cannot be started, does not keep other schedules from acting.

After the first access all schedules are in memory as short entries (`ScheduleEntry`). A record is read when it is
needed. Records are evicted when there are many and all changes are durable. `ScheduleListing` lists schedules by
Temporal's filters. Its index is created by the first query and kept up to date for a while, so that the cost of a page
depends only on the page and on recent changes.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TypeVar

from hourglass._contract.schedule_specs import ScheduleSpec
from hourglass._contract.schedules import EngineSchedule
from hourglass._contract.workflows import CancelWorkflow, Page, TerminateWorkflow
from hourglass._embedded.clock import SECOND, RealClock, later
from hourglass._embedded.runs.due_times import DueTimes
from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.runs.runs import RunTable
from hourglass._embedded.runs.starting import start_workflow
from hourglass._embedded.schedules.transitions import (
    Running,
    ScheduleAdvance,
    ScheduleRecord,
    Start,
    advance,
    closed,
    identity,
    look_ahead,
    start_request,
    started,
    with_defaults,
)
from hourglass._embedded.store.memory import MemoryListing
from hourglass._embedded.store.store import ScheduleChange, ScheduleEntry
from hourglass._embedded.transitions import transitions
from hourglass._embedded.transitions.run import Change, Run
from hourglass._evaluator.specs import Payloads, StartSpec
from hourglass._history import events as h
from hourglass.converter import Failure, SearchAttributeKey, encode_search_attributes
from hourglass.errors import HourglassError, ServiceError, StorageError

SLICE = 50
"""The number of schedules that are processed or listed before the event loop runs other tasks."""
MAX_CACHED_RECORDS = 1000
"""The approximate maximum number of cached records."""
INDEX_LIFETIME = 60.0
"""The time without a query after which the index of schedules is dropped, in seconds."""
RETRY_START_NS = 5 * SECOND
"""The delay before checking again whether the store accepts new workflows."""

_LARGE = 20
"""Specs with more calendars, intervals, cron strings and exclusions than this are searched in a thread."""

T = TypeVar("T")

logger = logging.getLogger("hourglass.embedded")


def _unchanged(record: ScheduleRecord) -> ScheduleRecord:
    return record


class Schedules:
    """The schedules of an engine (see the module). An `EndListener`. Schedules act only after `begin`."""

    def __init__(self, runs: RunTable, stop_if_unreadable: Callable[[StorageError], None]) -> None:
        self._runs = runs
        self._doubt = stop_if_unreadable
        self._records: dict[str, ScheduleRecord] = {}
        self._entries: dict[str, ScheduleEntry] = {}
        self._awaited: dict[str, set[str]] = {}
        self._due = DueTimes(runs.clock, self._elapse)
        self._loaded = False
        self._unlisted: dict[str, None] = {}
        self._searches: set[asyncio.Task[None]] = set()
        self.search = ScheduleSearch(in_thread=isinstance(runs.clock, RealClock))
        self.listing = ScheduleListing(
            self._unlisted, self.find, keep=isinstance(runs.clock, RealClock), load=self.load
        )

    def load(self) -> None:
        """Read the entries of all schedules, unless they are already loaded. Raise `StorageError` if that fails."""
        if not self._loaded:
            self._loaded = True
            for entry in self._runs.store.schedules():
                self._enter(entry)

    def begin(self) -> None:
        """Start processing schedules, beginning with the times that have passed since an engine last ran."""
        self.load()
        self._due.begin()

    def stop(self) -> None:
        self._due.stop()
        for task in self._searches:
            task.cancel()
        self.search.stop()
        self.listing.close()

    def get(self, schedule_id: str) -> ScheduleRecord | None:
        """Return a schedule that the caller will change, and cache its record. Return None if the schedule does not
        exist.
        """
        record = self.find(schedule_id)
        if record is not None:
            self._records[schedule_id] = record
        return record

    def find(self, schedule_id: str) -> ScheduleRecord | None:
        """Return a schedule for reading, or None if it does not exist."""
        self.load()
        if schedule_id not in self._entries:
            return None
        return self._records.get(schedule_id) or self._runs.store.schedule(schedule_id)

    def put(self, record: ScheduleRecord) -> None:
        """Store a new or changed schedule, and process it if it is due."""
        self.load()
        self._act(record)
        self._due.set_alarm()

    def delete(self, schedule_id: str) -> None:
        """Delete a schedule. The workflows that it has started keep running."""
        self._forget(schedule_id)
        self._runs.keep_schedule(ScheduleChange(schedule_id=schedule_id))
        self._due.set_alarm()

    def read_again(self, schedule_id: str) -> None:
        """Discard the record of a schedule that could not be stored, and use the stored record.

        The schedule does not act before a request changes it or the store is reopened, because it would only repeat the
        same step.
        """
        self._forget(schedule_id)
        try:
            record = self._runs.store.schedule(schedule_id)
        except StorageError as error:
            logger.error("schedule %r cannot be read: %s", schedule_id, error)
            return
        if record is not None:
            self._enter(
                ScheduleEntry(schedule_id, 0, tuple(workflow_id for workflow_id, _ in record.running))
            )
        self._due.set_alarm()

    def awaits(self, workflow_id: str) -> bool:
        """Whether a schedule awaits the end of this workflow."""
        if not self._loaded:
            self.load()
        return workflow_id in self._awaited

    def ended(self, record: LoadedRun) -> None:
        """Notify the schedules that await this closed run's workflow, unless the workflow continues in another run."""
        run = record.run
        workflow = (run.started.workflow_id, run.started.first_run_id)
        if self._open_run(workflow) is not None:
            return

        def record_end(schedule: ScheduleRecord) -> ScheduleRecord:
            if workflow not in schedule.running:
                return schedule
            return closed(schedule, workflow[0], run.status, *_outcome(record))

        for schedule_id in tuple(self._awaited.get(run.started.workflow_id, ())):
            self._process(schedule_id, record_end)
        self._due.set_alarm()

    def realign(self) -> None:
        self._due.realign()

    def _elapse(self) -> None:
        """Process the schedules that are due. Called by the alarm."""
        self._evict_records()
        now = self._runs.clock.now_ns()
        for _ in range(SLICE):
            schedule_id = self._due.take(now)
            if schedule_id is None:
                break
            record = self._find_readable(schedule_id)
            if record is not None and self.search.takes_long(record.schedule.spec):
                self._search_and_process(record)
            else:
                self._process(schedule_id)
        self._runs.queues.dispatch()

    def _find_readable(self, schedule_id: str) -> ScheduleRecord | None:
        """Return a schedule, or None if it is unreadable. `_process` reports the error."""
        try:
            return self.find(schedule_id)
        except StorageError:
            return None

    def _search_and_process(self, record: ScheduleRecord) -> None:
        """Search for a schedule's next times in the thread, then process the schedule."""

        async def search() -> None:
            await self.search.look_ahead(record.schedule.spec, record.schedule_id, record.seen_ns)
            self._process(record.schedule_id)
            self._due.set_alarm()
            self._runs.queues.dispatch()

        task = asyncio.get_running_loop().create_task(search())
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)

    def _process(
        self, schedule_id: str, change: Callable[[ScheduleRecord], ScheduleRecord] = _unchanged
    ) -> None:
        """Apply a change to one schedule and process it. An error affects only this schedule."""
        try:
            record = self.get(schedule_id)
            if record is not None:
                self._act(change(record))
        except HourglassError as error:
            # The schedule stays as it is until a request changes it or the file is reopened.
            logger.error("schedule %r cannot start workflows: %s", schedule_id, error)
            if isinstance(error, StorageError):
                self._doubt(error)

    def _act(self, record: ScheduleRecord) -> None:
        """Process a schedule's due actions and store the result, as one change."""
        now = self._runs.clock.now_ns()
        with self._runs.transaction():
            if self._runs.store.start_rejection():  # no action is missed: the schedule catches up later
                self._keep(record, later(now, RETRY_START_NS))
                return
            step = advance(record, now)
            record, has_failed = self._start_all(step, now)
            again = has_failed and bool(
                record.waiting
            )  # starts that were buffered behind a failed one may be possible now
            self._keep(record, now if again else step.wake_ns or 0)
            self._end_others(step)

    def _start_all(self, step: ScheduleAdvance, now_ns: int) -> tuple[ScheduleRecord, bool]:
        """Start the workflows of a step. Return the new record, and whether any start failed. As on a server, a failed
        start is dropped.
        """
        record, has_failed = step.record, False
        for start in step.starts:
            try:
                run_id = self._start(record, start)
            except (ServiceError, StorageError) as error:
                has_failed = True
                logger.warning(
                    "schedule %r could not start workflow %r: %s",
                    record.schedule_id,
                    start.workflow_id,
                    error,
                )
            else:
                record = started(record, start, run_id, now_ns)
        return record, has_failed

    def _start(self, record: ScheduleRecord, start: Start) -> str:
        # The count distinguishes two starts for the same time, which may have been backfilled or triggered twice.
        parts = (record.schedule_id, record.create_time_ns, record.action_count, start.due.nominal_ns)
        request = start_request(record, start, "/".join(("schedule", *map(str, parts))))
        last = (record.last_result, record.last_failure)
        answer, _ = start_workflow(self._runs, request, last)
        return answer.run_id

    def _end_others(self, step: ScheduleAdvance) -> None:
        schedule_identity = identity(step.record)
        for workflow in step.cancel:
            reason = "cancelled by schedule overlap policy"
            cancel = CancelWorkflow(
                workflow_id=workflow[0], request_id="", reason=reason, identity=schedule_identity
            )
            self._change(workflow, partial(transitions.request_cancel, request=cancel))
        for workflow in step.terminate:
            reason = "terminated by schedule overlap policy"
            end = TerminateWorkflow(workflow_id=workflow[0], reason=reason, identity=schedule_identity)
            self._change(workflow, partial(transitions.terminate, request=end))

    def _change(self, workflow: Running, transition: Callable[..., Change]) -> None:
        record = self._open_run(workflow)
        if record is not None:
            self._runs.change(record, lambda run, now_ns: transition(run, now_ns=now_ns))

    def _open_run(self, workflow: Running) -> LoadedRun | None:
        """Return the open run of a workflow, or None if the workflow has closed."""
        workflow_id, first_run_id = workflow
        current = self._runs.current(workflow_id)
        if current is None or not current.run.is_open or current.run.started.first_run_id != first_run_id:
            return None
        return current

    def _keep(self, record: ScheduleRecord, wake_ns: int) -> None:
        schedule_id = record.schedule_id
        awaited = tuple(workflow_id for workflow_id, _ in record.running)
        self._enter(ScheduleEntry(schedule_id, wake_ns, awaited))
        self._records[schedule_id] = record
        self._runs.keep_schedule(ScheduleChange(schedule_id=schedule_id, record=record, wake_ns=wake_ns))

    def _enter(self, entry: ScheduleEntry) -> None:
        self._remove(entry.schedule_id)
        self._entries[entry.schedule_id] = entry
        self._unlisted[entry.schedule_id] = None
        for workflow_id in entry.awaited:
            self._awaited.setdefault(workflow_id, set()).add(entry.schedule_id)
        self._due.set(entry.schedule_id, entry.wake_ns)

    def _evict_records(self) -> None:
        """Drop the cached records if there are many and all changes are durable. Must not be called inside a transaction."""
        if len(self._records) > MAX_CACHED_RECORDS and self._runs.writes.is_all_stored():
            self._records.clear()

    def _forget(self, schedule_id: str) -> None:
        self._remove(schedule_id)
        self._due.set(schedule_id, 0)

    def _remove(self, schedule_id: str) -> None:
        self._records.pop(schedule_id, None)
        self._unlisted[schedule_id] = None
        entry = self._entries.pop(schedule_id, None)
        for workflow_id in () if entry is None else entry.awaited:
            schedule_ids = self._awaited.get(workflow_id, set())
            schedule_ids.discard(schedule_id)
            if not schedule_ids:
                self._awaited.pop(workflow_id, None)


def _outcome(record: LoadedRun) -> tuple[Payloads, Failure | None]:
    match record.run.final:
        case h.WorkflowExecutionCompleted(result=result):
            return (result,), None
        case h.WorkflowExecutionFailed(failure=failure):
            return (), failure
        case _:
            return (), None


_ID = SearchAttributeKey.for_keyword("ScheduleId")
_PAUSED = SearchAttributeKey.for_bool("TemporalSchedulePaused")


class ScheduleListing:
    """The list of schedules, newest first.

    A server keeps each schedule as a workflow, so that its filters over schedules are filters over these workflows. Here
    each schedule is entered into an index of runs as a workflow, too. Filters can use `ScheduleId`,
    `TemporalSchedulePaused` and a schedule's own attributes. `unlisted` contains the ids of schedules added, changed or
    deleted since the last query. Without `keep` the index is created for each page, and the list is created without
    pauses, because a list on virtual time takes no time.
    """

    def __init__(
        self,
        unlisted: dict[str, None],
        find: Callable[[str], ScheduleRecord | None],
        *,
        keep: bool,
        load: Callable[[], None] = lambda: None,
    ) -> None:
        self._unlisted = unlisted
        self._find = find
        self._keep = keep
        self._load = load
        self._shown: dict[str, Run] = {}
        self._index: MemoryListing | None = None
        self._open_queries = 0
        self._close_timer: asyncio.TimerHandle | None = None

    async def page(self, text: str, token: bytes, limit: int) -> Page:
        """Return one page of the schedules that match a filter, as workflows whose run ids are the schedule ids.

        Raise `ServiceError` for an invalid filter or token.
        """
        self._load()
        if self._index is None:
            self._index = MemoryListing(self._shown, {_ID.name: "Keyword"}, real_time=self._keep)
        self._open_queries += 1
        try:
            await self._enter_changes(self._index)
            return await self._index.page(text, token, limit)
        finally:
            self._open_queries -= 1
            self._close_later()

    async def _enter_changes(self, index: MemoryListing) -> None:
        """Enter changed schedules into the index. Other tasks run in between and may change more schedules."""
        changed: list[str] = []
        while self._unlisted:
            for schedule_id in list(islice(self._unlisted, SLICE)):
                del self._unlisted[schedule_id]
                changed.append(schedule_id)
                record = self._find_readable(schedule_id)
                if record is None:
                    self._shown.pop(schedule_id, None)
                else:
                    self._shown[schedule_id] = _as_run(record)
            if self._keep:
                await sleep(0)
        # The order is always the same, because the pages of one list may come from two indexes.
        for schedule_id in sorted(changed, key=self._sort_key):
            index.changed(schedule_id)

    def _sort_key(self, schedule_id: str) -> tuple[int, str]:
        run = self._shown.get(schedule_id)
        return (0 if run is None else run.start_ns), schedule_id

    def _close_later(self) -> None:
        if self._close_timer is not None:
            self._close_timer.cancel()
            self._close_timer = None
        if not self._keep and not self._open_queries:
            self.close()
        elif self._keep and self._index is not None:
            self._close_timer = asyncio.get_running_loop().call_later(INDEX_LIFETIME, self.close)

    def _find_readable(self, schedule_id: str) -> ScheduleRecord | None:
        try:
            return self._find(schedule_id)
        except StorageError as error:
            logger.error("schedule %r cannot be read: %s", schedule_id, error)
            return None

    def close(self) -> None:
        """Drop the index. The next query creates it again."""
        self._unlisted |= dict.fromkeys(self._shown)
        self._shown.clear()
        if self._close_timer is not None:
            self._close_timer.cancel()
            self._close_timer = None
        if self._index is not None:
            self._index.close()
            self._index = None


def _as_run(record: ScheduleRecord) -> Run:
    schedule_attributes = encode_search_attributes(
        [_ID.value_set(record.schedule_id), _PAUSED.value_set(record.schedule.state.paused)]
    )
    started = h.WorkflowExecutionStarted(
        workflow_id=f"temporal-sys-scheduler:{record.schedule_id}",
        workflow_type="temporal-sys-scheduler-workflow",
        original_run_id=record.schedule_id,
        first_run_id=record.schedule_id,
        spec=StartSpec(task_queue="temporal-sys-per-ns-tq"),
    )
    return Run(
        run_id=record.schedule_id,
        started=started,
        start_ns=record.create_time_ns,
        search_attributes={**record.search_attributes, **schedule_attributes},
    )


class ScheduleSearch:
    """A thread that searches for the times of large schedules, ahead of the step that needs them.

    Compiling a spec of hundreds of calendars takes up to half a second. On the control loop this would delay all other
    work at each request for the schedule and at each action. So a thread compiles the spec first, and the step on the
    control loop uses the compiled timetable and its cached times. One search runs at a time, so that requests cannot
    occupy all CPUs. Small specs and virtual time need no thread.
    """

    def __init__(self, *, in_thread: bool) -> None:
        self._in_thread = in_thread
        self._executor: ThreadPoolExecutor | None = None

    def takes_long(self, spec: ScheduleSpec) -> bool:
        """Whether a spec must be searched in the thread."""
        parts = len(spec.calendars) + len(spec.intervals) + len(spec.cron_expressions) + len(spec.skip)
        return self._in_thread and parts > _LARGE

    async def settle(self, schedule: EngineSchedule, schedule_id: str, after_ns: int) -> EngineSchedule:
        """Return a new schedule with defaults filled in, after caching its next times. Raise `UsageError` for an invalid
        spec.
        """
        if not self.takes_long(schedule.spec):
            return with_defaults(schedule)
        return await self._run(partial(_settle, schedule, schedule_id, after_ns))

    async def look_ahead(self, spec: ScheduleSpec, schedule_id: str, after_ns: int) -> None:
        """Compute and cache the next times of a large schedule, in the thread. Has no effect for a small schedule."""
        if self.takes_long(spec):
            await self._run(partial(look_ahead, spec, schedule_id, after_ns))

    def stop(self) -> None:
        """Start no more searches, without waiting for one in progress."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _run(self, search: Callable[[], T]) -> T:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="hourglass-schedules")
        return await asyncio.get_running_loop().run_in_executor(self._executor, search)


def _settle(schedule: EngineSchedule, schedule_id: str, after_ns: int) -> EngineSchedule:
    completed = with_defaults(schedule)
    look_ahead(completed.spec, schedule_id, after_ns)
    return completed
