"""Update handlers: what they can do, and what happens to updates when their run ends or loses its worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import UpdateStage, WorkflowHandle
from hourglass.errors import ApplicationError, UpdateFailedError, WorkflowNotFoundError

from . import activities
from .scenario import scenario
from .world import LIMIT, World


class BackgroundCall(threading.Thread):
    """A blocking call in a thread; `answer` waits for its result or exception."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._ask = ask
        self._result: Any = None
        self.start()

    def run(self) -> None:
        """Call, and keep the result or the exception."""
        try:
            self._result = self._ask()
        except Exception as error:
            self._result = error

    @property
    def answer(self) -> Any:
        self.join(LIMIT)
        assert not self.is_alive()
        return self._result


def wait_until_admitted(world: World, handle: WorkflowHandle[Any], update_id: str) -> None:
    """Wait until the engine knows the update."""

    def is_known() -> bool:
        try:
            handle.get_update_handle(update_id).result(timeout=0.05)
        except TimeoutError:
            return True
        except WorkflowNotFoundError:
            return False
        return True

    world.wait_until(is_known, f"update {update_id}")


@workflow.defn
class HandlesUpdates:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.lock = workflow.Lock()
        self.end: str | None = None

    @workflow.run
    def run(self, turn: int = 0) -> list[str]:
        workflow.wait_condition(lambda: self.end is not None)
        if self.end == "go on":
            workflow.continue_as_new(turn + 1)
        return self.log

    @workflow.update
    def work(self, name: str) -> str:
        with self.lock:
            self.log.append(f"{name} begins")
            activities.double(1)
            workflow.sleep(0.01)
            self.log.append(f"{name} ends")
        return name

    @workflow.update
    def waits(self) -> str:
        workflow.wait_condition(lambda: False)
        return "never"

    @workflow.update
    def add(self, name: str) -> list[str]:
        self.log.append(name)
        return self.log

    @add.validator
    def check(self, name: str) -> None:
        if not name:
            raise ValueError("a name, please")

    @workflow.update
    def ends(self, how: str) -> str:
        self.end = how
        return "done"

    @workflow.update(dynamic=True)
    def any_other(self, name: str, args: list[Any]) -> list[Any]:
        return [name, *(argument.decode() for argument in args)]

    @workflow.signal
    def note(self, name: str) -> None:
        self.log.append(name)

    @workflow.signal
    def finish(self, how: str) -> None:
        self.end = how

    @workflow.query
    def seen(self) -> list[str]:
        return self.log


@scenario("loose")
def update_handlers_with_shared_lock_run_one_after_another(world: World) -> None:
    handle = world.start(HandlesUpdates.run)
    updates = [handle.start_update(HandlesUpdates.work, name) for name in ("a", "b", "c")]
    assert [update.result(timeout=LIMIT) for update in updates] == ["a", "b", "c"]
    handle.signal(HandlesUpdates.finish, "")
    expected = [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]
    assert handle.result(timeout=LIMIT) == expected


@scenario("loose")
def validator_with_plain_exception_rejects_update(world: World) -> None:
    handle = world.start(HandlesUpdates.run)
    with pytest.raises(UpdateFailedError, match="a name, please") as caught:
        handle.execute_update(HandlesUpdates.add, "")
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "ValueError"
    assert handle.execute_update(HandlesUpdates.add, "x") == ["x"]
    handle.signal(HandlesUpdates.finish, "")
    assert handle.result(timeout=LIMIT) == ["x"]


@scenario("exact")
def rejected_updates_are_not_recorded(world: World) -> None:
    handle = world.start_waiting(HandlesUpdates.run)
    length = len(handle.history().events)
    for _ in range(5):
        with pytest.raises(UpdateFailedError):
            handle.execute_update(HandlesUpdates.add, "")
    assert len(handle.history().events) == length
    handle.signal(HandlesUpdates.finish, "")
    assert handle.result(timeout=LIMIT) == []


@scenario("loose")
def dynamic_update_handler_takes_unknown_names(world: World) -> None:
    handle = world.start(HandlesUpdates.run)
    assert handle.execute_update("what", 1, "two") == ["what", 1, "two"]
    handle.signal(HandlesUpdates.finish, "")
    handle.result(timeout=LIMIT)


@scenario("loose")
def update_in_progress_fails_when_workflow_completes(world: World) -> None:
    handle = world.start(HandlesUpdates.run)
    update = handle.start_update(HandlesUpdates.waits, id="w")
    call = BackgroundCall(lambda: update.result(timeout=LIMIT))
    handle.signal(HandlesUpdates.finish, "")
    handle.result(timeout=LIMIT)
    assert_abandoned(call.answer)
    assert_abandoned(BackgroundCall(lambda: handle.get_update_handle("w").result(timeout=LIMIT)).answer)
    assert_abandoned(BackgroundCall(lambda: handle.execute_update(HandlesUpdates.waits, id="w")).answer)


def assert_abandoned(error: Any) -> None:
    """Assert that the update failed because the workflow completed first."""
    assert isinstance(error, UpdateFailedError), error
    assert isinstance(error.cause, ApplicationError)
    assert error.cause.type == "AcceptedUpdateCompletedWorkflow"
    assert error.cause.non_retryable


@scenario("loose")
def update_in_progress_fails_when_workflow_is_terminated(world: World) -> None:
    handle = world.start(HandlesUpdates.run)
    update = handle.start_update(HandlesUpdates.waits)
    handle.terminate("enough")
    assert_abandoned(BackgroundCall(lambda: update.result(timeout=LIMIT)).answer)


@scenario("loose")
def update_that_completes_the_workflow_is_answered(world: World) -> None:
    handle = world.start(HandlesUpdates.run)
    assert handle.execute_update(HandlesUpdates.ends, "") == "done"
    assert handle.result(timeout=LIMIT) == []
    assert handle.get_update_handle("nothing").id == "nothing"
    with pytest.raises(WorkflowNotFoundError, match="not found"):
        handle.get_update_handle("nothing").result(timeout=LIMIT)


@scenario("loose")
def update_in_progress_fails_on_continue_as_new_and_its_id_is_free(world: World) -> None:
    handle = world.start(HandlesUpdates.run)
    update = handle.start_update(HandlesUpdates.waits, id="u")
    assert handle.execute_update(HandlesUpdates.ends, "go on") == "done"
    assert_abandoned(BackgroundCall(lambda: update.result(timeout=LIMIT)).answer)
    latest = world.client.get_workflow_handle(handle.id)
    assert latest.execute_update("add", "fresh", id="u", result_type=list) == ["fresh"]
    latest.signal("finish", "")
    assert latest.result(timeout=LIMIT) == ["fresh"]


@scenario("loose")
def update_waits_for_worker_and_follows_earlier_signals(world: World) -> None:
    handle = world.start_waiting(HandlesUpdates.run)
    world.stop_serving_queue()
    call = BackgroundCall(lambda: handle.execute_update(HandlesUpdates.add, "update", id="u"))
    wait_until_admitted(world, handle, "u")
    handle.signal(HandlesUpdates.note, "signal")
    world.start_worker()
    assert call.answer == ["signal", "update"]
    handle.signal(HandlesUpdates.finish, "")
    assert handle.result(timeout=LIMIT) == ["signal", "update"]


@scenario("loose")
def unaccepted_update_of_terminated_workflow_raises_not_found(world: World) -> None:
    handle = world.start_waiting(HandlesUpdates.run)
    world.stop_serving_queue()
    call = BackgroundCall(lambda: handle.execute_update(HandlesUpdates.add, "update", id="u"))
    wait_until_admitted(world, handle, "u")
    handle.terminate("enough")
    world.start_worker()  # a file without a worker has no process that could answer
    assert isinstance(call.answer, WorkflowNotFoundError)


@scenario("loose")
def concurrent_callers_of_one_update_id_get_same_result(world: World) -> None:
    handle = world.start(HandlesUpdates.run)
    calls = [
        BackgroundCall(lambda: handle.execute_update(HandlesUpdates.work, "once", id="one")) for _ in range(4)
    ]
    assert [call.answer for call in calls] == ["once"] * 4
    handle.signal(HandlesUpdates.finish, "")
    assert handle.result(timeout=LIMIT) == ["once begins", "once ends"]


@scenario("loose")
def query_sees_accepted_but_not_rejected_updates(world: World) -> None:
    handle = world.start(HandlesUpdates.run)
    update = handle.start_update(HandlesUpdates.waits, wait_for_stage=UpdateStage.ACCEPTED)
    assert handle.execute_update(HandlesUpdates.add, "x") == ["x"]
    assert handle.query(HandlesUpdates.seen) == ["x"]
    with pytest.raises(UpdateFailedError):
        handle.execute_update(HandlesUpdates.add, "")
    assert handle.query(HandlesUpdates.seen) == ["x"]
    handle.signal(HandlesUpdates.finish, "")
    assert handle.result(timeout=LIMIT) == ["x"]
    assert_abandoned(BackgroundCall(lambda: update.result(timeout=LIMIT)).answer)


@scenario("loose", max_cached_workflows=0)
def updates_replay_without_cache(world: World) -> None:
    handle = world.start(HandlesUpdates.run)
    assert handle.execute_update(HandlesUpdates.work, "a") == "a"
    with pytest.raises(UpdateFailedError):
        handle.execute_update(HandlesUpdates.add, "")
    assert handle.execute_update(HandlesUpdates.add, "b") == ["a begins", "a ends", "b"]
    handle.signal(HandlesUpdates.finish, "")
    assert handle.result(timeout=LIMIT) == ["a begins", "a ends", "b"]


@workflow.defn
def registers_update_handler_late(name: str) -> list[str]:
    log = [name]

    @workflow.update
    def put(item: str) -> list[str]:
        log.append(item)
        return log

    workflow.wait_condition(lambda: len(log) > 2)
    return log


@scenario("loose")
def update_before_handler_registration_waits_for_body(world: World) -> None:
    name = f"{world.queue}-late"
    planned = world.client.with_start(registers_update_handler_late, "n", id=name, task_queue=world.queue)
    assert planned.execute_update("put", "one", result_type=list) == ["n", "one"]
    world.handles.append(planned.handle)
    assert planned.handle.execute_update("put", "two", result_type=list) == ["n", "one", "two"]
    assert planned.handle.result(timeout=LIMIT) == ["n", "one", "two"]
