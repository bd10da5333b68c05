"""What update handlers can do, and what becomes of updates when things happen beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import UpdateStage, WorkflowHandle
from hourglass.errors import ApplicationError, UpdateFailedError, WorkflowNotFoundError

from . import acts
from .scenario import scenario
from .world import World

LIMIT = 30


class Asked(threading.Thread):
    """Somebody who asks in a thread of his own: `answer` is what came of it."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self._result: Any = None
        self.start()

    def run(self) -> None:
        """Ask."""
        try:
            self._result = self._ask()
        except Exception as error:
            self._result = error

    @property
    def answer(self) -> Any:
        """What came of it, waited for."""
        self.join(LIMIT)
        assert not self.is_alive()
        return self._result


def until_admitted(world: World, handle: WorkflowHandle[Any], update_id: str) -> None:
    """Wait until the engine knows of an update."""

    def is_known() -> bool:
        try:
            handle.get_update_handle(update_id).result(timeout=0.05)
        except TimeoutError:
            return True
        except WorkflowNotFoundError:
            return False
        return True

    world.until_true(is_known, f"update {update_id}")


@workflow.defn
class Desk:
    """Does what it is asked to, one thing at a time."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.lock = workflow.Lock()
        self.end: str | None = None

    @workflow.run
    def run(self, turn: int = 0) -> list[str]:
        """Until it is told how to end."""
        workflow.wait_condition(lambda: self.end is not None)
        if self.end == "go on":
            workflow.continue_as_new(turn + 1)
        return self.log

    @workflow.update
    def work(self, name: str) -> str:
        """Holds the lock while it runs an activity and sleeps."""
        with self.lock:
            self.log.append(f"{name} begins")
            acts.double(1)
            workflow.sleep(0.01)
            self.log.append(f"{name} ends")
        return name

    @workflow.update
    def waits(self) -> str:
        """Until the end."""
        workflow.wait_condition(lambda: False)
        return "never"

    @workflow.update
    def add(self, name: str) -> list[str]:
        """Into the log."""
        self.log.append(name)
        return self.log

    @add.validator
    def check(self, name: str) -> None:
        """A plain exception, and one that fails the author's expectations."""
        if not name:
            raise ValueError("a name, please")

    @workflow.update
    def ends(self, how: str) -> str:
        """Its last deed."""
        self.end = how
        return "done"

    @workflow.update(dynamic=True)
    def any_other(self, name: str, args: list[Any]) -> list[Any]:
        """Takes what nobody else does."""
        return [name, *(each.decode() for each in args)]

    @workflow.signal
    def note(self, name: str) -> None:
        """Into the log."""
        self.log.append(name)

    @workflow.signal
    def finish(self, how: str) -> None:
        """End."""
        self.end = how

    @workflow.query
    def seen(self) -> list[str]:
        """The log."""
        return self.log


@scenario("loose")
def updates_that_work_one_after_another(world: World) -> None:
    """Handlers that run activities, sleep and share a lock: each has it to its end."""
    handle = world.start(Desk.run)
    asked = [handle.start_update(Desk.work, name) for name in ("a", "b", "c")]
    assert [each.result(timeout=LIMIT) for each in asked] == ["a", "b", "c"]
    handle.signal(Desk.finish, "")
    expected = [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
    assert handle.result(timeout=LIMIT) == expected


@scenario("loose")
def a_validator_that_raises_anything(world: World) -> None:
    """A plain exception refuses the update; it does not park the run."""
    handle = world.start(Desk.run)
    with pytest.raises(UpdateFailedError, match="a name, please") as caught:
        handle.execute_update(Desk.add, "")
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "ValueError"
    assert handle.execute_update(Desk.add, "x") == ["x"]
    handle.signal(Desk.finish, "")
    assert handle.result(timeout=LIMIT) == ["x"]


@scenario("exact")
def refusals_leave_no_trace(world: World) -> None:
    """However many updates are refused, the history is that of a run which was never asked."""
    handle = world.start(Desk.run)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    length = len(handle.history().events)
    for _ in range(5):
        with pytest.raises(UpdateFailedError):
            handle.execute_update(Desk.add, "")
    assert len(handle.history().events) == length
    handle.signal(Desk.finish, "")
    assert handle.result(timeout=LIMIT) == []


@scenario("loose")
def a_dynamic_update(world: World) -> None:
    """The dynamic handler takes every update that nobody else does."""
    handle = world.start(Desk.run)
    assert handle.execute_update("what", 1, "two") == ["what", 1, "two"]
    handle.signal(Desk.finish, "")
    handle.result(timeout=LIMIT)


@scenario("loose")
def an_update_in_flight_when_the_workflow_completes(world: World) -> None:
    """It was accepted and can never be done: its asker hears why, also when asking later."""
    handle = world.start(Desk.run)
    update = handle.start_update(Desk.waits, id="w")
    asked = Asked(lambda: update.result(timeout=LIMIT))
    handle.signal(Desk.finish, "")
    handle.result(timeout=LIMIT)
    assert_abandoned(asked.answer)
    assert_abandoned(Asked(lambda: handle.get_update_handle("w").result(timeout=LIMIT)).answer)
    assert_abandoned(Asked(lambda: handle.execute_update(Desk.waits, id="w")).answer)


def assert_abandoned(error: Any) -> None:
    """The workflow was quicker."""
    assert isinstance(error, UpdateFailedError), error
    assert isinstance(error.cause, ApplicationError)
    assert error.cause.type == "AcceptedUpdateCompletedWorkflow"
    assert error.cause.non_retryable


@scenario("loose")
def an_update_in_flight_when_the_workflow_is_terminated(world: World) -> None:
    """The same for one that is ended from outside."""
    handle = world.start(Desk.run)
    update = handle.start_update(Desk.waits)
    handle.terminate("enough")
    assert_abandoned(Asked(lambda: update.result(timeout=LIMIT)).answer)


@scenario("loose")
def an_update_that_ends_the_workflow(world: World) -> None:
    """What completes in the same task as the workflow is done."""
    handle = world.start(Desk.run)
    assert handle.execute_update(Desk.ends, "") == "done"
    assert handle.result(timeout=LIMIT) == []
    assert handle.get_update_handle("nothing").id == "nothing"
    with pytest.raises(WorkflowNotFoundError, match="not found"):
        handle.get_update_handle("nothing").result(timeout=LIMIT)


@scenario("loose")
def an_update_and_continue_as_new(world: World) -> None:
    """What is in flight ends with its run; its id is free in the next one."""
    handle = world.start(Desk.run)
    update = handle.start_update(Desk.waits, id="u")
    assert handle.execute_update(Desk.ends, "go on") == "done"
    assert_abandoned(Asked(lambda: update.result(timeout=LIMIT)).answer)
    latest = world.client.get_workflow_handle(handle.id)
    assert latest.execute_update("add", "fresh", id="u", result_type=list) == ["fresh"]
    latest.signal("finish", "")
    assert latest.result(timeout=LIMIT) == ["fresh"]


@scenario("loose")
def an_update_without_a_worker(world: World) -> None:
    """It waits until one comes; signals that came before it is handled are handled first."""
    handle = world.start(Desk.run)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    world.leave_queue()
    asked = Asked(lambda: handle.execute_update(Desk.add, "update", id="u"))
    until_admitted(world, handle, "u")
    handle.signal(Desk.note, "signal")
    world.start_worker()
    assert asked.answer == ["signal", "update"]
    handle.signal(Desk.finish, "")
    assert handle.result(timeout=LIMIT) == ["signal", "update"]


@scenario("loose")
def an_update_that_nobody_ever_takes(world: World) -> None:
    """There is no worker, and the workflow is terminated: the asker hears of it."""
    handle = world.start(Desk.run)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    world.leave_queue()
    asked = Asked(lambda: handle.execute_update(Desk.add, "update", id="u"))
    until_admitted(world, handle, "u")
    handle.terminate("enough")
    world.start_worker()  # a file without a worker has nobody who could answer
    assert isinstance(asked.answer, WorkflowNotFoundError)


@scenario("loose")
def several_askers_of_one_update(world: World) -> None:
    """They ask for the same id, and have the same answer."""
    handle = world.start(Desk.run)
    asked = [Asked(lambda: handle.execute_update(Desk.work, "once", id="one")) for _ in range(4)]
    assert [each.answer for each in asked] == ["once"] * 4
    handle.signal(Desk.finish, "")
    assert handle.result(timeout=LIMIT) == ["once begins", "once ends"]


@scenario("loose")
def queries_beside_updates(world: World) -> None:
    """A query sees what accepted updates have done so far, and nothing of a refused one."""
    handle = world.start(Desk.run)
    update = handle.start_update(Desk.waits, wait_for_stage=UpdateStage.ACCEPTED)
    assert handle.execute_update(Desk.add, "x") == ["x"]
    assert handle.query(Desk.seen) == ["x"]
    with pytest.raises(UpdateFailedError):
        handle.execute_update(Desk.add, "")
    assert handle.query(Desk.seen) == ["x"]
    handle.signal(Desk.finish, "")
    assert handle.result(timeout=LIMIT) == ["x"]
    assert_abandoned(Asked(lambda: update.result(timeout=LIMIT)).answer)


@scenario("loose", max_cached_workflows=0)
def updates_of_a_run_that_is_never_cached(world: World) -> None:
    """Every task begins with a replay: accepted updates are done again, refused ones are not."""
    handle = world.start(Desk.run)
    assert handle.execute_update(Desk.work, "a") == "a"
    with pytest.raises(UpdateFailedError):
        handle.execute_update(Desk.add, "")
    assert handle.execute_update(Desk.add, "b") == ["a begins", "a ends", "b"]
    handle.signal(Desk.finish, "")
    assert handle.result(timeout=LIMIT) == ["a begins", "a ends", "b"]


@workflow.defn
def registers_late(name: str) -> list[str]:
    """Has no handler before its body has run."""
    log = [name]

    @workflow.update
    def put(item: str) -> list[str]:
        """Keep it."""
        log.append(item)
        return log

    workflow.wait_condition(lambda: len(log) > 2)
    return log


@scenario("loose")
def an_update_before_its_handler(world: World) -> None:
    """It comes with the first task, before the body has registered a handler for it: it waits for the body."""
    name = f"{world.queue}-late"
    planned = world.client.with_start(registers_late, "n", id=name, task_queue=world.queue)
    assert planned.execute_update("put", "one", result_type=list) == ["n", "one"]
    world.handles.append(planned.handle)
    assert planned.handle.execute_update("put", "two", result_type=list) == ["n", "one", "two"]
    assert planned.handle.result(timeout=LIMIT) == ["n", "one", "two"]
