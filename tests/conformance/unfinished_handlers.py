"""Signal and update handlers that are running when their workflow closes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hourglass import workflow
from hourglass.errors import ApplicationError, UpdateFailedError
from hourglass.workflow import HandlerUnfinishedPolicy

from .scenario import scenario, scenarios
from .update_handlers import BackgroundCall, wait_until_admitted
from .world import LIMIT, World


@contextmanager
def captured_logs() -> Iterator[list[str]]:
    """Collect the messages that hourglass logs meanwhile."""
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


def warns_of_unfinished_handlers(lines: list[str]) -> bool:
    """Whether somebody was told of handlers that had not finished."""
    return any("before its handlers finished" in line for line in lines)


@workflow.defn
class HandlesUntilEnd:
    """Ends as its argument says, while handlers may be running."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_finish = False
        self.finished = 0

    @workflow.run
    def run(self, how: str, patient: bool) -> int:
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
        self._work()

    @workflow.signal(unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    def quiet_signal(self) -> None:
        self._work()

    @workflow.update
    def update(self) -> str:
        return self._work()

    @workflow.update(unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    def quiet_update(self) -> str:
        return self._work()

    @workflow.signal(dynamic=True)
    def any_signal(self, name: str, arguments: list[workflow.RawPayload]) -> None:
        self._work()


def end_run_with_handler(
    world: World, ending: str, *, patient: bool, signal: str = "", update: str = ""
) -> tuple[Any, Any]:
    """Run a workflow that ends while a handler runs. Return the outcome of the run and the answer of the update."""
    handle = world.start(HandlesUntilEnd.run, ending, patient)
    if ending == "cancel":
        world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED")
    update_call = BackgroundCall(lambda: handle.execute_update(update, id="u")) if update else None
    if signal:
        handle.signal(signal)
    if ending == "cancel":
        world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", 2)
        handle.cancel()
    if ending == "continue":
        latest = world.client.get_workflow_handle(handle.id)
        world.wait_until(lambda: latest.describe().run_id != handle.run_id, "a second run")
        latest.signal("quiet_signal")
    outcome = world.failure(handle) if ending in ("fail", "cancel") else handle.result(timeout=LIMIT)
    return outcome, None if update_call is None else update_call.answer


@scenario("loose")
def completed_run_warns_of_unfinished_dynamic_signal_handler(world: World) -> None:
    with captured_logs() as lines:
        end_run_with_handler(world, "return", patient=False, signal="something")
        world.wait_until(lambda: warns_of_unfinished_handlers(lines), "a warning")


@scenario("loose")
def unfinished_policy_abandon_suppresses_warning(world: World) -> None:
    with captured_logs() as lines:
        end_run_with_handler(world, "return", patient=False, signal="quiet_signal")
        _, answer = end_run_with_handler(world, "return", patient=False, update="quiet_update")
    assert not warns_of_unfinished_handlers(lines)
    assert isinstance(answer, UpdateFailedError)


@scenario("loose")
def run_that_waits_for_handlers_ends_without_warning(world: World) -> None:
    with captured_logs() as lines:
        by_signal, _ = end_run_with_handler(world, "return", patient=True, signal="signal")
        by_update, answer = end_run_with_handler(world, "return", patient=True, update="update")
    assert not warns_of_unfinished_handlers(lines)
    assert (by_signal, by_update, answer) == (1, 1, "done")


@scenario("loose")
def completed_run_fails_unfinished_update_and_warns(world: World) -> None:
    with captured_logs() as lines:
        _, answer = end_run_with_handler(world, "return", patient=False, update="update")
        world.wait_until(lambda: warns_of_unfinished_handlers(lines), "a warning")
    assert isinstance(answer, UpdateFailedError)
    assert isinstance(answer.cause, ApplicationError)
    assert answer.cause.type == "AcceptedUpdateCompletedWorkflow"


@scenario("loose")
def failed_run_warns_of_unfinished_handlers(world: World) -> None:
    for message in ({"signal": "signal"}, {"update": "update"}):
        with captured_logs() as lines:
            outcome, _ = end_run_with_handler(world, "fail", patient=False, **message)
            world.wait_until(lambda lines=lines: warns_of_unfinished_handlers(lines), "a warning")  # type: ignore[misc]
        assert outcome.type == "Told"


@scenarios(
    "loose",
    completed_run_warns_of_unfinished_signal_handler=("return", 0),
    continued_run_warns_of_unfinished_handler=("continue", 0),
    cancelled_run_warns_of_unfinished_handler=("cancel", "CancelledError"),
)
def outcome_of_warned_run(world: World, ending: str) -> Any:
    """End a run during its signal handler and wait for the warning. Return the result or the class of the error."""
    with captured_logs() as lines:
        outcome, _ = end_run_with_handler(world, ending, patient=False, signal="signal")
        world.wait_until(lambda: warns_of_unfinished_handlers(lines), "a warning")
    return type(outcome).__name__ if isinstance(outcome, Exception) else outcome


# --- what counts when several want to end it --------------------------------------------------------------------------


@workflow.defn
class FailsInTwoHandlers:
    """Two signal handlers that fail, and a body that returns as soon as both have started."""

    def __init__(self) -> None:
        self.first = False
        self.second = False
        self.ball = 1
        self.hits = 0

    @workflow.run
    def run(self, play: bool) -> str:
        self.play = play
        workflow.wait_condition(lambda: self.first and self.second)
        return "the body"

    @workflow.signal
    def fails_first(self) -> None:
        """Fail immediately or, with `play`, after exchanges that take longer than the body."""
        self.first = True
        self._plays(lambda: self.ball > 0)
        raise ApplicationError("the first handler")

    @workflow.signal
    def fails_second(self) -> None:
        workflow.wait_condition(lambda: self.first)
        self.second = True
        self._plays(lambda: self.ball < 0)
        raise ApplicationError("the second handler")

    def _plays(self, mine: Any) -> None:
        while getattr(self, "play", False) and self.hits < 4:
            workflow.wait_condition(mine)
            self.ball = -self.ball
            self.hits += 1


def run_with_two_failing_handlers(world: World, play: bool) -> Any:
    """Start the run so that both signals are in its first workflow task."""
    world.stop_worker()
    handle = world.start(FailsInTwoHandlers.run, play)
    handle.signal(FailsInTwoHandlers.fails_second)
    handle.signal(FailsInTwoHandlers.fails_first)
    world.start_worker()
    return handle


@scenario()
def first_of_two_handler_failures_fails_run(world: World) -> None:
    assert world.failure(run_with_two_failing_handlers(world, False)).message == "the first handler"


@scenario("loose")
def update_that_completes_after_body_returns_is_answered(world: World) -> None:
    world.stop_serving_queue()
    handle = world.start(ReturnsBeforeHandlers.run)
    update_call = BackgroundCall(lambda: handle.execute_update(ReturnsBeforeHandlers.after, id="u"))
    wait_until_admitted(world, handle, "u")
    world.start_worker()
    assert handle.result(timeout=LIMIT) == "returned"
    assert update_call.answer == "after it"


@workflow.defn
class ReturnsBeforeHandlers:
    def __init__(self) -> None:
        self.returned = False
        self.asked = False

    @workflow.run
    def run(self, wait: bool = False) -> str:
        if wait:
            workflow.wait_condition(lambda: self.asked)
        self.returned = True
        return "returned"

    @workflow.update
    def after(self) -> str:
        self.asked = True
        workflow.wait_condition(lambda: self.returned)
        return "after it"

    @workflow.signal(unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    def lingers(self) -> None:
        self.asked = True
        workflow.wait_condition(lambda: self.returned)
        workflow.sleep(7_777_777)


@scenario("loose")
def update_that_ends_the_body_is_answered(world: World) -> None:
    handle = world.start(ReturnsBeforeHandlers.run, True)
    assert handle.execute_update(ReturnsBeforeHandlers.after) == "after it"
    assert handle.result(timeout=LIMIT) == "returned"


@scenario("loose")
def timer_started_by_handler_after_return_does_not_block_completion(world: World) -> None:
    handle = world.start(ReturnsBeforeHandlers.run, True)
    handle.signal(ReturnsBeforeHandlers.lingers)
    assert handle.result(timeout=LIMIT) == "returned"
