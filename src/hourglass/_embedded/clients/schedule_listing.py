"""Lists of schedules, by Temporal's filters. Pure but for an index in memory that lives for one question.

Must not know: who keeps the schedules. A server keeps each schedule as a workflow of its own, so a filter over schedules
is one over such workflows; here each is shown to the index of runs as such a workflow. There are few schedules, so the
index is made anew for each question. `ScheduleId`, `TemporalSchedulePaused` and a schedule's own attributes can be asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hourglass._contract.schedules import SchedulePage
from hourglass._embedded.rules.run import Run
from hourglass._embedded.rules.schedules import Record, summarize
from hourglass._embedded.store.memory import MemoryListing
from hourglass._history import events as h
from hourglass.converter import SearchAttributeKey, encode_search_attributes

_ID = SearchAttributeKey.for_keyword("ScheduleId")
_PAUSED = SearchAttributeKey.for_bool("TemporalSchedulePaused")

SLICE = 200
"""So many schedules are shown to the index before others get their turn."""


async def page(
    records: Sequence[Record], text: str, token: bytes, limit: int, *, real_time: bool
) -> SchedulePage:
    """Schedules that pass a filter, the newest first, from where another page ended.

    Raises `ServiceError` for a filter or a token that is not understood.
    """
    shown: dict[str, Run] = {}
    for record in records:
        shown[record.schedule_id] = _as_run(record)
        if real_time and not len(shown) % SLICE:
            await asyncio.sleep(0)
    listing = MemoryListing(shown, {_ID.name: "Keyword"}, real_time=real_time)
    try:
        found = await listing.page(text, token, limit)
    finally:
        listing.close()
    by_id = {record.schedule_id: record for record in records}
    return SchedulePage(
        tuple(summarize(by_id[each.run_id]) for each in found.workflows), found.next_page_token
    )


def _as_run(record: Record) -> Run:
    own = encode_search_attributes(
        [_ID.value_set(record.schedule_id), _PAUSED.value_set(record.schedule.state.paused)]
    )
    started = h.WorkflowExecutionStarted(
        workflow_id=f"temporal-sys-scheduler:{record.schedule_id}",
        workflow_type="temporal-sys-scheduler-workflow",
        task_queue="temporal-sys-per-ns-tq",
        original_run_id=record.schedule_id,
        first_run_id=record.schedule_id,
    )
    return Run(
        run_id=record.schedule_id,
        started=started,
        start_ns=record.create_time_ns,
        search_attributes={**record.search_attributes, **own},
    )
