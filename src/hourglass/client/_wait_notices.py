"""Log messages about waits: a client that waits for a run that cannot proceed logs the reason once.

The possible reasons: the run is parked, an activity fails and is retried, no worker receives the activity, no worker serves
the task queue, or one of these applies to a child. The first check takes place after a few seconds, later ones at increasing
intervals until a reason has been logged. Checks must not disturb the wait, so their errors are ignored.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import Sequence
from datetime import datetime
from typing import Self

import msgspec

from hourglass._contract.activities import ActivityExecutionStatus, DescribeActivity
from hourglass._contract.deployments import GetPollers, Pollers
from hourglass._contract.workflows import (
    DescribeWorkflow,
    Description,
    GetHistory,
    PendingActivity,
    WorkflowStatus,
)
from hourglass._history.codec import read_event
from hourglass._history.events import WorkflowTaskFailed
from hourglass.client._session import ClientSession
from hourglass.converter import Converter, Failure
from hourglass.converter._data import is_benign
from hourglass.errors import (
    HourglassError,
    summary,
)

logger = logging.getLogger("hourglass")


SILENCE = 3.0
"""The delay before the first check, in seconds."""
_LONGEST_SILENCE = 300.0
# The longest history that is fetched for a log message, in events.
_LONGEST_HISTORY = 2000
# `_UNTOUCHED` is the history length of a run before a worker has received its first task. `_PATIENCE` is how many seconds
# the client waits before it reports that all known workers of a queue have stopped.
_UNTOUCHED, _PATIENCE = 2, 10.0
# The maximum number of levels of children, and of children per run, that are checked.
_DEEPEST, _MOST_CHILDREN = 3, 3


class WaitWatcher:
    """Checks a single wait at intervals, while its block runs. Must be used on the control loop."""

    __slots__ = ("_began", "_checking", "_logged", "_session")

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._logged = False
        self._began = asyncio.get_running_loop().time()
        self._checking: asyncio.Task[None] | None = None
        session.link.waits.add(self._begin, self._began + SILENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.link.waits.remove(self._begin)
        if self._checking is not None:
            self._checking.cancel()

    def _begin(self) -> None:
        self._checking = asyncio.get_running_loop().create_task(self._look_often())

    async def check(self) -> bool:
        """Check the wait now, unless a reason was already logged. Return whether a reason has been logged."""
        if not self._logged:
            try:
                self._logged = await self._log()
            except HourglassError:
                pass
        return self._logged

    async def _look_often(self) -> None:
        pause = SILENCE
        while not await self.check():
            pause = min(2 * pause, _LONGEST_SILENCE)
            await sleep(pause)

    async def _log(self) -> bool:
        """Log the reason for a delay, if there is one. Return whether a reason was logged."""
        raise NotImplementedError

    def _is_unserved(self, pollers: Pollers) -> bool:
        """Whether no worker receives tasks of this kind from the queue. If a file has no worker at all, the connection
        itself logs that.
        """
        target = self._session.link.target
        on_file = target.startswith("local:") and target != "local:"
        return not pollers.pollers and (bool(pollers.served) or not on_file)

    def _is_left(self, pollers: Pollers, since_ns: int) -> bool:
        """Whether the known workers of a queue have stopped. A server remembers pollers for minutes. Workers that last
        polled before a task was added, and have not received the task, have stopped or are busy.
        """
        if not pollers.pollers or asyncio.get_running_loop().time() - self._began < _PATIENCE:
            return False
        return max(poller.last_seen_ns for poller in pollers.pollers) < since_ns

    def _is_new(self, *what: str) -> bool:
        """Return whether this reason is logged for the first time on this connection, and mark it as logged."""
        reported = self._session.link.unserved
        if what in reported:
            return False
        reported.add(what)
        return True

    def _log_failing(
        self, subject: str, activity: PendingActivity, facts: dict[str, object], advice: str = ""
    ) -> None:
        most = f" of {activity.maximum_attempts}" if activity.maximum_attempts else ""
        due = activity.next_attempt_time_ns
        again = f", next at {datetime.fromtimestamp(due / 1e9):%H:%M:%S}" if due else ""
        logger.warning(
            "%s failed and is retried (attempt %d%s%s): %s%s",
            subject,
            activity.attempt,
            most,
            again,
            _in_a_line(activity.last_failure, self._session.converter),
            advice,
            extra={**facts, **_facts_of_activity(activity), "attempt": activity.attempt},
        )

    async def _log_untaken(self, subject: str, activity: PendingActivity, facts: dict[str, object]) -> bool:
        """Log that no worker receives an activity from its queue, once for each type, queue and connection."""
        name, queue = activity.activity_type, activity.task_queue
        if not queue or not _is_untouched(activity):
            return False
        if ("activity", name, queue) in self._session.link.unserved:
            return False
        pollers = await self._session.call(GetPollers(task_queue=queue, activities=True))
        left = self._is_left(pollers, activity.scheduled_time_ns)
        if not (left or self._is_unserved(pollers)) or not self._is_new("activity", name, queue):
            return False
        if pollers.pollers:
            reason = f"the workers of task queue {queue!r} have ended, or accept no more tasks"
        elif queue in pollers.served:
            reason = f"the worker of task queue {queue!r} executes only workflows"
        elif pollers.served:
            reason = f"no worker serves task queue {queue!r}; the workers serve {_listed(pollers.served)}"
        else:
            reason = f"no worker polls task queue {queue!r} for activities"
        logger.warning(
            "%s has no worker: %s. Register it: Worker(client, %r, activities=[%s])",
            subject,
            reason,
            queue,
            name if name.isidentifier() else "…",
            extra={**facts, **_facts_of_activity(activity)},
        )
        return True


class WaitNotice(WaitWatcher):
    """Checks the wait for a workflow at intervals."""

    __slots__ = ("_workflow_id", "run_id")

    def __init__(self, session: ClientSession, workflow_id: str, run_id: str) -> None:
        super().__init__(session)
        self.run_id = run_id
        """The id of the run that the client waits for. The runs of a chain are checked separately."""
        self._workflow_id = workflow_id

    async def _log(self) -> bool:
        return await self._log_of(self._workflow_id, self.run_id, 0)

    async def _log_of(self, workflow_id: str, run_id: str, depth: int) -> bool:
        """Log what delays a run or one of its pending children, if anything does. Return whether a reason was logged."""
        description = await self._session.call(DescribeWorkflow(workflow_id=workflow_id, run_id=run_id))
        if description.summary.status is not WorkflowStatus.RUNNING:
            return False
        if description.task_attempt > 1:
            await self._log_parked(description)
            return True
        for activity in description.pending_activities:
            if _is_failing(activity):
                advice = f". `hourglass why {description.summary.workflow_id}` shows more"
                self._log_failing(
                    self._waits_for(description, activity), activity, _facts(description), advice
                )
                return True
        if await self._log_unserved(description):
            return True
        for activity in description.pending_activities:
            subject = self._waits_for(description, activity)
            if await self._log_untaken(subject, activity, _facts(description)):
                return True
        if depth < _DEEPEST:
            for child in description.pending_children[:_MOST_CHILDREN]:
                if await self._log_of(child.workflow_id, "", depth + 1):
                    return True
        return False

    async def _log_parked(self, description: Description) -> None:
        workflow, reason = description.summary, ""
        if workflow.history_length <= _LONGEST_HISTORY:
            reason = await _last_task_failure(self._session, workflow.workflow_id, workflow.run_id)
        logger.warning(
            "%s is parked: its task fails and is retried (attempt %d) until the code is fixed; %s",
            self._named(description, f" (run {workflow.run_id})"),
            description.task_attempt,
            f"the last failure was: {reason}" if reason else "the worker's log says why",
            extra=_facts(description),
        )

    async def _log_unserved(self, description: Description) -> bool:
        """Log that no worker serves the task queue, once for each queue and connection."""
        queue, link = description.summary.task_queue, self._session.link
        if ("workflow", queue) in link.unserved:
            return False
        pollers = await self._session.call(GetPollers(task_queue=queue))
        workflow = description.summary
        left = workflow.history_length == _UNTOUCHED and self._is_left(pollers, workflow.start_time_ns)
        if not (left or self._is_unserved(pollers)) or not self._is_new("workflow", queue):
            return False
        reason = _unserved(pollers, queue, link.target)
        logger.warning("%s %s", self._named(description), reason, extra=_facts(description))
        return True

    def _waits_for(self, description: Description, activity: PendingActivity) -> str:
        return f"{self._named(description)} waits for activity {activity.activity_type}, which"

    def _named(self, description: Description, more: str = "") -> str:
        name = description.summary.workflow_id
        if name == self._workflow_id:
            return f"workflow {name}{more}"
        return f"workflow {self._workflow_id} waits for workflow {name}{more}, which"


class ActivityWaitNotice(WaitWatcher):
    """Checks the wait for a standalone activity at intervals."""

    __slots__ = ("_activity_id", "_run_id")

    def __init__(self, session: ClientSession, activity_id: str, run_id: str) -> None:
        super().__init__(session)
        self._activity_id = activity_id
        self._run_id = run_id

    async def _log(self) -> bool:
        description = await self._session.call(
            DescribeActivity(activity_id=self._activity_id, run_id=self._run_id)
        )
        listed = description.summary
        activity = PendingActivity(
            activity_id=listed.activity_id,
            activity_type=listed.activity_type,
            state=description.state,
            task_queue=listed.task_queue,
            attempt=description.attempt,
            maximum_attempts=description.spec.retry_policy.maximum_attempts
            if description.spec.retry_policy
            else 0,
            last_failure=description.last_failure,
            # An activity with a start delay is waiting for that delay, not for a worker.
            scheduled_time_ns=0
            if description.next_attempt_time_ns > listed.schedule_time_ns
            else listed.schedule_time_ns,
            next_attempt_time_ns=description.next_attempt_time_ns,
            last_started_time_ns=description.last_started_time_ns,
        )
        subject = f"activity {listed.activity_id} ({listed.activity_type})"
        facts: dict[str, object] = {"task_queue": listed.task_queue}
        if listed.status is not ActivityExecutionStatus.RUNNING:
            return False
        if _is_failing(activity):
            self._log_failing(subject, activity, facts)
            return True
        return await self._log_untaken(subject, activity, facts)


def _unserved(pollers: Pollers, queue: str, target: str) -> str:
    """Return a message that no worker receives workflow tasks from a queue, with the names of the queues that are served, if
    known.
    """
    if pollers.pollers:
        return f"has no worker: the workers of its task queue {queue!r} have ended, or accept no more tasks"
    if queue in pollers.served:
        return (
            f"waits in task queue {queue!r}, whose worker executes only activities: register the workflow, too, with "
            f"Worker(client, {queue!r}, workflows=[…])"
        )
    if pollers.served:
        where = target.partition("local:")[2] or target
        return f"waits in task queue {queue!r}, which no worker serves: the worker on {where} serves {_listed(pollers.served)}"
    return f"has no worker: no worker polls its task queue {queue!r}"  # a server does not report the served queues


def _listed(queues: Sequence[str]) -> str:
    return ", ".join(repr(queue) for queue in queues)


def _facts(description: Description) -> dict[str, object]:
    workflow = description.summary
    return {
        "workflow_id": workflow.workflow_id,
        "run_id": workflow.run_id,
        "workflow_type": workflow.workflow_type,
        "task_queue": workflow.task_queue,
    }


def _facts_of_activity(activity: PendingActivity) -> dict[str, object]:
    return {"activity_type": activity.activity_type, "activity_id": activity.activity_id}


def _is_failing(activity: PendingActivity) -> bool:
    return activity.last_failure is not None and not is_benign(activity.last_failure)


def _is_untouched(activity: PendingActivity) -> bool:
    """Whether no worker has ever received the activity, although it is not paused."""
    never = not activity.last_started_time_ns and activity.last_failure is None
    return never and activity.state == "SCHEDULED"


def _in_a_line(failure: Failure | None, converter: Converter) -> str:
    return "" if failure is None else summary(converter.from_failure(failure))


async def _last_task_failure(session: ClientSession, workflow_id: str, run_id: str) -> str:
    reason, token = "", b""
    while True:
        page = await session.call(GetHistory(workflow_id=workflow_id, run_id=run_id, next_page_token=token))
        for event in page.events:
            reason = _task_failure(event, session.converter) or reason
        token = page.next_page_token
        if not token:
            return reason


def _task_failure(event: bytes, converter: Converter) -> str:
    if b"workflowTaskFailedEventAttributes" not in event:
        return ""
    failed = read_event(msgspec.json.decode(event)).attributes
    failure = failed.failure if isinstance(failed, WorkflowTaskFailed) else None
    return _in_a_line(failure, converter)
