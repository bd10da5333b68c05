"""The schedules of an engine: keeps their records, looks at each when its time has come, and does what they decide.

Must not know: requests, what a spec means, overlap policies (see `rules.schedules`). Invariants: a schedule's step,
the workflows that it starts, and those that it ends are one change of the store, so that after a crash all of it has
happened or none; a workflow that a schedule waits for tells it of its end in the change that ends it; a schedule that
cannot be read, or whose workflow cannot be started, keeps no other schedule from acting.

All schedules are known in short from the first look on (`ScheduleEntry`); a record is read when it is needed, and is
dropped when there are many and all is durable. `ScheduleListing` is the list of them, by Temporal's filters: made when it
is first asked for, then kept up to date for a while, so that a page costs what is on it and what has changed.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import Callable
from functools import partial
from itertools import islice

from hourglass._contract.workflows import CancelWorkflow, Page, TerminateWorkflow
from hourglass._embedded.clock import SECOND, RealClock, later
from hourglass._embedded.runs.run import LoadedRun
from hourglass._embedded.runs.runs import RunTable
from hourglass._embedded.runs.starting import start_workflow
from hourglass._embedded.runs.timers import DueTimes
from hourglass._embedded.schedules.search import ScheduleSearch
from hourglass._embedded.schedules.transitions import (
    Running,
    ScheduleRecord,
    ScheduleStep,
    Start,
    advance,
    closed,
    identity,
    start_request,
    started,
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
"""So many schedules act, or are listed, before others get their turn."""
KEPT = 1000
"""About so many records stay in memory."""
LISTED = 60.0
"""So many seconds after it was last asked for the list of schedules is kept in memory."""
PAUSE_NS = 5 * SECOND
"""How long to wait before looking again whether there is room for new workflows."""

logger = logging.getLogger("hourglass.embedded")


def _as_it_is(record: ScheduleRecord) -> ScheduleRecord:
    return record


class Schedules:
    """See the module. Implements `EndListener`. Acts by itself from `begin` on."""

    def __init__(self, runs: RunTable, doubt: Callable[[StorageError], None]) -> None:
        self._runs = runs
        self._doubt = doubt
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
        """Learn which schedules there are, unless they are known. Raises `StorageError`."""
        if not self._loaded:
            self._loaded = True
            for entry in self._runs.store.schedules():
                self._enter(entry)

    def begin(self) -> None:
        """Act from now on when the time has come; first for what has come due since an engine last did."""
        self.load()
        self._due.begin()

    def stop(self) -> None:
        """Act no more."""
        self._due.stop()
        for task in self._searches:
            task.cancel()
        self.search.stop()
        self.listing.close()

    # --- records --------------------------------------------------------------------------------------------

    def get(self, schedule_id: str) -> ScheduleRecord | None:
        """A schedule, which is kept in memory from now on: it is to be changed."""
        record = self.find(schedule_id)
        if record is not None:
            self._records[schedule_id] = record
        return record

    def find(self, schedule_id: str) -> ScheduleRecord | None:
        """A schedule, to be looked at."""
        self.load()
        if schedule_id not in self._entries:
            return None
        return self._records.get(schedule_id) or self._runs.store.schedule(schedule_id)

    def put(self, record: ScheduleRecord) -> None:
        """A schedule is new, or was changed by a request: it acts, if there is something to do."""
        self.load()
        self._act(record)
        self._due.set_alarm()

    def delete(self, schedule_id: str) -> None:
        """Forget a schedule; what it has started goes on."""
        self._forget(schedule_id)
        self._runs.keep_schedule(ScheduleChange(schedule_id=schedule_id))
        self._due.set_alarm()

    def read_again(self, schedule_id: str) -> None:
        """What is in memory of a schedule cannot be stored. It is again as the store has it, and does not act before
        a request changes it or the store is opened anew: it would only try the same.
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

    # --- workflows that ended ---------------------------------------------------------------------------------

    def awaits(self, workflow_id: str) -> bool:
        """Whether a schedule waits for the end of this workflow."""
        if not self._loaded:
            self.load()
        return workflow_id in self._awaited

    def ended(self, record: LoadedRun) -> None:
        """A run of a workflow that a schedule waits for has closed; if nothing follows it, the schedule goes on."""
        run = record.run
        workflow = (run.started.workflow_id, run.started.first_run_id)
        if self._open_run(workflow) is not None:
            return

        def go_on(schedule: ScheduleRecord) -> ScheduleRecord:
            if workflow not in schedule.running:
                return schedule
            return closed(schedule, workflow[0], run.status, *_outcome(record))

        for schedule_id in tuple(self._awaited.get(run.started.workflow_id, ())):
            self._look(schedule_id, go_on)
        self._due.set_alarm()

    # --- time -------------------------------------------------------------------------------------------------

    def realign(self) -> None:
        """Time has jumped."""
        self._due.realign()

    def _elapse(self) -> None:
        """The alarm: let all act whose time has come."""
        self._drop_some()
        now = self._runs.clock.now_ns()
        for _ in range(SLICE):
            schedule_id = self._due.take(now)
            if schedule_id is None:
                break
            record = self._readable(schedule_id)
            if record is not None and self.search.takes_long(record.schedule.spec):
                self._search_and_look(record)
            else:
                self._look(schedule_id)
        self._runs.queues.dispatch()

    def _readable(self, schedule_id: str) -> ScheduleRecord | None:
        """A schedule; None for one that cannot be read, of which `_look` reports why."""
        try:
            return self.find(schedule_id)
        except StorageError:
            return None

    def _search_and_look(self, record: ScheduleRecord) -> None:
        """Let a schedule act once its next times were found."""

        async def search() -> None:
            await self.search.look_ahead(record.schedule.spec, record.schedule_id, record.seen_ns)
            self._look(record.schedule_id)
            self._due.set_alarm()
            self._runs.queues.dispatch()

        task = asyncio.get_running_loop().create_task(search())
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)

    def _look(self, schedule_id: str, change: Callable[[ScheduleRecord], ScheduleRecord] = _as_it_is) -> None:
        """Let one schedule act, after a change; whatever is wrong with it concerns no other schedule."""
        try:
            record = self.get(schedule_id)
            if record is not None:
                self._act(change(record))
        except HourglassError as error:
            # It stays as it is until a request changes it or the file is opened anew.
            logger.error("schedule %r cannot act: %s", schedule_id, error)
            if isinstance(error, StorageError):
                self._doubt(error)

    # --- acting -------------------------------------------------------------------------------------------------

    def _act(self, record: ScheduleRecord) -> None:
        """Let a schedule do what it has to do now, and keep it: all in one change."""
        now = self._runs.clock.now_ns()
        with self._runs.transaction():
            if self._runs.store.refuses_starts():  # nothing is missed: it is caught up with later
                self._keep(record, later(now, PAUSE_NS))
                return
            step = advance(record, now)
            record, refused = self._start_all(step, now)
            again = refused and bool(record.waiting)  # what waited for one that cannot start may start itself
            self._keep(record, now if again else step.wake_ns or 0)
            self._end_others(step)

    def _start_all(self, step: ScheduleStep, now_ns: int) -> tuple[ScheduleRecord, bool]:
        """Start what is to be started; says whether something could not be. That one is dropped, as on a server."""
        record, refused = step.record, False
        for start in step.starts:
            try:
                run_id = self._start(record, start)
            except (ServiceError, StorageError) as error:
                refused = True
                logger.warning(
                    "schedule %r could not start workflow %r: %s",
                    record.schedule_id,
                    start.workflow_id,
                    error,
                )
            else:
                record = started(record, start, run_id, now_ns)
        return record, refused

    def _start(self, record: ScheduleRecord, start: Start) -> str:
        # The count tells two starts for the same time apart: a time may be backfilled, or triggered, twice.
        parts = (record.schedule_id, record.create_time_ns, record.action_count, start.due.nominal_ns)
        request = start_request(record, start, "/".join(("schedule", *map(str, parts))))
        last = (record.last_result, record.last_failure)
        answer, _ = start_workflow(self._runs, request, last)
        return answer.run_id

    def _end_others(self, step: ScheduleStep) -> None:
        who = identity(step.record)
        for workflow in step.cancel:
            reason = "cancelled by schedule overlap policy"
            cancel = CancelWorkflow(workflow_id=workflow[0], request_id="", reason=reason, identity=who)
            self._change(workflow, partial(transitions.request_cancel, request=cancel))
        for workflow in step.terminate:
            reason = "terminated by schedule overlap policy"
            end = TerminateWorkflow(workflow_id=workflow[0], reason=reason, identity=who)
            self._change(workflow, partial(transitions.terminate, request=end))

    def _change(self, workflow: Running, transition: Callable[..., Change]) -> None:
        record = self._open_run(workflow)
        if record is not None:
            self._runs.change(record, lambda run, now_ns: transition(run, now_ns=now_ns))

    def _open_run(self, workflow: Running) -> LoadedRun | None:
        """The run at which a workflow is now, if it is still open."""
        workflow_id, first_run_id = workflow
        current = self._runs.current(workflow_id)
        if current is None or not current.run.is_open or current.run.started.first_run_id != first_run_id:
            return None
        return current

    # --- keeping ------------------------------------------------------------------------------------------------

    def _keep(self, record: ScheduleRecord, wake_ns: int) -> None:
        schedule_id = record.schedule_id
        awaited = tuple(workflow_id for workflow_id, _ in record.running)
        self._enter(ScheduleEntry(schedule_id, wake_ns, awaited))
        self._records[schedule_id] = record
        self._runs.keep_schedule(ScheduleChange(schedule_id=schedule_id, record=record, wake_ns=wake_ns))

    def _enter(self, entry: ScheduleEntry) -> None:
        self._leave(entry.schedule_id)
        self._entries[entry.schedule_id] = entry
        self._unlisted[entry.schedule_id] = None
        for workflow_id in entry.awaited:
            self._awaited.setdefault(workflow_id, set()).add(entry.schedule_id)
        self._due.set(entry.schedule_id, entry.wake_ns)

    def _drop_some(self) -> None:
        """Records can be read again once all is durable. Never while changes are being gathered."""
        if len(self._records) > KEPT and self._runs.writes.is_all_stored():
            self._records.clear()

    def _forget(self, schedule_id: str) -> None:
        self._leave(schedule_id)
        self._due.set(schedule_id, 0)

    def _leave(self, schedule_id: str) -> None:
        self._records.pop(schedule_id, None)
        self._unlisted[schedule_id] = None
        entry = self._entries.pop(schedule_id, None)
        for workflow_id in () if entry is None else entry.awaited:
            others = self._awaited.get(workflow_id, set())
            others.discard(schedule_id)
            if not others:
                self._awaited.pop(workflow_id, None)


def _outcome(record: LoadedRun) -> tuple[Payloads, Failure | None]:
    """The result or the failure of a run."""
    match record.run.final:
        case h.WorkflowExecutionCompleted(result=result):
            return (result,), None
        case h.WorkflowExecutionFailed(failure=failure):
            return (), failure
        case _:
            return (), None


# --- lists ----------------------------------------------------------------------------------------------------


_ID = SearchAttributeKey.for_keyword("ScheduleId")
_PAUSED = SearchAttributeKey.for_bool("TemporalSchedulePaused")


class ScheduleListing:
    """The list of schedules, the newest first.

    A server keeps each schedule as a workflow of its own, so a filter over schedules is one over such workflows; here
    each is shown to the index of runs as such a workflow. `ScheduleId`, `TemporalSchedulePaused` and a schedule's own
    attributes can be asked. `unlisted` names the schedules that are new, changed or gone since the last look. Without
    `keep` the index is made anew for each page: a list on virtual time takes no time.
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
        self._asking = 0
        self._end: asyncio.TimerHandle | None = None

    async def page(self, text: str, token: bytes, limit: int) -> Page:
        """Schedules that pass a filter, as workflows whose run ids are the schedules', from where another page ended.
        Raises `ServiceError` for a filter or a token that is not understood.
        """
        self._load()
        if self._index is None:
            self._index = MemoryListing(self._shown, {_ID.name: "Keyword"}, real_time=self._keep)
        self._asking += 1
        try:
            await self._take_in(self._index)
            return await self._index.page(text, token, limit)
        finally:
            self._asking -= 1
            self._close_later()

    async def _take_in(self, index: MemoryListing) -> None:
        """Show what has changed; others get their turns in between, and may change more."""
        changed: list[str] = []
        while self._unlisted:
            for schedule_id in list(islice(self._unlisted, SLICE)):
                del self._unlisted[schedule_id]
                changed.append(schedule_id)
                record = self._readable(schedule_id)
                if record is None:
                    self._shown.pop(schedule_id, None)
                else:
                    self._shown[schedule_id] = _as_run(record)
            if self._keep:
                await sleep(0)
        # In one order, however often the index is made: pages of one list may come from two.
        for schedule_id in sorted(changed, key=self._place):
            index.changed(schedule_id)

    def _place(self, schedule_id: str) -> tuple[int, str]:
        run = self._shown.get(schedule_id)
        return (0 if run is None else run.start_ns), schedule_id

    def _close_later(self) -> None:
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if not self._keep and not self._asking:
            self.close()
        elif self._keep and self._index is not None:
            self._end = asyncio.get_running_loop().call_later(LISTED, self.close)

    def _readable(self, schedule_id: str) -> ScheduleRecord | None:
        try:
            return self._find(schedule_id)
        except StorageError as error:
            logger.error("schedule %r cannot be read: %s", schedule_id, error)
            return None

    def close(self) -> None:
        """Forget all of it; it is made anew when it is asked for."""
        self._unlisted |= dict.fromkeys(self._shown)
        self._shown.clear()
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if self._index is not None:
            self._index.close()
            self._index = None


def _as_run(record: ScheduleRecord) -> Run:
    own = encode_search_attributes(
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
        search_attributes={**record.search_attributes, **own},
    )
