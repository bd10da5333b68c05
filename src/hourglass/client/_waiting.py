"""Waiting for a run to close: through outages, along its successors, and not in silence; and how it ended, as its caller sees it.
Waits for updates are not silent either.

A wait changes nothing, so it is repeated where the service cannot be reached for a while. A client that waits for a run that
cannot end as it stands logs why, once: its code is parked, an activity fails and is tried again, or no worker takes it, no
worker serves its task queue, or one of these holds of a child that it waits for. The first look is after a few seconds, later
ones at growing pauses, until something was said. A look must not disturb the wait: what cannot be found out is left out.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from hourglass._contract.activities import ActivityExecutionStatus, DescribeActivity
from hourglass._contract.deployments import GetPollers, Pollers
from hourglass._contract.service import Request
from hourglass._contract.workflows import (
    DescribeWorkflow,
    Description,
    GetHistory,
    Outcome,
    PendingActivity,
    RunCanceled,
    RunCompleted,
    RunContinued,
    RunFailed,
    RunTerminated,
    RunTimedOut,
    StillOpen,
    WaitForClose,
    WorkflowStatus,
)
from hourglass._history.codec import read_event
from hourglass._history.events import WorkflowTaskFailed
from hourglass.client._session import ClientSession
from hourglass.converter import Converter, Failure, Payload
from hourglass.converter._data import is_benign
from hourglass.errors import (
    CancelledError,
    HourglassError,
    InternalError,
    ServiceError,
    TerminatedError,
    TimedOutError,
    TimeoutType,
    WorkflowContinuedAsNewError,
    WorkflowFailedError,
    summary,
)

logger = logging.getLogger("hourglass")

# --- what is said meanwhile -------------------------------------------------------------------------


SILENCE = 3.0
"""After how many seconds of waiting the first look is."""
_LONGEST_SILENCE = 300.0
# Above this a history is not fetched for the sake of a log line.
_LONGEST_HISTORY = 2000
_DEEPEST, _MOST_CHILDREN = 3, 3
# How many events a run has whose first task no worker has taken; and how long that may be so where workers were seen, in seconds.
_UNTOUCHED, _PATIENCE = 2, 10.0


class WaitWatcher:
    """Looks after one wait. Belongs to the control loop."""

    __slots__ = ("_began", "_looking", "_said", "_session", "_timer")

    def __init__(self, session: ClientSession) -> None:
        loop = asyncio.get_running_loop()
        self._session = session
        self._said = False
        self._began = loop.time()
        self._looking: asyncio.Task[None] | None = None
        self._timer = loop.call_later(SILENCE, self._begin)

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
                self._said = await self._say()
            except HourglassError:
                pass
        return self._said

    async def _look_often(self) -> None:
        pause = SILENCE
        while not await self.look():
            pause = min(2 * pause, _LONGEST_SILENCE)
            await sleep(pause)

    async def _say(self) -> bool:
        """Log what keeps it, if anything does."""
        raise NotImplementedError

    def _is_unserved(self, found: Pollers) -> bool:
        """Whether no worker takes from a queue what was asked for; that a file has no worker at all, its connection says."""
        target = self._session.link.target
        on_file = target.startswith("local:") and target != "local:"
        return not found.pollers and (bool(found.served) or not on_file)

    def _is_left(self, found: Pollers, since_ns: int) -> bool:
        """Whether a queue's workers have ended, though they are known. A server remembers pollers for minutes: those that
        polled last before a task came, and leave it where it is, are no more, or have their hands full.
        """
        if not found.pollers or asyncio.get_running_loop().time() - self._began < _PATIENCE:
            return False
        return max(each.last_seen_ns for each in found.pollers) < since_ns

    def _is_new(self, *what: str) -> bool:
        """Whether that has not been said on this connection; it counts as said from now on."""
        told = self._session.link.unserved
        if what in told:
            return False
        told.add(what)
        return True

    def _say_failing(
        self, subject: str, activity: PendingActivity, facts: dict[str, object], advice: str = ""
    ) -> None:
        most = f" of {activity.maximum_attempts}" if activity.maximum_attempts else ""
        due = activity.next_attempt_time_ns
        again = f", next at {datetime.fromtimestamp(due / 1e9):%H:%M:%S}" if due else ""
        logger.warning(
            "%s fails and is tried again (attempt %d%s%s): %s%s",
            subject,
            activity.attempt,
            most,
            again,
            _in_a_line(activity.last_failure, self._session.converter),
            advice,
            extra={**facts, **_facts_of_activity(activity), "attempt": activity.attempt},
        )

    async def _say_untaken(self, subject: str, activity: PendingActivity, facts: dict[str, object]) -> bool:
        """That no worker takes an activity from its queue; once for each type, queue and connection."""
        name, queue = activity.activity_type, activity.task_queue
        if not queue or not _is_untouched(activity):
            return False
        if ("activity", name, queue) in self._session.link.unserved:
            return False
        found = await self._session.call(GetPollers(task_queue=queue, activities=True))
        left = self._is_left(found, activity.scheduled_time_ns)
        if not (left or self._is_unserved(found)) or not self._is_new("activity", name, queue):
            return False
        if found.pollers:
            told = f"those of task queue {queue!r} have ended, or take no more work"
        elif queue in found.served:
            told = f"the worker of task queue {queue!r} has workflows only"
        elif found.served:
            told = f"no worker serves task queue {queue!r}, but {_listed(found.served)}"
        else:
            told = f"none polls task queue {queue!r} for activities"
        logger.warning(
            "%s is taken by no worker: %s. Give it to one: Worker(client, %r, activities=[%s])",
            subject,
            told,
            queue,
            name if name.isidentifier() else "…",
            extra={**facts, **_facts_of_activity(activity)},
        )
        return True


class WaitNotice(WaitWatcher):
    """Looks after the wait for a workflow."""

    __slots__ = ("_workflow_id", "run_id")

    def __init__(self, session: ClientSession, workflow_id: str, run_id: str) -> None:
        super().__init__(session)
        self.run_id = run_id
        """The run that is waited for: its successors have others."""
        self._workflow_id = workflow_id

    async def _say(self) -> bool:
        return await self._say_of(self._workflow_id, self.run_id, 0)

    async def _say_of(self, workflow_id: str, run_id: str, depth: int) -> bool:
        """Log what keeps a run, or a child that it waits for, if anything does."""
        description = await self._session.call(DescribeWorkflow(workflow_id=workflow_id, run_id=run_id))
        if description.summary.status is not WorkflowStatus.RUNNING:
            return False
        if description.task_attempt > 1:
            await self._say_parked(description)
            return True
        for activity in description.pending_activities:
            if _is_failing(activity):
                advice = f". `hourglass why {description.summary.workflow_id}` tells more"
                self._say_failing(
                    self._waits_for(description, activity), activity, _facts(description), advice
                )
                return True
        if await self._say_unserved(description):
            return True
        for activity in description.pending_activities:
            subject = self._waits_for(description, activity)
            if await self._say_untaken(subject, activity, _facts(description)):
                return True
        if depth < _DEEPEST:
            for child in description.pending_children[:_MOST_CHILDREN]:
                if await self._say_of(child.workflow_id, "", depth + 1):
                    return True
        return False

    async def _say_parked(self, description: Description) -> None:
        known, reason = description.summary, ""
        if known.history_length <= _LONGEST_HISTORY:
            reason = await _last_task_failure(self._session, known.workflow_id, known.run_id)
        logger.warning(
            "%s is parked: its task has failed and is tried again (attempt %d) until the code is mended; %s",
            self._named(description, f" (run {known.run_id})"),
            description.task_attempt,
            f"the last failure was: {reason}" if reason else "the worker's log says why",
            extra=_facts(description),
        )

    async def _say_unserved(self, description: Description) -> bool:
        """That there is no worker for its queue; once for each queue and connection."""
        queue, link = description.summary.task_queue, self._session.link
        if ("workflow", queue) in link.unserved:
            return False
        found = await self._session.call(GetPollers(task_queue=queue))
        known = description.summary
        left = known.history_length == _UNTOUCHED and self._is_left(found, known.start_time_ns)
        if not (left or self._is_unserved(found)) or not self._is_new("workflow", queue):
            return False
        told = _unserved(found, queue, link.target)
        logger.warning("%s %s", self._named(description), told, extra=_facts(description))
        return True

    def _waits_for(self, description: Description, activity: PendingActivity) -> str:
        return f"{self._named(description)} waits for activity {activity.activity_type}, which"

    def _named(self, description: Description, more: str = "") -> str:
        known = description.summary.workflow_id
        if known == self._workflow_id:
            return f"workflow {known}{more}"
        return f"workflow {self._workflow_id} waits for workflow {known}{more}, which"


@contextmanager
def told_of(session: ClientSession, workflow_id: str, run_id: str) -> Iterator[None]:
    """A block that waits for something that a workflow does: what keeps the workflow from it is told."""
    notice = WaitNotice(session, workflow_id, run_id)
    try:
        yield
    finally:
        notice.end()


class ActivityWaitNotice(WaitWatcher):
    """Looks after the wait for an activity that belongs to no workflow."""

    __slots__ = ("_activity_id", "_run_id")

    def __init__(self, session: ClientSession, activity_id: str, run_id: str) -> None:
        super().__init__(session)
        self._activity_id = activity_id
        self._run_id = run_id

    async def _say(self) -> bool:
        found = await self._session.call(DescribeActivity(activity_id=self._activity_id, run_id=self._run_id))
        known = found.summary
        activity = PendingActivity(
            activity_id=known.activity_id,
            activity_type=known.activity_type,
            state=found.state,
            task_queue=known.task_queue,
            attempt=found.attempt,
            maximum_attempts=found.spec.retry_policy.maximum_attempts if found.spec.retry_policy else 0,
            last_failure=found.last_failure,
            # One that begins with a delay waits for its time, not for a worker.
            scheduled_time_ns=0
            if found.next_attempt_time_ns > known.schedule_time_ns
            else known.schedule_time_ns,
            next_attempt_time_ns=found.next_attempt_time_ns,
            last_started_time_ns=found.last_started_time_ns,
        )
        subject = f"activity {known.activity_id} ({known.activity_type})"
        facts: dict[str, object] = {"task_queue": known.task_queue}
        if known.status is not ActivityExecutionStatus.RUNNING:
            return False
        if _is_failing(activity):
            self._say_failing(subject, activity, facts)
            return True
        return await self._say_untaken(subject, activity, facts)


def _unserved(found: Pollers, queue: str, target: str) -> str:
    """That no worker takes workflow tasks from a queue, and which work is taken instead, as far as that is known."""
    if found.pollers:
        return f"has no worker: those of its task queue {queue!r} have ended, or take no more work"
    if queue in found.served:
        return (
            f"waits in the task queue {queue!r}, whose worker has activities only: "
            f"give it the workflow, too: Worker(client, {queue!r}, workflows=[…])"
        )
    if found.served:
        where = target.partition("local:")[2] or target
        return (
            f"waits in the task queue {queue!r}, which no worker serves: "
            f"the worker on {where} serves {_listed(found.served)}"
        )
    return f"has no worker: none polls its task queue {queue!r}"  # a server has no list of the queues that are served


def _listed(queues: Sequence[str]) -> str:
    return ", ".join(repr(each) for each in queues)


def _facts(description: Description) -> dict[str, object]:
    known = description.summary
    return {
        "workflow_id": known.workflow_id,
        "run_id": known.run_id,
        "workflow_type": known.workflow_type,
        "task_queue": known.task_queue,
    }


def _facts_of_activity(activity: PendingActivity) -> dict[str, object]:
    return {"activity_type": activity.activity_type, "activity_id": activity.activity_id}


def _is_failing(activity: PendingActivity) -> bool:
    return activity.last_failure is not None and not is_benign(activity.last_failure)


def _is_untouched(activity: PendingActivity) -> bool:
    """Whether no worker has ever had it, though one might: a paused one waits for its client."""
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


# --- the wait ------------------------------------------------------------------


A = TypeVar("A")

TRANSIENT = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"})
"""What a service answers while it cannot be reached, or has too much to do."""
_LONGEST_OUTAGE = 60.0
FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0


GOES_ON = "; it goes on, and its result can be asked for again"


def wait_for_close(
    session: ClientSession, workflow_id: str, run_id: str, *, follow: bool, timeout: float | None
) -> Coroutine[Any, Any, Outcome]:
    """Wait until a run, or with `follow` the last of its successors, closes."""
    if timeout is None:
        return _watch(session, workflow_id, run_id, follow)
    return _watch_within(timeout, session, workflow_id, run_id, follow)


async def _watch_within(
    timeout: float, session: ClientSession, workflow_id: str, run_id: str, follow: bool
) -> Outcome:
    async with in_time(session, timeout, f"workflow {workflow_id!r} has not closed within", GOES_ON):
        return await _watch(session, workflow_id, run_id, follow)


async def _watch(session: ClientSession, workflow_id: str, run_id: str, follow: bool) -> Outcome:
    notice = WaitNotice(session, workflow_id, run_id)
    try:
        while True:
            request = WaitForClose(workflow_id=workflow_id, run_id=run_id)
            outcome = await ask_through_outage(session, request)
            if isinstance(outcome, StillOpen):
                await notice.look()
                continue
            successor = successor_of(outcome)
            if not successor:
                return outcome
            if not follow:
                # A server tells of any run that another follows (the next of a cron schedule, a retry) as of one that was
                # continued as new, whatever it returned; an engine that knows better tells the same.
                return RunContinued(successor)
            run_id = notice.run_id = successor
    finally:
        notice.end()


def successor_of(outcome: Outcome) -> str:
    """The run that follows one that ended so; empty if none does."""
    match outcome:
        case RunCompleted() | RunFailed() | RunTimedOut() | RunContinued():
            return outcome.new_run_id
        case _:
            return ""


@asynccontextmanager
async def in_time(
    session: ClientSession, limit: float | None, late: str, more: str = ""
) -> AsyncIterator[None]:
    """A time limit for what is awaited inside: when it has passed, `TimeoutError` says `late`, how long that was, and `more`.
    A request that had a limit of its own says so itself.
    """
    try:
        async with session.within(limit):
            yield
    except TimeoutError as error:
        if isinstance(error, HourglassError) or limit is None:
            raise
        raise TimeoutError(f"{late} {limit:g} s{more}") from None


async def ask_through_outage(session: ClientSession, request: Request[A]) -> A:
    """Ask what changes nothing, and ask again while the service cannot be reached, for as long as an outage may last."""
    try:
        return await session.call(request)
    except ServiceError as error:
        if error.status not in TRANSIENT:
            raise
        logger.warning(
            "waiting for workflow %s goes on although the service does not answer: %s",
            getattr(request, "workflow_id", ""),
            error,
        )
    loop = asyncio.get_running_loop()
    began, pause = loop.time(), FIRST_PAUSE
    while True:
        await sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
        try:
            return await session.call(request)
        except ServiceError as again:
            if again.status not in TRANSIENT or loop.time() - began > _LONGEST_OUTAGE:
                raise


def result_of(workflow_id: str, return_type: Any, converter: Converter, outcome: Outcome) -> Any:
    """What a workflow returned; raises for every other end."""
    name = f"workflow {workflow_id!r}"
    match outcome:
        case RunCompleted(result=payloads):
            return first(payloads, return_type, converter)
        case RunFailed(failure=failure):
            cause = converter.from_failure(failure)
            raise WorkflowFailedError(f"{name} failed: {summary(cause)}") from cause
        case RunCanceled(details=details):
            cause = CancelledError("Workflow cancelled", *_all(details, converter))
            raise WorkflowFailedError(f"{name} was cancelled") from cause
        case RunTerminated(reason=reason, details=details):
            cause = TerminatedError(reason or "Workflow terminated", *_all(details, converter))
            raise WorkflowFailedError(f"{name} was terminated{f': {reason}' if reason else ''}") from cause
        case RunTimedOut():
            cause = TimedOutError("Workflow timed out", type=TimeoutType.START_TO_CLOSE)
            raise WorkflowFailedError(f"{name} timed out") from cause
        case RunContinued(new_run_id=new_run_id):
            raise WorkflowContinuedAsNewError(
                f"{name} continued as a new run, {new_run_id}", new_run_id=new_run_id
            )
        case other:
            raise InternalError(f"{name} closed in an unknown way: {type(other).__name__}")


def first(payloads: Sequence[Payload], type: Any, converter: Converter) -> Any:
    """The answer among payloads: other SDKs send none at all for nothing."""
    return converter.decode(payloads[0], type) if payloads else None


def _all(payloads: Sequence[Payload], converter: Converter) -> list[Any]:
    return [converter.decode(payload) for payload in payloads]
