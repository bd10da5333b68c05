"""A start with an update whose id is known already: when it is the same update, whatever the policies say, and when not."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import IdConflictPolicy, IdReusePolicy, UpdateStage, WorkflowStatus
from hourglass.errors import WorkflowAlreadyStartedError
from hourglass.workflow import HandlerUnfinishedPolicy

from .scenario import scenario
from .world import World

LIMIT = 30
CONFLICTS = (IdConflictPolicy.USE_EXISTING, IdConflictPolicy.FAIL)
REUSES = (IdReusePolicy.ALLOW_DUPLICATE, IdReusePolicy.REJECT_DUPLICATE)


@workflow.defn
class Office:
    """Stays open or not; its update waits or not."""

    def __init__(self) -> None:
        self.free = False
        self.asked = 0

    @workflow.run
    def run(self, stays: bool) -> None:
        """Until it is freed, or at once."""
        workflow.wait_condition(lambda: self.free or not stays)

    @workflow.update(unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    def ask(self, wait: bool) -> int:
        """How often it was asked."""
        self.asked += 1
        workflow.wait_condition(lambda: self.free or not wait)
        return self.asked

    @workflow.signal
    def release(self) -> None:
        """Everybody may go."""
        self.free = True


def planned(world: World, number: int, stays: bool, conflict: Any, reuse: Any) -> Any:
    """A start that an update comes with."""
    return world.client.with_start(
        Office.run,
        stays,
        id=f"{world.queue}-{number}",
        task_queue=world.queue,
        id_conflict_policy=conflict,
        id_reuse_policy=reuse,
    )


@scenario("loose")
def a_completed_update_is_the_same_for_ever(world: World) -> None:
    """Asked for with another start, in an open run or a closed one, an update that completed gives its result again."""
    for number, (conflict, reuse, stays) in enumerate(product(CONFLICTS, REUSES, (False, True))):
        first, second = (planned(world, number, stays, conflict, reuse) for _ in range(2))
        assert first.execute_update(Office.ask, False, id="u") == 1
        assert second.execute_update(Office.ask, False, id="u") == 1
        assert first.handle.run_id == second.handle.run_id
        world.handles.append(first.handle)
        if stays:
            first.handle.signal(Office.release)
        first.handle.result(timeout=LIMIT)


@scenario("loose")
def an_update_in_flight_is_the_same(world: World) -> None:
    """Asked for with another start, an update that an open run is still at is waited for by both."""
    for number, (conflict, reuse) in enumerate(product(CONFLICTS, REUSES)):
        first, second = (planned(world, number, True, conflict, reuse) for _ in range(2))
        one = first.start_update(Office.ask, True, id="u", wait_for_stage=UpdateStage.ACCEPTED)
        other = second.start_update(Office.ask, False, id="u", wait_for_stage=UpdateStage.ACCEPTED)
        assert first.handle.run_id == second.handle.run_id
        world.handles.append(first.handle)
        first.handle.signal(Office.release)
        assert (one.result(timeout=LIMIT), other.result(timeout=LIMIT)) == (1, 1)
        first.handle.result(timeout=LIMIT)


@scenario("loose")
def an_update_that_was_abandoned_is_not_the_same(world: World) -> None:
    """An update that its run closed without completing is asked for anew, of a new run, where the id may be used again."""
    for number, (conflict, reuse) in enumerate(product(CONFLICTS, REUSES)):
        first, second = (planned(world, number, False, conflict, reuse) for _ in range(2))
        first.start_update(Office.ask, True, id="u", wait_for_stage=UpdateStage.ACCEPTED)
        assert first.handle.describe().status == WorkflowStatus.COMPLETED
        world.handles.append(world.client.get_workflow_handle(first.handle.id, run_id=first.handle.run_id))
        if reuse is IdReusePolicy.ALLOW_DUPLICATE:
            assert second.execute_update(Office.ask, False, id="u") == 1
            assert first.handle.run_id != second.handle.run_id
        else:
            with pytest.raises(WorkflowAlreadyStartedError):
                second.execute_update(Office.ask, False, id="u")
