"""Searches for the times of large schedules, in a thread, ahead of the step that needs them.

Compiling a spec of hundreds of calendars takes up to half a second. On the control loop this would delay all other work
at each request for the schedule and at each action. So a thread compiles the spec first, and the step on the control
loop uses the compiled timetable and its cached times.

Must not know: records, requests. Invariants: one search at a time, so that requests cannot occupy all CPUs. Small specs
and virtual time need no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from hourglass._contract.schedule_specs import ScheduleSpec
from hourglass._contract.schedules import EngineSchedule
from hourglass._embedded.schedules.transitions import look_ahead, with_defaults

T = TypeVar("T")

_LARGE = 20
"""Specs with more calendars, intervals, cron strings and exclusions than this are searched in the thread."""


class ScheduleSearch:
    """A thread that searches for times (see the module)."""

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
