"""Update with start: open runs, closed runs and id policies."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import IdConflictPolicy, IdReusePolicy, WorkflowHandle
from hourglass.errors import ServiceError, WorkflowAlreadyStartedError

from .scenario import scenario
from .world import World


@workflow.defn
class Account:
    def __init__(self) -> None:
        self.balance = 0
        self.closed = False

    @workflow.run
    def run(self) -> int:
        workflow.wait_condition(lambda: self.closed)
        return self.balance

    @workflow.update
    def deposit(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    @workflow.signal
    def close(self) -> None:
        self.closed = True


def start_account(world: World, name: str, *, closed: bool = False) -> WorkflowHandle[int]:
    """Start an account; with `closed` also close it."""
    handle = world.client.start_workflow(Account.run, id=name, task_queue=world.queue)
    if closed:
        handle.signal(Account.close)
        handle.result(timeout=60)
    return handle


def deposit(
    world: World,
    name: str,
    policy: IdConflictPolicy,
    reuse: IdReusePolicy = IdReusePolicy.ALLOW_DUPLICATE,
    id: str = "once",
) -> tuple[int, str]:
    """Deposit with an update that comes with a start. Return the balance and the run id."""
    planned = world.client.with_start(
        Account.run, id=name, task_queue=world.queue, id_conflict_policy=policy, id_reuse_policy=reuse
    )
    balance = planned.execute_update(Account.deposit, 5, id=id)
    run_id = planned.handle.run_id
    assert run_id
    return balance, run_id


def close_account(world: World, name: str, balance: int) -> None:
    handle = world.client.get_workflow_handle(name, result_type=int)
    handle.signal("close")
    assert handle.result(timeout=60) == balance


@scenario("loose")
def update_with_start_starts_run_for_every_conflict_policy(world: World) -> None:
    """A second call with the same update id returns the same result of the same run."""
    for policy in (
        IdConflictPolicy.USE_EXISTING,
        IdConflictPolicy.FAIL,
        IdConflictPolicy.TERMINATE_EXISTING,
    ):
        name = f"{world.queue}-absent-{policy.name}"
        first = deposit(world, name, policy)
        assert first[0] == 5
        assert deposit(world, name, policy) == first
        close_account(world, name, 5)


@scenario("loose")
def update_with_start_applies_conflict_policy_to_open_run(world: World) -> None:
    name = f"{world.queue}-use"
    running = start_account(world, name)
    assert deposit(world, name, IdConflictPolicy.USE_EXISTING) == (5, running.run_id)
    with pytest.raises(WorkflowAlreadyStartedError) as caught:
        deposit(world, name, IdConflictPolicy.FAIL, id="another")
    assert caught.value.run_id == running.run_id
    balance, run_id = deposit(world, name, IdConflictPolicy.TERMINATE_EXISTING, id="another")
    assert balance == 5
    assert run_id != running.run_id
    described = world.client.get_workflow_handle(name, run_id=running.run_id).describe()
    assert described.status.name == "TERMINATED"
    close_account(world, name, 5)


@scenario("loose")
def update_with_start_applies_reuse_policy_to_closed_run(world: World) -> None:
    name = f"{world.queue}-closed"
    old = start_account(world, name, closed=True)
    with pytest.raises(WorkflowAlreadyStartedError):
        deposit(world, name, IdConflictPolicy.USE_EXISTING, IdReusePolicy.REJECT_DUPLICATE)
    balance, run_id = deposit(world, name, IdConflictPolicy.USE_EXISTING)
    assert balance == 5
    assert run_id != old.run_id
    close_account(world, name, 5)


@scenario("loose")
def update_with_start_rejects_start_delay_and_cron_schedule(world: World) -> None:
    name = f"{world.queue}-odd"
    invalid_options: list[dict[str, Any]] = [{"start_delay": 1}, {"cron_schedule": "* * * * *"}]
    for options in invalid_options:
        planned = world.client.with_start(Account.run, id=name, task_queue=world.queue, **options)
        with pytest.raises(ServiceError) as caught:
            planned.execute_update(Account.deposit, 5)
        assert caught.value.status == "INVALID_ARGUMENT"
