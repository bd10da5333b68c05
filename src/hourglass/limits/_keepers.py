"""Communication between a run and the keeper of a limit: the signal that carries answers to a run, and requests that also
start the keeper if necessary.

Messages and rules are in `hourglass._contract.limits`. The embedded engine manages limits itself, and answers in place of a
keeper. A `KeeperLink` communicates for a run: one fiber sends the requests of all tasks of the run together, so that a slot
passes from task to task without an event.

`Replies` contains a run's requests and their answers; it must not know their meaning. Invariants:

- One signal serves all tickets of a run. The signal's handler exists before the first request is sent.
- An answer to a ticket that the run no longer waits for is dropped, and a repeated answer has no effect.

A run and a keeper communicate only by signals, and a keeper is an abandoned child. Neither activities nor clients are
involved, so a worker without activities serves limits, too. Invariants:

- When `send_request` or `send_notice` returns, the message has arrived, even if the requesting run is being cancelled.
- A keeper outlives the run that happened to start it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from hourglass import workflow
from hourglass._contract.limits import ANSWERS, Answer, Answers, SlotClaim
from hourglass._evaluator.call_sites import NOWHERE, Site, call_site, on_behalf
from hourglass._evaluator.context import require_run
from hourglass._evaluator.fibers import FiberTask, require_fiber
from hourglass._evaluator.state import PathStep
from hourglass.errors import (
    ApplicationError,
    Cancelled,
    FailureError,
    UsageError,
    WorkflowAlreadyStartedError,
)
from hourglass.workflow import ChildCancellationType, ParentClosePolicy

H = TypeVar("H", bound="KeeperLink")


class Replies:
    """The requests of a run, and the answers to them."""

    def __init__(self) -> None:
        self.inside: set[tuple[tuple[PathStep, ...], str]] = set()
        self.links: dict[str, KeeperLink] = {}
        """The links of the run, both by keeper and by the name that the keeper uses for the link."""

    def receive(self, name: str, answers: Answers) -> None:
        """Pass an answer to the link that requested it. Drop an answer if no link of that name exists."""
        link = self.links.get(name)
        if link is not None:
            link.receive(name, answers)

    def finish(self) -> None:
        """Send the last messages to the keepers before the run closes."""
        with workflow.shield():
            for link in dict.fromkeys(self.links.values()):
                link.finish()


def link_of_run(kind: Callable[[str], H], keeper: str, replies: Replies) -> H:
    """Return the link for communication with this keeper in the current run. Create and name the link on first use."""
    link = replies.links.get(keeper)
    if link is not None:
        return cast(H, link)
    name = str(workflow.uuid4())
    made = kind(name)
    replies.links[keeper] = replies.links[name] = made
    require_run("limits").closing = replies.finish
    return made


def replies_of_run(what: str) -> Replies:
    """Return the requests and answers of the current run, created on first use."""
    handlers = require_run(what).handlers.known.get(("signal", ANSWERS))
    if handlers is not None:
        replies: Replies = vars(handlers[0].fn)["replies"]
        return replies
    made = Replies()

    def receive(name: str, answers: Answers) -> None:
        """Receive an answer from the workflow that keeps a limit."""
        made.receive(name, answers)

    vars(receive)["replies"] = made
    workflow.signal(name=ANSWERS)(receive)
    return made


class KeeperLink:
    """The communication of a run's tasks with one keeper, in a fiber that lives while messages or answers are pending. The
    author's scopes and cancellations do not affect this fiber. It reuses its timer until an earlier one is needed, because
    every timer costs two events.

    Use `time` instead of the run's own time. If an engine's clock was ahead and is set back, the time of the run's events
    stops until the clock has caught up, but timers still fire after their duration.
    """

    def __init__(self, keeper: str, task_queue: str) -> None:
        self._keeper = keeper
        self._task_queue = task_queue
        self._sending = False
        self._remind_at, self._reminder = 0.0, FIRST_REMINDER
        self._timer_at, self._timer_is_for = 0.0, ""
        self._reached = 0.0
        self._task: FiberTask[None] | None = None
        self._asked_at: Site = NOWHERE

    def time(self) -> float:
        """Return the run's time in seconds, or the time of this link's last fired timer, if that is later."""
        return max(workflow.time(), self._reached)

    def wake(self) -> None:
        """Wake the fiber after a change, so that it sends due messages."""
        fiber = require_fiber("limits")
        if self._task is None:
            self._task = FiberTask(fiber.run, fiber.next_child_path(), "limits", self._work)
            self._task.start_soon()
        if fiber.run.sites is not None:
            site = call_site()
            if site[0]:
                self._asked_at = on_behalf(site)
            self._task.spawned_at = self._asked_at

    def receive(self, name: str, answers: Answers) -> None:
        """Receive an answer or a message from the keeper."""
        raise NotImplementedError

    def finish(self) -> None:
        """Complete the communication before the run closes."""
        raise NotImplementedError

    def is_due(self) -> bool:
        """Whether a message must be sent. Has no side effects."""
        raise NotImplementedError

    def next_moment(self) -> float | None:
        """Return the time of the next check if no message arrives, or None for no check. Must not change the state."""
        raise NotImplementedError

    def act(self) -> None:
        """Send the due messages."""
        raise NotImplementedError

    def on_time(self) -> None:
        """Handle the deadline that `next_moment` returned, once it has passed."""
        raise NotImplementedError

    def wait_is_for(self) -> str:
        """Return the purpose of the timer, for readers of the history."""
        raise NotImplementedError

    def send_request(self, kind: Any, signal: Any, question: Any, state: Any) -> None:
        """Send a request, and set the time of the next reminder. If there is no keeper, start one with `state`."""
        send_request(self._keeper, kind, signal, question, state, self._task_queue)
        self._remind_at = self.time() + self._reminder

    def send_notice(self, signal: Any, message: Any) -> None:
        """Send a message, unless the keeper does not exist."""
        self._sending = True
        send_notice(self._keeper, signal, message)
        self._sending = False

    def is_reminder_due(self) -> bool:
        """Return whether to send a reminder now, because the keeper is silent. A keeper that was terminated has forgotten its
        requests. The next reminder follows after a longer time.
        """
        if self._remind_at > self.time():
            return False
        self._reminder = min(2 * self._reminder, LAST_REMINDER)
        return True

    def _work(self) -> None:
        with workflow.shield():
            while True:
                # Let ready fibers run first, because a slot passes from one fiber to another without the keeper.
                workflow.wait_condition(lambda: True)
                moment = self.next_moment()
                if self.is_due():
                    self.act()
                elif moment is None:
                    self._task = None
                    return
                else:
                    self._wait(moment)

    def _wait(self, moment: float) -> None:
        self._timer_at, self._timer_is_for = moment, self.wait_is_for()
        left = moment - self.time()
        if left <= 0:
            left = 0.001  # because of rounding: a timeout of 0 would expire immediately, over and over
        try:
            workflow.wait_condition(self._is_sooner, timeout=left, timeout_summary=self._timer_is_for)
        except TimeoutError:
            self._reached = moment
            self.on_time()

    def _is_sooner(self) -> bool:
        if self.is_due():
            return True
        moment = self.next_moment()
        return moment is None or moment < self._timer_at - 1e-6 or self.wait_is_for() != self._timer_is_for


FIRST_REMINDER, LAST_REMINDER = 60.0, 3600.0
_LONGEST_PAUSE = 10.0
_LONGEST_KEY = 200
_MANY_MESSAGES = 500


def keeper_id(kind: str, key: str) -> str:
    """Return the id of the workflow that keeps this key. The id is the same in all programs that use the target."""
    if not isinstance(key, str) or not key.strip():
        raise UsageError("the key of a limit must be a non-empty str")
    if len(key) > _LONGEST_KEY:
        raise UsageError(f"the key of a limit must have at most {_LONGEST_KEY} characters, not {len(key)}")
    return f"hourglass.{kind}:{key}"


def send_request(keeper: str, kind: Any, signal: Any, question: Any, state: Any, task_queue: str) -> None:
    """Send a request to a keeper. If there is none, start a keeper with `state`, because the state contains the request."""
    pause = 0.0
    with workflow.shield():
        while True:
            try:
                workflow.get_external_workflow_handle(keeper).signal(signal, question)
                return
            except FailureError:
                if _started(keeper, kind, state, task_queue):
                    return
            # Another run has started the keeper in the meantime, so the signal will reach it now. If not, the keeper has
            # closed since, or its run has received the maximum number of signals. Retry with increasing pauses.
            workflow.sleep(pause)
            pause = min(2 * pause or 0.1, _LONGEST_PAUSE)


def _started(keeper: str, kind: Any, state: Any, task_queue: str) -> bool:
    try:
        workflow.start_child_workflow(
            kind,
            state,
            id=keeper,
            task_queue=task_queue,
            parent_close_policy=ParentClosePolicy.ABANDON,
            cancellation_type=ChildCancellationType.ABANDON,
        )
    except WorkflowAlreadyStartedError:
        return False
    return True


def send_notice(keeper: str, signal: Any, message: Any) -> None:
    """Send a message to a keeper. Ignore the message if the keeper does not exist."""
    with workflow.shield():
        try:
            workflow.get_external_workflow_handle(keeper).signal(signal, message)
        except FailureError:
            pass


def unreachable(answers: Sequence[Answer]) -> list[SlotClaim]:
    """Send answers to runs, concurrently. Return the claims of runs that have closed."""
    with workflow.shield():
        tasks = [workflow.spawn(_reaches, answer) for answer in answers]
        reached = [task.result() for task in tasks]
    return [answer.place for answer, is_open in zip(answers, reached, strict=True) if not is_open]


def _reaches(answer: Answer) -> bool:
    place = answer.place
    try:
        handle = workflow.get_external_workflow_handle(place.workflow_id, run_id=place.run_id)
        handle.signal(ANSWERS, answer.name, answer.answers)
    except ApplicationError as error:
        # The run is open, but has received the maximum number of signals.
        return "SignalCountLimit" in (error.type or "")
    return True


def serve_until_idle(what: str, serve: Callable[[], bool]) -> None:
    """Run a keeper: call `serve` in rounds until it returns False because the key is idle."""
    while True:
        try:
            if not serve():
                return
        except Cancelled:
            # The waiting runs would never be notified. To remove a keeper, terminate it.
            workflow.logger.warning(
                f"the keeper of {what} ignores its cancellation, because workflows wait for it"
            )


def is_long(messages: int) -> bool:
    """Whether the history of a keeper's run is long enough to continue as new."""
    return messages >= _MANY_MESSAGES or workflow.info().is_continue_as_new_suggested
