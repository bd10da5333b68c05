"""Updates: results, refusals, failures, several at once, ids, stages; starting together with an update or a signal; reset."""

from __future__ import annotations

import pytest

from hourglass import workflow
from hourglass.client import UpdateStage
from hourglass.errors import ApplicationError, UpdateFailedError, WorkflowNotFoundError

from . import acts
from .scenario import scenario
from .world import World


@workflow.defn
class Account:
    """Keeps a balance."""

    def __init__(self) -> None:
        self.balance = 0
        self.closed = False
        self.gate = False

    @workflow.run
    def run(self) -> int:
        """Until it is closed."""
        workflow.wait_condition(lambda: self.closed and workflow.all_handlers_finished())
        return self.balance

    @workflow.update
    def deposit(self, amount: int) -> int:
        """Add to the balance."""
        self.balance += amount
        return self.balance

    @deposit.validator
    def check_deposit(self, amount: int) -> None:
        """Only what is more than nothing."""
        if amount <= 0:
            raise ApplicationError("a deposit must be positive", type="BadDeposit")

    @workflow.update
    def slow(self, amount: int) -> int:
        """Waits for the gate, and runs an activity."""
        workflow.wait_condition(lambda: self.gate)
        acts.note(f"slow {amount}")
        self.balance += amount
        return self.balance

    @workflow.update
    def breaks(self) -> None:
        """Fails after it was accepted."""
        raise ApplicationError("no", "why", type="Broken")

    @workflow.signal
    def open_gate(self) -> None:
        """Let slow updates go on."""
        self.gate = True

    @workflow.signal
    def close(self) -> None:
        """End."""
        self.closed = True

    @workflow.query
    def now(self) -> int:
        """The balance."""
        return self.balance


@scenario("loose")
def an_update_returns(world: World) -> None:
    """An update changes the workflow and returns, again and again."""
    handle = world.start(Account.run)
    assert handle.execute_update(Account.deposit, 5) == 5
    assert handle.execute_update("deposit", 7, result_type=int) == 12
    handle.signal(Account.close)
    assert handle.result(timeout=60) == 12


@scenario("loose")
def an_update_that_is_refused(world: World) -> None:
    """A validator refuses before anything is recorded."""
    handle = world.start(Account.run)
    assert handle.execute_update(Account.deposit, 1) == 1
    with pytest.raises(UpdateFailedError, match="must be positive") as caught:
        handle.execute_update(Account.deposit, -1)
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "BadDeposit"
    handle.signal(Account.close)
    assert handle.result(timeout=60) == 1


@scenario("loose")
def an_update_that_fails(world: World) -> None:
    """A handler's failure is the update's, and the workflow goes on."""
    handle = world.start(Account.run)
    with pytest.raises(UpdateFailedError) as caught:
        handle.execute_update(Account.breaks)
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.details == ("why",)
    handle.signal(Account.close)
    assert handle.result(timeout=60) == 0


@scenario("loose")
def an_unknown_update(world: World) -> None:
    """There is no such handler: refused, with the names of those there are."""
    handle = world.start(Account.run)
    with pytest.raises(UpdateFailedError, match="deposit"):
        handle.execute_update("withdraw", 1)
    handle.signal(Account.close)
    handle.result(timeout=60)


@scenario("loose")
def several_updates_at_once(world: World) -> None:
    """Updates that wait run side by side."""
    handle = world.start(Account.run)
    started = [handle.start_update(Account.slow, amount, id=f"slow-{amount}") for amount in (1, 2, 3)]
    assert [each.id for each in started] == ["slow-1", "slow-2", "slow-3"]
    assert handle.execute_update(Account.deposit, 10) == 10
    handle.signal(Account.open_gate)
    assert sorted(each.result(timeout=60) for each in started)[-1] == 16
    again = handle.get_update_handle("slow-2", update=Account.slow)
    assert again.result(timeout=60) == started[1].result()
    handle.signal(Account.close)
    assert handle.result(timeout=60) == 16


@scenario("loose")
def an_update_asked_for_twice(world: World) -> None:
    """The same id again is the same update."""
    handle = world.start(Account.run)
    assert handle.execute_update(Account.deposit, 5, id="once") == 5
    assert handle.execute_update(Account.deposit, 5, id="once") == 5
    assert handle.query(Account.now) == 5
    handle.signal(Account.close)
    assert handle.result(timeout=60) == 5


@scenario("loose")
def an_update_waited_for_later(world: World) -> None:
    """One may wait for acceptance only, and for the result later."""
    handle = world.start(Account.run)
    update = handle.start_update(Account.slow, 4, wait_for_stage=UpdateStage.ACCEPTED)
    handle.signal(Account.open_gate)
    assert update.result(timeout=60) == 4
    handle.signal(Account.close)
    assert handle.result(timeout=60) == 4


@scenario("loose")
def an_update_of_a_closed_workflow(world: World) -> None:
    """There is nobody to update."""
    handle = world.start(Account.run)
    handle.signal(Account.close)
    handle.result(timeout=60)
    with pytest.raises(WorkflowNotFoundError):
        handle.execute_update(Account.deposit, 1)


@scenario("loose")
def starting_with_an_update(world: World) -> None:
    """The first update starts the workflow, the second uses it."""
    name = f"{world.queue}-account"
    for amount, balance in ((3, 3), (4, 7)):
        planned = world.client.with_start(Account.run, id=name, task_queue=world.queue)
        assert planned.execute_update(Account.deposit, amount) == balance
    world.handles.append(planned.handle)
    planned.handle.signal(Account.close)
    assert planned.handle.result(timeout=60) == 7


@scenario("loose")
def starting_with_an_update_that_is_refused(world: World) -> None:
    """The workflow starts all the same; the update is refused."""
    name = f"{world.queue}-refused"
    planned = world.client.with_start(Account.run, id=name, task_queue=world.queue)
    with pytest.raises(UpdateFailedError, match="must be positive"):
        planned.execute_update(Account.deposit, 0)
    handle = world.client.get_workflow_handle(name)
    handle.signal("close")
    assert handle.result(timeout=60) == 0


@scenario("loose")
def starting_with_a_signal(world: World) -> None:
    """The first signal starts the workflow, the second is sent to the one that runs."""
    name = f"{world.queue}-signalled"
    first = world.client.with_start(Account.run, id=name, task_queue=world.queue).signal(Account.open_gate)
    second = world.client.with_start(Account.run, id=name, task_queue=world.queue).signal(Account.close)
    assert first.run_id == second.run_id
    world.handles.append(first)
    assert second.result(timeout=60) == 0


@workflow.defn
def two_steps() -> list[object]:
    """An activity, then another."""
    return [acts.note("first"), acts.double(4)]


@scenario("loose")
def a_run_begun_anew_before_a_step(world: World) -> None:
    """Reset by the name of a step: what was before it is kept, the step is done again."""
    handle = world.start(two_steps)
    first = handle.result(timeout=60)
    again = handle.reset(before=acts.double, reason="do it again")
    assert again.run_id != handle.run_id
    assert again.result(timeout=60) == first
    assert world.client.get_workflow_handle(handle.id).describe().run_id == again.run_id
    world.handles[-1] = again
