"""What a client that waits for a run says, once, when the run cannot end as it stands: its code is parked, an activity fails
and is tried again, no worker serves its task queue, or one of these holds of a child that it waits for.

The first look is after a few seconds, later ones at growing pauses, until something was said. A look must not disturb the
wait: what cannot be found out is left out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from datetime import datetime

import msgspec

from hourglass._contract.service import (
    DescribeWorkflow,
    Description,
    GetHistory,
    GetPollers,
    PendingActivity,
    WorkflowStatus,
)
from hourglass._history.codec import read_event
from hourglass._history.events import WorkflowTaskFailed
from hourglass.client._session import ClientSession
from hourglass.converter import ApplicationFailure, Converter, Failure
from hourglass.errors import ApplicationErrorCategory, HourglassError, summary

logger = logging.getLogger("hourglass")

SILENCE = 3.0
"""After how many seconds of waiting the first look is."""
_LONGEST_PAUSE = 300.0
# Above this a history is not fetched for the sake of a log line.
_LONGEST_HISTORY = 2000
_DEEPEST, _MOST_CHILDREN = 3, 3


class WaitNotice:
    """Looks after one wait. Belongs to the control loop."""

    __slots__ = ("_looking", "_said", "_session", "_timer", "_workflow_id", "run_id")

    def __init__(self, session: ClientSession, workflow_id: str, run_id: str) -> None:
        self.run_id = run_id
        """The run that is waited for: its successors have others."""
        self._session = session
        self._workflow_id = workflow_id
        self._said = False
        self._looking: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(SILENCE, self._begin)

    def end(self) -> None:
        """The wait is over."""
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()

    def _begin(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look_often())

    async def look(self) -> bool:
        """Look now, unless something was said already; True if something was."""
        if not self._said:
            try:
                self._said = await self._say(self._workflow_id, self.run_id, 0)
            except HourglassError:
                pass
        return self._said

    async def _look_often(self) -> None:
        pause = SILENCE
        while not await self.look():
            pause = min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _say(self, workflow_id: str, run_id: str, depth: int) -> bool:
        """Log what keeps a run, or a child that it waits for, if anything does."""
        description = await self._session.call(DescribeWorkflow(workflow_id=workflow_id, run_id=run_id))
        if description.summary.status is not WorkflowStatus.RUNNING:
            return False
        if description.task_attempt > 1:
            await self._say_parked(description)
            return True
        failing = next(_failing(description), None)
        if failing is not None:
            self._say_failing(description, failing)
            return True
        if await self._say_unserved(description):
            return True
        if depth < _DEEPEST:
            for child in description.pending_children[:_MOST_CHILDREN]:
                if await self._say(child.workflow_id, "", depth + 1):
                    return True
        return False

    async def _say_parked(self, description: Description) -> None:
        known, reason = description.summary, ""
        if known.history_length <= _LONGEST_HISTORY:
            reason = await _last_task_failure(self._session, known.workflow_id, known.run_id)
        logger.warning(
            "%s (run %s) is parked: its task has failed and is tried again (attempt %d) until the code is mended; %s",
            self._named(description),
            known.run_id,
            description.task_attempt,
            f"the last failure was: {reason}" if reason else "the worker's log says why",
            extra=_facts(description),
        )

    def _say_failing(self, description: Description, activity: PendingActivity) -> None:
        most = f" of {activity.maximum_attempts}" if activity.maximum_attempts else ""
        due = activity.next_attempt_time_ns
        again = f", next at {datetime.fromtimestamp(due / 1e9):%H:%M:%S}" if due else ""
        logger.warning(
            "%s waits for activity %s, which fails and is tried again (attempt %d%s%s): %s. `hourglass why %s` tells more",
            self._named(description),
            activity.activity_type,
            activity.attempt,
            most,
            again,
            _in_a_line(activity.last_failure, self._session.converter),
            description.summary.workflow_id,
            extra={
                **_facts(description),
                "activity_type": activity.activity_type,
                "activity_id": activity.activity_id,
                "attempt": activity.attempt,
            },
        )

    async def _say_unserved(self, description: Description) -> bool:
        """That there is no worker for its queue; once for each queue and connection. That a file has none at all, its own
        connection says.
        """
        queue, link = description.summary.task_queue, self._session.link
        if queue in link.unserved:
            return False
        found = await self._session.call(GetPollers(task_queue=queue))
        local = link.target.startswith("local:")
        if found.pollers or queue in link.unserved or (local and not found.served):
            return False
        link.unserved.add(queue)
        if not found.served:  # a server has no list of the queues that are served
            logger.warning(
                "%s has no worker: none polls its task queue %r",
                self._named(description),
                queue,
                extra=_facts(description),
            )
            return True
        logger.warning(
            "%s waits in the task queue %r, which no worker serves: the worker on %s serves %s",
            self._named(description),
            queue,
            link.target.partition("local:")[2] or link.target,
            ", ".join(repr(each) for each in found.served),
            extra=_facts(description),
        )
        return True

    def _named(self, description: Description) -> str:
        known = description.summary.workflow_id
        if known == self._workflow_id:
            return f"workflow {known}"
        return f"workflow {self._workflow_id} waits for workflow {known}, which"


def _facts(description: Description) -> dict[str, object]:
    known = description.summary
    return {
        "workflow_id": known.workflow_id,
        "run_id": known.run_id,
        "workflow_type": known.workflow_type,
        "task_queue": known.task_queue,
    }


def _failing(description: Description) -> Iterator[PendingActivity]:
    for each in description.pending_activities:
        if each.last_failure is not None and not _is_benign(each.last_failure):
            yield each


def _is_benign(failure: Failure) -> bool:
    info = failure.info
    return isinstance(info, ApplicationFailure) and info.category == ApplicationErrorCategory.BENIGN


def _in_a_line(failure: Failure | None, converter: Converter) -> str:
    return "" if failure is None else summary(converter.from_failure(failure))


async def _last_task_failure(session: ClientSession, workflow_id: str, run_id: str) -> str:
    reason, token = "", b""
    while True:
        page = await session.call(GetHistory(workflow_id=workflow_id, run_id=run_id, next_page_token=token))
        for event in page.events:
            reason = _task_failure(event) or reason
        token = page.next_page_token
        if not token:
            return reason


def _task_failure(event: bytes) -> str:
    if b"workflowTaskFailedEventAttributes" not in event:
        return ""
    failed = read_event(msgspec.json.decode(event)).attributes
    failure = failed.failure if isinstance(failed, WorkflowTaskFailed) else None
    return "" if failure is None else failure.message
