"""Updates in detail: their info, invalid arguments, names, runs, time limits and bugs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import UpdateStage
from hourglass.errors import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ServiceError,
    UpdateFailedError,
    WorkflowNotFoundError,
)

from . import activities
from .scenario import scenario
from .update_handlers import BackgroundCall
from .world import LIMIT, World


@dataclass
class Change:
    by: int


@workflow.defn
class CollectsUpdates:
    """Processes updates until it is closed."""

    def __init__(self) -> None:
        self.total = 0
        self.closed = False
        self.seen: list[list[str]] = []
        self.tasks: list[workflow.Task[str]] = []

    @workflow.run
    def run(self) -> list[Any]:
        assert workflow.current_update_info() is None
        workflow.wait_condition(lambda: self.closed and workflow.all_handlers_finished())
        return [self.total, sorted(workflow.gather(*self.tasks))]

    @workflow.update(name="change it")
    def add(self, change: Change, times: int = 1) -> Change:
        self.total += change.by * times
        return Change(self.total)

    @add.validator
    def spoil_argument(self, change: Change, times: int = 1) -> None:
        """Change the argument, which must not affect the handler."""
        change.by = 0

    @workflow.update
    def returns_its_update_id(self) -> str:
        info = workflow.current_update_info()
        assert info is not None
        assert info.name == "returns_its_update_id"
        self.tasks.append(workflow.spawn(self._later))
        workflow.sleep(0.01)
        return info.id

    @returns_its_update_id.validator
    def check_info(self) -> None:
        info = workflow.current_update_info()
        assert info is not None
        self.seen.append([info.name])

    def _later(self) -> str:
        workflow.sleep(0.02)
        info = workflow.current_update_info()
        assert info is not None
        return info.id

    @workflow.update
    def cancels(self) -> None:
        task = activities.double.start(1)
        task.cancel()
        task.result()

    @workflow.update
    def starts_dynamic(self) -> str:
        @workflow.update(dynamic=True)
        def any_name(name: str, arguments: list[workflow.RawPayload]) -> str:
            return f"dynamic {name}"

        @any_name.validator
        def not_this(name: str, arguments: list[workflow.RawPayload]) -> None:
            if name == "refused":
                raise ApplicationError("not this one", type="Refused")

        return "set"

    @workflow.update
    def waits(self) -> str:
        workflow.wait_condition(lambda: self.closed)
        return "closed"

    @workflow.update
    def fails_once(self) -> str:
        """Fails until the gate `broken` is reset."""
        with workflow.unsafe():
            if activities.gate("broken").is_set():
                activities.gate("broken").clear()
                raise LookupError("a bug in a handler")
        return "mended"

    @workflow.update
    def has_failing_validator(self) -> str:
        return "looked at"

    @has_failing_validator.validator
    def calls_activity_once(self) -> None:
        """Calls an activity, which is not allowed in a validator, until the gate `broken` is reset."""
        with workflow.unsafe():
            if activities.gate("broken").is_set():
                activities.gate("broken").clear()
                activities.double(1)

    @workflow.signal
    def close(self) -> None:
        self.closed = True


def close_with_total(handle: Any, total: int, spawned: list[str] | None = None) -> None:
    """End the run and check its total."""
    handle.signal(CollectsUpdates.close)
    assert handle.result(timeout=LIMIT) == [total, spawned or []]


@scenario("loose")
def update_by_custom_name_converts_arguments_and_result(world: World) -> None:
    handle = world.start(CollectsUpdates.run)
    assert handle.execute_update(CollectsUpdates.add, Change(2)) == Change(2)
    assert handle.execute_update("change it", Change(2), 3) == {"by": 8}
    assert handle.execute_update("change it", {"by": 1}, result_type=Change) == Change(9)
    untyped = world.client.get_workflow_handle(handle.id)
    assert untyped.execute_update(CollectsUpdates.add, Change(1)) == Change(10)
    close_with_total(handle, 10)


@scenario("loose")
def validator_changes_do_not_reach_handler_arguments(world: World) -> None:
    handle = world.start(CollectsUpdates.run)
    assert handle.execute_update(CollectsUpdates.add, Change(5)) == Change(5)
    close_with_total(handle, 5)


@scenario("loose")
def current_update_info_is_known_in_handler_validator_and_spawned_tasks(world: World) -> None:
    handle = world.start(CollectsUpdates.run)
    ids = [f"u{number}" for number in range(5)]
    calls = [
        BackgroundCall(partial(handle.execute_update, CollectsUpdates.returns_its_update_id, id=id))
        for id in ids
    ]
    assert [call.answer for call in calls] == ids
    close_with_total(handle, 0, ids)


@scenario("loose")
def cancelled_activity_in_update_handler_fails_update_but_not_run(world: World) -> None:
    handle = world.start(CollectsUpdates.run)
    with pytest.raises(UpdateFailedError) as caught:
        handle.execute_update(CollectsUpdates.cancels)
    cause = caught.value.cause
    assert isinstance(cause, (ActivityError, CancelledError))
    assert isinstance(cause if isinstance(cause, CancelledError) else cause.cause, CancelledError)
    close_with_total(handle, 0)


@scenario("loose")
def update_with_invalid_arguments_is_rejected(world: World) -> None:
    handle = world.start(CollectsUpdates.run)
    wrong: list[list[Any]] = [[], [{"by": 1}, 2, 3], ["text"], [{"by": "text"}], [{"to": 1}]]
    for arguments in wrong:
        with pytest.raises(UpdateFailedError) as caught:
            handle.execute_update("change it", *arguments)
        assert isinstance(caught.value.cause, ApplicationError)
    close_with_total(handle, 0)


@scenario("loose")
def late_dynamic_update_handler_takes_any_name_and_validates(world: World) -> None:
    handle = world.start(CollectsUpdates.run)
    with pytest.raises(UpdateFailedError, match="unknown update 'made_up'"):
        handle.execute_update("made_up")
    assert handle.execute_update(CollectsUpdates.starts_dynamic) == "set"
    assert handle.execute_update("made_up") == "dynamic made_up"
    with pytest.raises(UpdateFailedError, match="not this one"):
        handle.execute_update("refused")
    close_with_total(handle, 0)


@scenario("loose")
def update_by_run_id_of_closed_run_raises_not_found(world: World) -> None:
    first = world.start(CollectsUpdates.run)
    close_with_total(first, 0)
    second = world.start(CollectsUpdates.run, id=first.id)
    pinned = world.client.get_workflow_handle(first.id, run_id=first.run_id)
    with pytest.raises(WorkflowNotFoundError):
        pinned.execute_update("change it", {"by": 1})
    assert second.execute_update(CollectsUpdates.add, Change(1)) == Change(1)
    close_with_total(second, 1)


@scenario("loose")
def update_result_is_available_by_update_id(world: World) -> None:
    handle = world.start(CollectsUpdates.run)
    update = handle.start_update(CollectsUpdates.waits, wait_for_stage=UpdateStage.ACCEPTED)
    found_by_id = world.client.get_workflow_handle(handle.id, run_id=handle.run_id).get_update_handle(
        update.id, update=CollectsUpdates.waits
    )
    calls = [
        BackgroundCall(partial(update_handle.result, timeout=LIMIT))
        for update_handle in (update, found_by_id)
    ]
    close_with_total(handle, 0)
    assert [call.answer for call in calls] == ["closed", "closed"]


@scenario("loose")
def update_without_worker_times_out_and_can_be_repeated(world: World) -> None:
    handle = world.start_waiting(CollectsUpdates.run)
    world.stop_worker()
    with pytest.raises((ServiceError, TimeoutError)):
        handle.start_update(CollectsUpdates.add, Change(3), id="u", rpc_timeout=0.4)
    world.start_worker()
    assert handle.execute_update(CollectsUpdates.add, Change(3), id="u") == Change(3)
    close_with_total(handle, 3)


@scenario("loose")
def update_result_timeout_leaves_update_running(world: World) -> None:
    handle = world.start(CollectsUpdates.run)
    update = handle.start_update(CollectsUpdates.waits)
    with pytest.raises(TimeoutError):
        update.result(timeout=0.1)
    handle.signal(CollectsUpdates.close)
    assert update.result(timeout=LIMIT) == "closed"
    handle.result(timeout=LIMIT)


@scenario("loose", loud=True, verify="off")
def update_handler_bug_fails_task_until_fixed(world: World) -> None:
    handle = world.start_waiting(CollectsUpdates.run, task_timeout=1)
    activities.gate("broken").set()
    assert handle.execute_update(CollectsUpdates.fails_once) == "mended"
    assert not activities.gate("broken").is_set()
    close_with_total(handle, 0)


@scenario("loose", loud=True, verify="off")
def command_in_validator_fails_task_and_records_nothing(world: World) -> None:
    handle = world.start_waiting(CollectsUpdates.run, task_timeout=1)
    activities.gate("broken").set()
    assert handle.execute_update(CollectsUpdates.has_failing_validator) == "looked at"
    assert not activities.gate("broken").is_set()
    close_with_total(handle, 0)


# --- the first task ---------------------------------------------------------------------------------------------------


@workflow.defn
class InitializedWithArguments:
    @workflow.init
    def __init__(self, given: str) -> None:
        self.value = given

    @workflow.run
    def run(self, given: str) -> str:
        before, self.value = self.value, "the body's"
        return before

    @workflow.update
    def current_value(self) -> str:
        return self.value


@workflow.defn
class InitializedWithDefaults:
    value = "the class's"

    def __init__(self, given: str = "a default") -> None:
        self.given = given

    @workflow.run
    def run(self, given: str) -> str:
        self.given = "the body's"
        return self.given

    @workflow.update
    def current_value(self) -> list[str]:
        return [self.value, self.given]


@scenario("loose")
def update_in_first_task_sees_state_of_workflow_init(world: World) -> None:
    planned = world.client.with_start(
        InitializedWithArguments.run, "given", id=f"{world.queue}-i", task_queue=world.queue
    )
    assert planned.execute_update(InitializedWithArguments.current_value) == "given"
    world.handles.append(planned.handle)
    assert planned.handle.result(timeout=LIMIT) == "given"


@scenario("loose")
def update_in_first_task_sees_default_state_without_workflow_init(world: World) -> None:
    planned = world.client.with_start(
        InitializedWithDefaults.run, "given", id=f"{world.queue}-n", task_queue=world.queue
    )
    assert planned.execute_update(InitializedWithDefaults.current_value) == ["the class's", "a default"]
    world.handles.append(planned.handle)
    assert planned.handle.result(timeout=LIMIT) == "the body's"
