"""Handlers of signals and updates when their workflow closes: what counts, who is told, and what is left unfinished."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hourglass import workflow
from hourglass.errors import ApplicationError, CancelledError, UpdateFailedError
from hourglass.workflow import HandlerUnfinishedPolicy

from .scenario import scenario
from .update_handlers import Asked, until_admitted
from .world import World

LIMIT = 30


@contextmanager
def heard() -> Iterator[list[str]]:
    """What the log of this process says meanwhile."""
    lines: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    ear, logger = Ear(), logging.getLogger("hourglass")
    logger.addHandler(ear)
    try:
        yield lines
    finally:
        logger.removeHandler(ear)


def told(lines: list[str]) -> bool:
    """Whether somebody was told of handlers that had not finished."""
    return any("before its handlers finished" in line for line in lines)


@workflow.defn
class Host:
    """Ends as it is told to, while its handlers may be at work."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_finish = False
        self.finished = 0

    @workflow.run
    def run(self, how: str, patient: bool) -> int:
        """Waits for a handler to begin; a patient one also for its end."""
        workflow.wait_condition(lambda: self.begun > 0)
        if patient:
            self.may_finish = True
            workflow.wait_condition(workflow.all_handlers_finished)
        match how:
            case "fail":
                raise ApplicationError("as it was told", type="Told")
            case "continue":
                workflow.continue_as_new("again", patient)
            case "cancel":
                workflow.wait_condition(lambda: False)
        return self.finished

    def _work(self) -> str:
        self.begun += 1
        workflow.wait_condition(lambda: self.may_finish)
        self.finished += 1
        return "done"

    @workflow.signal
    def signal(self) -> None:
        """One that takes its time."""
        self._work()

    @workflow.signal(unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    def quiet_signal(self) -> None:
        """One that may be left."""
        self._work()

    @workflow.update
    def update(self) -> str:
        """One that takes its time."""
        return self._work()

    @workflow.update(unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    def quiet_update(self) -> str:
        """One that may be left."""
        return self._work()

    @workflow.signal(dynamic=True)
    def any_signal(self, name: str, arguments: list[workflow.RawPayload]) -> None:
        """One of any name."""
        self._work()


def ends(world: World, how: str, *, patient: bool, signal: str = "", update: str = "") -> tuple[Any, Any]:
    """One run that ends with a handler at work: what came of it, and of the update."""
    handle = world.start(Host.run, how, patient)
    if how == "cancel":
        world.until(handle, "WORKFLOW_TASK_COMPLETED")
    asked = Asked(lambda: handle.execute_update(update, id="u")) if update else None
    if signal:
        handle.signal(signal)
    if how == "cancel":
        world.until(handle, "WORKFLOW_TASK_COMPLETED", 2)
        handle.cancel()
    if how == "continue":
        latest = world.client.get_workflow_handle(handle.id)
        world.until_true(lambda: latest.describe().run_id != handle.run_id, "a second run")
        latest.signal("quiet_signal")
    outcome = world.failure(handle) if how in ("fail", "cancel") else handle.result(timeout=LIMIT)
    return outcome, None if asked is None else asked.answer


@scenario("loose")
def an_unfinished_signal_handler_is_told(world: World) -> None:
    """A run that returns while a signal's handler works is told of in the log, and the handler is abandoned."""
    with heard() as lines:
        outcome, _ = ends(world, "return", patient=False, signal="signal")
        world.until_true(lambda: told(lines), "a warning")
    assert outcome == 0


@scenario("loose")
def an_unfinished_dynamic_handler_is_told(world: World) -> None:
    """So is one whose dynamic handler works."""
    with heard() as lines:
        ends(world, "return", patient=False, signal="something")
        world.until_true(lambda: told(lines), "a warning")


@scenario("loose")
def a_handler_that_may_be_left_is_not_told(world: World) -> None:
    """With ABANDON nobody is told, of signals as of updates."""
    with heard() as lines:
        ends(world, "return", patient=False, signal="quiet_signal")
        _, answer = ends(world, "return", patient=False, update="quiet_update")
    assert not told(lines)
    assert isinstance(answer, UpdateFailedError)


@scenario("loose")
def handlers_that_were_waited_for(world: World) -> None:
    """A run that waits until all handlers have finished has nothing to tell, and its updates are answered."""
    with heard() as lines:
        by_signal, _ = ends(world, "return", patient=True, signal="signal")
        by_update, answer = ends(world, "return", patient=True, update="update")
    assert not told(lines)
    assert (by_signal, by_update, answer) == (1, 1, "done")


@scenario("loose")
def an_unfinished_update_handler_is_told(world: World) -> None:
    """The same for an update; its asker hears that the workflow was quicker."""
    with heard() as lines:
        _, answer = ends(world, "return", patient=False, update="update")
        world.until_true(lambda: told(lines), "a warning")
    assert isinstance(answer, UpdateFailedError)
    assert isinstance(answer.cause, ApplicationError)
    assert answer.cause.type == "AcceptedUpdateCompletedWorkflow"


@scenario("loose")
def unfinished_handlers_of_a_run_that_fails(world: World) -> None:
    """A run that fails tells of its handlers too, whichever kind they are."""
    for message in ({"signal": "signal"}, {"update": "update"}):
        with heard() as lines:
            outcome, _ = ends(world, "fail", patient=False, **message)
            world.until_true(lambda lines=lines: told(lines), "a warning")  # type: ignore[misc]
        assert outcome.type == "Told"


@scenario("loose")
def unfinished_handlers_of_a_run_that_is_cancelled(world: World) -> None:
    """So does a run that ends because it was asked to cancel."""
    with heard() as lines:
        outcome, _ = ends(world, "cancel", patient=False, signal="signal")
        world.until_true(lambda: told(lines), "a warning")
    assert isinstance(outcome, CancelledError)


@scenario("loose")
def unfinished_handlers_of_a_run_that_continues(world: World) -> None:
    """So does a run that continues as new; the next one begins with no handler at work."""
    with heard() as lines:
        outcome, _ = ends(world, "continue", patient=False, signal="signal")
        world.until_true(lambda: told(lines), "a warning")
    assert outcome == 0


# --- what counts when several want to end it --------------------------------------------------------------------------


@workflow.defn
class Contest:
    """Two handlers that fail, and a body that returns: whoever is first."""

    def __init__(self) -> None:
        self.first = False
        self.second = False
        self.ball = 1
        self.hits = 0

    @workflow.run
    def run(self, play: bool) -> str:
        """Returns when both handlers have begun."""
        self.play = play
        workflow.wait_condition(lambda: self.first and self.second)
        return "the body"

    @workflow.signal
    def fails_first(self) -> None:
        """Fails at once, or after a game that takes longer than the body."""
        self.first = True
        self._plays(lambda: self.ball > 0)
        raise ApplicationError("the first handler")

    @workflow.signal
    def fails_second(self) -> None:
        """Fails after it."""
        workflow.wait_condition(lambda: self.first)
        self.second = True
        self._plays(lambda: self.ball < 0)
        raise ApplicationError("the second handler")

    def _plays(self, mine: Any) -> None:
        while getattr(self, "play", False) and self.hits < 4:
            workflow.wait_condition(mine)
            self.ball = -self.ball
            self.hits += 1


def contest(world: World, play: bool) -> Any:
    """Both signals come with the first task."""
    world.stop_worker()
    handle = world.start(Contest.run, play)
    handle.signal(Contest.fails_second)
    handle.signal(Contest.fails_first)
    world.start_worker()
    return handle


@scenario()
def the_first_failure_of_two_handlers_counts(world: World) -> None:
    """Of two signal handlers that fail in one task the first one fails the run."""
    assert world.failure(contest(world, False)).message == "the first handler"


@scenario("loose")
def an_update_that_waits_for_the_return(world: World) -> None:
    """An update that can only complete when the body has returned, in the same task, is answered."""
    world.leave_queue()
    handle = world.start(Returning.run)
    asked = Asked(lambda: handle.execute_update(Returning.after, id="u"))
    until_admitted(world, handle, "u")
    world.start_worker()
    assert handle.result(timeout=LIMIT) == "returned"
    assert asked.answer == "after it"


@workflow.defn
class Returning:
    """Returns at once."""

    def __init__(self) -> None:
        self.returned = False
        self.asked = False

    @workflow.run
    def run(self, wait: bool = False) -> str:
        """At once, or when an update has come."""
        if wait:
            workflow.wait_condition(lambda: self.asked)
        self.returned = True
        return "returned"

    @workflow.update
    def after(self) -> str:
        """Completes after the body has returned."""
        self.asked = True
        workflow.wait_condition(lambda: self.returned)
        return "after it"

    @workflow.signal(unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    def lingers(self) -> None:
        """Starts a timer when the run has closed."""
        self.asked = True
        workflow.wait_condition(lambda: self.returned)
        workflow.sleep(7_777_777)


@scenario("loose")
def an_update_that_lets_the_body_return(world: World) -> None:
    """An update that is completed by the body's last step is answered, though the body's end comes first."""
    handle = world.start(Returning.run, True)
    assert handle.execute_update(Returning.after) == "after it"
    assert handle.result(timeout=LIMIT) == "returned"


@scenario("loose")
def a_timer_after_the_end(world: World) -> None:
    """A handler that asks for a timer in the task in which its run returned does not keep the run from completing."""
    handle = world.start(Returning.run, True)
    handle.signal(Returning.lingers)
    assert handle.result(timeout=LIMIT) == "returned"
