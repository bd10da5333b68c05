"""Updates: results, rejections, failures, concurrency, ids and stages; starts with an update or a signal; reset."""

from __future__ import annotations

import pytest

from hourglass import workflow
from hourglass.client import UpdateStage
from hourglass.errors import ApplicationError, UpdateFailedError, WorkflowNotFoundError

from . import activities
from .scenario import scenario
from .world import World


@workflow.defn
class Account:
    def __init__(self) -> None:
        self.balance = 0
        self.closed = False
        self.gate = False

    @workflow.run
    def run(self) -> int:
        workflow.wait_condition(lambda: self.closed and workflow.all_handlers_finished())
        return self.balance

    @workflow.update
    def deposit(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    @deposit.validator
    def check_deposit(self, amount: int) -> None:
        if amount <= 0:
            raise ApplicationError("a deposit must be positive", type="BadDeposit")

    @workflow.update
    def slow_deposit(self, amount: int) -> int:
        workflow.wait_condition(lambda: self.gate)
        activities.record_call(f"slow {amount}")
        self.balance += amount
        return self.balance

    @workflow.update
    def fails_after_acceptance(self) -> None:
        raise ApplicationError("no", "why", type="Broken")

    @workflow.signal
    def open_gate(self) -> None:
        self.gate = True

    @workflow.signal
    def close(self) -> None:
        self.closed = True

    @workflow.query
    def current_balance(self) -> int:
        return self.balance


@scenario("loose")
def update_changes_state_and_returns_result(world: World) -> None:
    handle = world.start(Account.run)
    assert handle.execute_update(Account.deposit, 5) == 5
    assert handle.execute_update("deposit", 7, result_type=int) == 12
    handle.signal(Account.close)
    assert handle.result(timeout=60) == 12


@scenario("loose")
def update_rejected_by_validator_fails_with_its_error(world: World) -> None:
    handle = world.start(Account.run)
    assert handle.execute_update(Account.deposit, 1) == 1
    with pytest.raises(UpdateFailedError, match="must be positive") as caught:
        handle.execute_update(Account.deposit, -1)
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.type == "BadDeposit"
    handle.signal(Account.close)
    assert handle.result(timeout=60) == 1


@scenario("loose")
def update_handler_failure_fails_update_but_not_run(world: World) -> None:
    handle = world.start(Account.run)
    with pytest.raises(UpdateFailedError) as caught:
        handle.execute_update(Account.fails_after_acceptance)
    assert isinstance(caught.value.cause, ApplicationError)
    assert caught.value.cause.details == ("why",)
    handle.signal(Account.close)
    assert handle.result(timeout=60) == 0


@scenario("loose")
def unknown_update_is_rejected_with_known_names(world: World) -> None:
    handle = world.start(Account.run)
    with pytest.raises(UpdateFailedError, match="deposit"):
        handle.execute_update("withdraw", 1)
    handle.signal(Account.close)
    handle.result(timeout=60)


@scenario("loose")
def waiting_updates_run_concurrently(world: World) -> None:
    handle = world.start(Account.run)
    started = [handle.start_update(Account.slow_deposit, amount, id=f"slow-{amount}") for amount in (1, 2, 3)]
    assert [update.id for update in started] == ["slow-1", "slow-2", "slow-3"]
    assert handle.execute_update(Account.deposit, 10) == 10
    handle.signal(Account.open_gate)
    assert sorted(update.result(timeout=60) for update in started)[-1] == 16
    again = handle.get_update_handle("slow-2", update=Account.slow_deposit)
    assert again.result(timeout=60) == started[1].result()
    handle.signal(Account.close)
    assert handle.result(timeout=60) == 16


@scenario("loose")
def update_result_can_be_awaited_after_acceptance(world: World) -> None:
    handle = world.start(Account.run)
    update = handle.start_update(Account.slow_deposit, 4, wait_for_stage=UpdateStage.ACCEPTED)
    handle.signal(Account.open_gate)
    assert update.result(timeout=60) == 4
    handle.signal(Account.close)
    assert handle.result(timeout=60) == 4


@scenario("loose")
def update_of_closed_workflow_raises_not_found(world: World) -> None:
    handle = world.start(Account.run)
    handle.signal(Account.close)
    handle.result(timeout=60)
    with pytest.raises(WorkflowNotFoundError):
        handle.execute_update(Account.deposit, 1)


@scenario("loose")
def update_with_start_starts_workflow_then_uses_it(world: World) -> None:
    name = f"{world.queue}-account"
    for amount, balance in ((3, 3), (4, 7)):
        planned = world.client.with_start(Account.run, id=name, task_queue=world.queue)
        assert planned.execute_update(Account.deposit, amount) == balance
    world.handles.append(planned.handle)
    planned.handle.signal(Account.close)
    assert planned.handle.result(timeout=60) == 7


@scenario("loose")
def update_with_start_starts_workflow_even_if_update_is_rejected(world: World) -> None:
    name = f"{world.queue}-refused"
    planned = world.client.with_start(Account.run, id=name, task_queue=world.queue)
    with pytest.raises(UpdateFailedError, match="must be positive"):
        planned.execute_update(Account.deposit, 0)
    handle = world.client.get_workflow_handle(name)
    handle.signal("close")
    assert handle.result(timeout=60) == 0


@scenario("loose")
def signal_with_start_starts_workflow_then_signals_it(world: World) -> None:
    name = f"{world.queue}-signalled"
    first = world.client.with_start(Account.run, id=name, task_queue=world.queue).signal(Account.open_gate)
    second = world.client.with_start(Account.run, id=name, task_queue=world.queue).signal(Account.close)
    assert first.run_id == second.run_id
    world.handles.append(first)
    assert second.result(timeout=60) == 0


@workflow.defn
def runs_two_activities() -> list[object]:
    return [activities.record_call("first"), activities.double(4)]


@scenario("loose")
def reset_before_named_step_repeats_that_step(world: World) -> None:
    handle = world.start(runs_two_activities)
    first = handle.result(timeout=60)
    again = handle.reset(before=activities.double, reason="do it again")
    assert again.run_id != handle.run_id
    assert again.result(timeout=60) == first
    assert world.client.get_workflow_handle(handle.id).describe().run_id == again.run_id
    world.handles[-1] = again
