"""Updates in detail: what they see, who they are, arguments that do not fit, names, runs, time limits, bugs."""

from __future__ import annotations

from dataclasses import dataclass
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

from . import acts
from .scenario import scenario
from .update_handlers import Asked
from .world import World

LIMIT = 30


@dataclass
class Change:
    """An argument with a type."""

    by: int


@workflow.defn
class Till:
    """Takes changes until it is closed."""

    def __init__(self) -> None:
        self.total = 0
        self.closed = False
        self.seen: list[list[str]] = []
        self.tasks: list[workflow.Task[str]] = []

    @workflow.run
    def run(self) -> list[Any]:
        """Until it is closed."""
        assert workflow.current_update_info() is None
        workflow.wait_condition(lambda: self.closed and workflow.all_handlers_finished())
        return [self.total, sorted(workflow.gather(*self.tasks))]

    @workflow.update(name="change it")
    def change(self, change: Change, times: int = 1) -> Change:
        """Add, and tell the total."""
        self.total += change.by * times
        return Change(self.total)

    @change.validator
    def check(self, change: Change, times: int = 1) -> None:
        """Its own arguments may be spoiled here."""
        change.by = 0

    @workflow.update
    def who(self) -> str:
        """Its own id, in the handler and in what it spawns."""
        info = workflow.current_update_info()
        assert info is not None
        assert info.name == "who"
        self.tasks.append(workflow.spawn(self._later))
        workflow.sleep(0.01)
        return info.id

    @who.validator
    def known(self) -> None:
        """Validators know it too."""
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
        """Waits for an activity that it has cancelled."""
        task = acts.double.start(1)
        task.cancel()
        task.result()

    @workflow.update
    def starts_dynamic(self) -> str:
        """From now on every name is taken, but one."""

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
        """Until it is closed."""
        workflow.wait_condition(lambda: self.closed)
        return "closed"

    @workflow.update
    def breaks_once(self) -> str:
        """Has a bug, until somebody mends it."""
        with workflow.unsafe():
            if acts.gate("broken").is_set():
                acts.gate("broken").clear()
                raise LookupError("a bug in a handler")
        return "mended"

    @workflow.update
    def refuses_to_look(self) -> str:
        """Its validator is the problem."""
        return "looked at"

    @refuses_to_look.validator
    def does_too_much(self) -> None:
        """A command in a validator, until somebody mends it."""
        with workflow.unsafe():
            if acts.gate("broken").is_set():
                acts.gate("broken").clear()
                acts.double(1)

    @workflow.signal
    def close(self) -> None:
        """End."""
        self.closed = True


def closed(handle: Any, total: int, spawned: list[str] | None = None) -> None:
    """End a run, which has come to a total."""
    handle.signal(Till.close)
    assert handle.result(timeout=LIMIT) == [total, spawned or []]


@scenario("loose")
def an_update_of_another_name(world: World) -> None:
    """An update has the name that it was given; its argument and its result have types; a default is taken."""
    handle = world.start(Till.run)
    assert handle.execute_update(Till.change, Change(2)) == Change(2)
    assert handle.execute_update("change it", Change(2), 3) == {"by": 8}
    assert handle.execute_update("change it", {"by": 1}, result_type=Change) == Change(9)
    untyped = world.client.get_workflow_handle(handle.id)
    assert untyped.execute_update(Till.change, Change(1)) == Change(10)
    closed(handle, 10)


@scenario("loose")
def what_a_validator_does_to_its_arguments(world: World) -> None:
    """The handler is given arguments of its own."""
    handle = world.start(Till.run)
    assert handle.execute_update(Till.change, Change(5)) == Change(5)
    closed(handle, 5)


@scenario("loose")
def updates_that_know_who_they_are(world: World) -> None:
    """Handlers, validators and what they spawn know the update's id and name; the body knows none."""
    handle = world.start(Till.run)
    ids = [f"u{number}" for number in range(5)]
    asked = [Asked(lambda id=id: handle.execute_update(Till.who, id=id)) for id in ids]  # type: ignore[misc]
    assert [each.answer for each in asked] == ids
    closed(handle, 0, ids)


@scenario("loose")
def an_update_that_cancels_its_activity(world: World) -> None:
    """A cancelled activity that a handler lets out fails the update, and not the run."""
    handle = world.start(Till.run)
    with pytest.raises(UpdateFailedError) as caught:
        handle.execute_update(Till.cancels)
    cause = caught.value.cause
    assert isinstance(cause, (ActivityError, CancelledError))
    assert isinstance(cause if isinstance(cause, CancelledError) else cause.cause, CancelledError)
    closed(handle, 0)


@scenario("loose")
def updates_with_wrong_arguments(world: World) -> None:
    """Too few, too many, of the wrong type: refused before anything is recorded."""
    handle = world.start(Till.run)
    wrong: list[list[Any]] = [[], [{"by": 1}, 2, 3], ["text"], [{"by": "text"}], [{"to": 1}]]
    for arguments in wrong:
        with pytest.raises(UpdateFailedError) as caught:
            handle.execute_update("change it", *arguments)
        assert isinstance(caught.value.cause, ApplicationError)
    closed(handle, 0)


@scenario("loose")
def a_dynamic_update_with_a_validator(world: World) -> None:
    """A dynamic handler that is registered later takes any name; its validator may refuse some."""
    handle = world.start(Till.run)
    with pytest.raises(UpdateFailedError, match="unknown update 'made_up'"):
        handle.execute_update("made_up")
    assert handle.execute_update(Till.starts_dynamic) == "set"
    assert handle.execute_update("made_up") == "dynamic made_up"
    with pytest.raises(UpdateFailedError, match="not this one"):
        handle.execute_update("refused")
    closed(handle, 0)


@scenario("loose")
def an_update_of_one_run(world: World) -> None:
    """The handle of a run that has closed does not reach the next run of the same id."""
    first = world.start(Till.run)
    closed(first, 0)
    second = world.start(Till.run, id=first.id)
    pinned = world.client.get_workflow_handle(first.id, run_id=first.run_id)
    with pytest.raises(WorkflowNotFoundError):
        pinned.execute_update("change it", {"by": 1})
    assert second.execute_update(Till.change, Change(1)) == Change(1)
    closed(second, 1)


@scenario("loose")
def an_update_by_another_handle(world: World) -> None:
    """Whoever knows an update's id waits for it too; it knows its workflow's id and run."""
    handle = world.start(Till.run)
    update = handle.start_update(Till.waits, wait_for_stage=UpdateStage.ACCEPTED)
    other = world.client.get_workflow_handle(handle.id, run_id=handle.run_id).get_update_handle(
        update.id, update=Till.waits
    )
    asked = [Asked(lambda each=each: each.result(timeout=LIMIT)) for each in (update, other)]  # type: ignore[misc]
    closed(handle, 0)
    assert [each.answer for each in asked] == ["closed", "closed"]


@scenario("loose")
def an_update_that_takes_too_long_to_ask_for(world: World) -> None:
    """Nobody is there to accept it: the asker's patience ends, and the update may be asked for again."""
    handle = world.start(Till.run)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    world.stop_worker()
    with pytest.raises((ServiceError, TimeoutError)):
        handle.start_update(Till.change, Change(3), id="u", rpc_timeout=0.4)
    world.start_worker()
    assert handle.execute_update(Till.change, Change(3), id="u") == Change(3)
    closed(handle, 3)


@scenario("loose")
def an_update_whose_result_takes_too_long(world: World) -> None:
    """Waiting for a result ends with the asker's patience; the update goes on, and can be waited for again."""
    handle = world.start(Till.run)
    update = handle.start_update(Till.waits)
    with pytest.raises(TimeoutError):
        update.result(timeout=0.1)
    handle.signal(Till.close)
    assert update.result(timeout=LIMIT) == "closed"
    handle.result(timeout=LIMIT)


@scenario("loose", loud=True, verify="off")
def an_update_whose_handler_has_a_bug(world: World) -> None:
    """A plain exception of a handler fails the task; it is done again, and the update is answered when it is mended."""
    handle = world.start(Till.run, task_timeout=1)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    acts.gate("broken").set()
    assert handle.execute_update(Till.breaks_once) == "mended"
    assert not acts.gate("broken").is_set()
    closed(handle, 0)


@scenario("loose", loud=True, verify="off")
def a_validator_that_does_too_much(world: World) -> None:
    """A durable call in a validator is a bug: the task fails and is done again, nothing is recorded of it."""
    handle = world.start(Till.run, task_timeout=1)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    acts.gate("broken").set()
    assert handle.execute_update(Till.refuses_to_look) == "looked at"
    assert not acts.gate("broken").is_set()
    closed(handle, 0)


# --- the first task ---------------------------------------------------------------------------------------------------


@workflow.defn
class WithInit:
    """Is built with its arguments."""

    @workflow.init
    def __init__(self, given: str) -> None:
        self.value = given

    @workflow.run
    def run(self, given: str) -> str:
        """Changes what it was built with."""
        before, self.value = self.value, "the body's"
        return before

    @workflow.update
    def see(self) -> str:
        """What there is when it comes."""
        return self.value


@workflow.defn
class WithoutInit:
    """Is built without them."""

    value = "the class's"

    def __init__(self, given: str = "a default") -> None:
        self.given = given

    @workflow.run
    def run(self, given: str) -> str:
        """Changes it."""
        self.given = "the body's"
        return self.given

    @workflow.update
    def see(self) -> list[str]:
        """What there is when it comes."""
        return [self.value, self.given]


@scenario("loose")
def an_update_in_the_first_task_sees_the_arguments(world: World) -> None:
    """With @workflow.init an update that comes with the start sees what the object was built from, before the body."""
    planned = world.client.with_start(WithInit.run, "given", id=f"{world.queue}-i", task_queue=world.queue)
    assert planned.execute_update(WithInit.see) == "given"
    world.handles.append(planned.handle)
    assert planned.handle.result(timeout=LIMIT) == "given"


@scenario("loose")
def an_update_in_the_first_task_without_init(world: World) -> None:
    """Without it the object is built with its own defaults."""
    planned = world.client.with_start(WithoutInit.run, "given", id=f"{world.queue}-n", task_queue=world.queue)
    assert planned.execute_update(WithoutInit.see) == ["the class's", "a default"]
    world.handles.append(planned.handle)
    assert planned.handle.result(timeout=LIMIT) == "the body's"
