"""Between a run and what keeps a limit (its keeper): the signal by which a run hears from keepers, and how a keeper is
asked, or started where there is none. What they say, and the rules, are in `hourglass._contract.limits`; the embedded
engine keeps limits itself, and answers in the place of a keeper.

`Hand` speaks for a run: one fiber asks for all tasks of the run together, so that a slot goes from task to task without an event.

`Replies`, what a run has asked for and heard, must not know what the answers mean. Its invariants:

- One signal serves all tickets of a run, and its handler is there before the first question leaves.
- An answer to a ticket that the run no longer waits for is dropped, and one that is repeated changes nothing.

Run and keeper reach each other by nothing but signals, and a child that is left to itself: no activity and no client,
so that a worker without activities serves limits too. Invariants:

- What was sent has arrived when `ask` and `tell` return, also where the run that asks is being cancelled.
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

# --- what a run hears -----------------------------------------------------------------------------


H = TypeVar("H", bound="Hand")


class Replies:
    """What one run has asked for and heard."""

    def __init__(self) -> None:
        self.inside: set[tuple[tuple[PathStep, ...], str]] = set()
        self.hands: dict[str, Hand] = {}
        """Who speaks with keepers for all tasks of the run, by keeper, and by the names that keepers know them by."""

    def hear(self, name: str, answers: Answers) -> None:
        """Pass an answer to the hand that asked. One that nobody waits for is dropped."""
        hand = self.hands.get(name)
        if hand is not None:
            hand.hear(name, answers)

    def farewell(self) -> None:
        """The run closes: what keepers must know first is told."""
        with workflow.shield():
            for hand in dict.fromkeys(self.hands.values()):
                hand.farewell()


def hand_of_run(kind: Callable[[str], H], keeper: str, replies: Replies) -> H:
    """What speaks with this keeper for all tasks of the current run; made, with its name, when it is first asked for."""
    known = replies.hands.get(keeper)
    if known is not None:
        return cast(H, known)
    name = str(workflow.uuid4())
    made = kind(name)
    replies.hands[keeper] = replies.hands[name] = made
    require_run("limits").closing = replies.farewell
    return made


def replies_of_run(what: str) -> Replies:
    """What the current run has asked keepers and heard from them; set up when it is first asked for."""
    known = require_run(what).handlers.known.get(("signal", ANSWERS))
    if known is not None:
        found: Replies = vars(known[0].fn)["replies"]
        return found
    made = Replies()

    def hear(name: str, answers: Answers) -> None:
        """Receive an answer from the workflow that keeps a limit."""
        made.hear(name, answers)

    vars(hear)["replies"] = made
    workflow.signal(name=ANSWERS)(hear)
    return made


# --- one fiber for all tasks of a run -------------------------------------------------------------


class Hand:
    """Speaks with one keeper for all tasks of a run, in a fiber of its own, which lives while there is something to say or
    to wait for. No scope and no cancellation of the author's reaches it. It has one timer, which is let be while what
    comes needs it no sooner: every timer is two events.

    It reckons by `time`, not by the run's own: where an engine's clock was ahead and was set right, the time of a run's events
    stands still until the clock is as late again, while its timers fire after as long as they should.
    """

    def __init__(self) -> None:
        self._timer_at, self._timer_is_for = 0.0, ""
        self._reached = 0.0
        self._task: FiberTask[None] | None = None
        self._asked_at: Site = NOWHERE

    def time(self) -> float:
        """The run's time, or that of the last timer here that fired, if it is later; in seconds."""
        return max(workflow.time(), self._reached)

    def poke(self) -> None:
        """Something has changed: have it looked at."""
        fiber = require_fiber("limits")
        if self._task is None:
            self._task = FiberTask(fiber.run, fiber.next_child_path(), "limits", self._work)
            self._task.start_soon()
        if fiber.run.sites is not None:
            site = call_site()
            if site[0]:
                self._asked_at = on_behalf(site)
            self._task.spawned_at = self._asked_at

    def hear(self, name: str, answers: Answers) -> None:
        """The keeper has answered, or says something."""
        raise NotImplementedError

    def farewell(self) -> None:
        """The run closes."""
        raise NotImplementedError

    def is_due(self) -> bool:
        """Whether there is something to say. Must only look."""
        raise NotImplementedError

    def next_moment(self) -> float | None:
        """When to look again if nothing comes; None: never. Must only look."""
        raise NotImplementedError

    def act(self) -> None:
        """Say what is to be said."""
        raise NotImplementedError

    def time_passes(self) -> None:
        """The moment has come."""
        raise NotImplementedError

    def wait_is_for(self) -> str:
        """What the timer is for, for readers of the history."""
        raise NotImplementedError

    def _work(self) -> None:
        with workflow.shield():
            while True:
                # What is ready runs first: what is given back and wanted again meanwhile needs no keeper.
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
            left = 0.001  # by rounding: a limit of nothing would be over at once, again and again
        try:
            workflow.wait_condition(self._is_sooner, timeout=left, timeout_summary=self._timer_is_for)
        except TimeoutError:
            self._reached = moment
            self.time_passes()

    def _is_sooner(self) -> bool:
        if self.is_due():
            return True
        moment = self.next_moment()
        return moment is None or moment < self._timer_at - 1e-6 or self.wait_is_for() != self._timer_is_for


# --- asking, starting and answering ---------------------------------------------------------------


FIRST_REMINDER, LAST_REMINDER = 60.0, 3600.0
_LONGEST_PAUSE = 10.0
_LONGEST_KEY = 200
_MANY_MESSAGES = 500


def keeper_id(kind: str, key: str) -> str:
    """The id of the workflow that keeps this key: the same for every program that uses the target."""
    if not isinstance(key, str) or not key.strip():
        raise UsageError("the key of a limit must be a non-empty str")
    if len(key) > _LONGEST_KEY:
        raise UsageError(f"the key of a limit is at most {_LONGEST_KEY} characters long, not {len(key)}")
    return f"hourglass.{kind}:{key}"


def ask(keeper: str, kind: Any, signal: Any, question: Any, state: Any, task_queue: str) -> None:
    """Put a question to a keeper; where there is none, start one with `state`, which has the question in it."""
    pause = 0.0
    with workflow.shield():
        while True:
            try:
                workflow.get_external_workflow_handle(keeper).signal(signal, question)
                return
            except FailureError:
                if _started(keeper, kind, state, task_queue):
                    return
            # Another run has started the keeper meanwhile, so the signal will reach it now. If not, the keeper has
            # closed in between, or its run has had as many signals as it may: try again, ever later.
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


def tell(keeper: str, signal: Any, message: Any) -> None:
    """Tell a keeper something that only matters if it is there."""
    with workflow.shield():
        try:
            workflow.get_external_workflow_handle(keeper).signal(signal, message)
        except FailureError:
            pass


def unreachable(answers: Sequence[Answer]) -> list[SlotClaim]:
    """Tell runs, all at once, what their tickets came to; gives the places of runs that have closed."""
    with workflow.shield():
        tasks = [workflow.spawn(_reaches, each) for each in answers]
        reached = [task.result() for task in tasks]
    return [each.place for each, there in zip(answers, reached, strict=True) if not there]


def _reaches(answer: Answer) -> bool:
    place = answer.place
    try:
        handle = workflow.get_external_workflow_handle(place.workflow_id, run_id=place.run_id)
        handle.signal(ANSWERS, answer.name, answer.answers)
    except ApplicationError as error:
        # The run is open, but has had as many signals as it may.
        return "SignalCountLimit" in (error.type or "")
    return True


def keep(what: str, serve: Callable[[], bool]) -> None:
    """A keeper's run: one round of serving after the other, until one says that there is nothing to keep."""
    while True:
        try:
            if not serve():
                return
        except Cancelled:
            # The runs that wait would never hear of it. To be rid of a keeper, terminate it.
            workflow.logger.warning(f"a keeper of {what} does not cancel: others wait for it")


def is_long(messages: int) -> bool:
    """Whether a keeper's run has grown enough to continue as a new one."""
    return messages >= _MANY_MESSAGES or workflow.info().is_continue_as_new_suggested
