"""Updates with start whose update id is already known: when they return the existing update, and when they do not."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from hourglass import workflow
from hourglass.client import IdConflictPolicy, IdReusePolicy, UpdateStage, WorkflowStatus
from hourglass.errors import WorkflowAlreadyStartedError
from hourglass.workflow import HandlerUnfinishedPolicy

from .scenario import scenario
from .world import LIMIT, World

CONFLICTS = (IdConflictPolicy.USE_EXISTING, IdConflictPolicy.FAIL)
REUSES = (IdReusePolicy.ALLOW_DUPLICATE, IdReusePolicy.REJECT_DUPLICATE)


@workflow.defn
class CountsRequests:
    """With `stays`, it stays open until it is released; with `wait`, its update waits too."""

    def __init__(self) -> None:
        self.free = False
        self.asked = 0

    @workflow.run
    def run(self, stays: bool) -> None:
        workflow.wait_condition(lambda: self.free or not stays)

    @workflow.update(unfinished_policy=HandlerUnfinishedPolicy.ABANDON)
    def count_request(self, wait: bool) -> int:
        self.asked += 1
        workflow.wait_condition(lambda: self.free or not wait)
        return self.asked

    @workflow.signal
    def release_all(self) -> None:
        self.free = True


def planned_start(world: World, number: int, stays: bool, conflict: Any, reuse: Any) -> Any:
    """A start that an update comes with."""
    return world.client.with_start(
        CountsRequests.run,
        stays,
        id=f"{world.queue}-{number}",
        task_queue=world.queue,
        id_conflict_policy=conflict,
        id_reuse_policy=reuse,
    )


@scenario("loose")
def completed_update_returns_its_result_to_later_starts_with_same_id(world: World) -> None:
    for number, (conflict, reuse, stays) in enumerate(product(CONFLICTS, REUSES, (False, True))):
        first, second = (planned_start(world, number, stays, conflict, reuse) for _ in range(2))
        assert first.execute_update(CountsRequests.count_request, False, id="u") == 1
        assert second.execute_update(CountsRequests.count_request, False, id="u") == 1
        assert first.handle.run_id == second.handle.run_id
        world.handles.append(first.handle)
        if stays:
            first.handle.signal(CountsRequests.release_all)
        first.handle.result(timeout=LIMIT)


@scenario("loose")
def update_in_progress_is_shared_by_starts_with_same_id(world: World) -> None:
    for number, (conflict, reuse) in enumerate(product(CONFLICTS, REUSES)):
        first, second = (planned_start(world, number, True, conflict, reuse) for _ in range(2))
        first_update = first.start_update(
            CountsRequests.count_request, True, id="u", wait_for_stage=UpdateStage.ACCEPTED
        )
        second_update = second.start_update(
            CountsRequests.count_request, False, id="u", wait_for_stage=UpdateStage.ACCEPTED
        )
        assert first.handle.run_id == second.handle.run_id
        world.handles.append(first.handle)
        first.handle.signal(CountsRequests.release_all)
        assert (first_update.result(timeout=LIMIT), second_update.result(timeout=LIMIT)) == (1, 1)
        first.handle.result(timeout=LIMIT)


@scenario("loose")
def abandoned_update_is_repeated_by_new_run_if_id_may_be_reused(world: World) -> None:
    for number, (conflict, reuse) in enumerate(product(CONFLICTS, REUSES)):
        first, second = (planned_start(world, number, False, conflict, reuse) for _ in range(2))
        first.start_update(CountsRequests.count_request, True, id="u", wait_for_stage=UpdateStage.ACCEPTED)
        assert first.handle.describe().status == WorkflowStatus.COMPLETED
        world.handles.append(world.client.get_workflow_handle(first.handle.id, run_id=first.handle.run_id))
        if reuse is IdReusePolicy.ALLOW_DUPLICATE:
            assert second.execute_update(CountsRequests.count_request, False, id="u") == 1
            assert first.handle.run_id != second.handle.run_id
        else:
            with pytest.raises(WorkflowAlreadyStartedError):
                second.execute_update(CountsRequests.count_request, False, id="u")
