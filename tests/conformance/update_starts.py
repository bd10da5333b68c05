"""Starting a workflow together with an update: what runs, what has closed, and what the policies say."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import IdConflictPolicy, IdReusePolicy, WorkflowHandle
from hourglass.errors import ServiceError, WorkflowAlreadyStartedError

from .scenario import scenario
from .world import World


@workflow.defn
class Purse:
    """Keeps a balance."""

    def __init__(self) -> None:
        self.balance = 0
        self.closed = False

    @workflow.run
    def run(self) -> int:
        """Until it is closed."""
        workflow.wait_condition(lambda: self.closed)
        return self.balance

    @workflow.update
    def deposit(self, amount: int) -> int:
        """Add to the balance."""
        self.balance += amount
        return self.balance

    @workflow.signal
    def close(self) -> None:
        """End."""
        self.closed = True


def exists(world: World, name: str, *, closed: bool = False) -> WorkflowHandle[int]:
    """A purse of that name."""
    handle = world.client.start_workflow(Purse.run, id=name, task_queue=world.queue)
    if closed:
        handle.signal(Purse.close)
        handle.result(timeout=60)
    return handle


def deposit(
    world: World,
    name: str,
    policy: IdConflictPolicy,
    reuse: IdReusePolicy = IdReusePolicy.ALLOW_DUPLICATE,
    id: str = "once",
) -> tuple[int, str]:
    """The balance after a deposit, and the run that has it."""
    planned = world.client.with_start(
        Purse.run, id=name, task_queue=world.queue, id_conflict_policy=policy, id_reuse_policy=reuse
    )
    balance = planned.execute_update(Purse.deposit, 5, id=id)
    run_id = planned.handle.run_id
    assert run_id
    return balance, run_id


def close(world: World, name: str, balance: int) -> None:
    """Let the purse end."""
    handle = world.client.get_workflow_handle(name, result_type=int)
    handle.signal("close")
    assert handle.result(timeout=60) == balance


@scenario("loose")
def with_an_update_where_nothing_runs(world: World) -> None:
    """Whatever the policy, a run is started; asked for the same update again, it is the same."""
    for policy in (
        IdConflictPolicy.USE_EXISTING,
        IdConflictPolicy.FAIL,
        IdConflictPolicy.TERMINATE_EXISTING,
    ):
        name = f"{world.queue}-absent-{policy.name}"
        first = deposit(world, name, policy)
        assert first[0] == 5
        assert deposit(world, name, policy) == first
        close(world, name, 5)


@scenario("loose")
def with_an_update_where_one_runs(world: World) -> None:
    """It is used, left alone, or ended."""
    name = f"{world.queue}-use"
    running = exists(world, name)
    assert deposit(world, name, IdConflictPolicy.USE_EXISTING) == (5, running.run_id)
    with pytest.raises(WorkflowAlreadyStartedError) as caught:
        deposit(world, name, IdConflictPolicy.FAIL, id="another")
    assert caught.value.run_id == running.run_id
    balance, run_id = deposit(world, name, IdConflictPolicy.TERMINATE_EXISTING, id="another")
    assert balance == 5
    assert run_id != running.run_id
    described = world.client.get_workflow_handle(name, run_id=running.run_id).describe()
    assert described.status.name == "TERMINATED"
    close(world, name, 5)


@scenario("loose")
def with_an_update_where_one_has_closed(world: World) -> None:
    """A new run is started, unless its id must not be used again."""
    name = f"{world.queue}-closed"
    old = exists(world, name, closed=True)
    with pytest.raises(WorkflowAlreadyStartedError):
        deposit(world, name, IdConflictPolicy.USE_EXISTING, IdReusePolicy.REJECT_DUPLICATE)
    balance, run_id = deposit(world, name, IdConflictPolicy.USE_EXISTING)
    assert balance == 5
    assert run_id != old.run_id
    close(world, name, 5)


@scenario("loose")
def with_an_update_and_what_does_not_go_together(world: World) -> None:
    """A delay or a cron schedule is refused."""
    name = f"{world.queue}-odd"
    odds: list[dict[str, Any]] = [{"start_delay": 1}, {"cron_schedule": "* * * * *"}]
    for odd in odds:
        planned = world.client.with_start(Purse.run, id=name, task_queue=world.queue, **odd)
        with pytest.raises(ServiceError) as caught:
            planned.execute_update(Purse.deposit, 5)
        assert caught.value.status == "INVALID_ARGUMENT"
