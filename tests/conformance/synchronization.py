"""Locks, semaphores and waits with time limits, in the body and in handlers; many concurrent timers."""

from __future__ import annotations

from typing import Any

from hourglass import workflow

from . import activities
from .scenario import returns, scenario
from .update_handlers import BackgroundCall
from .world import LIMIT, World


class CountingGuard:
    """A lock or semaphore that counts who holds it: now, at most, and in all."""

    def __init__(self, places: int) -> None:
        self.guard: Any = workflow.Semaphore(places) if places else workflow.Lock()
        self.inside = 0
        self.most = 0
        self.ever = 0

    def hold(self, stay: float, patience: float) -> None:
        """Acquire, stay and release; return if the time limit passes first."""
        try:
            if patience:
                with workflow.timeout(patience):
                    self.guard.acquire()
            else:
                self.guard.acquire()
        except TimeoutError:
            return
        try:
            self.inside += 1
            self.ever += 1
            self.most = max(self.most, self.inside)
            workflow.sleep(stay) if stay else activities.double(1)
        finally:
            self.inside -= 1
            self.guard.release()


@returns([5, 1], 0, 0, 0, name="lock_admits_one_task_at_a_time", order="loose")
@returns([5, 3], 3, 0, 0, name="semaphore_admits_three_tasks_at_a_time", order="loose")
@returns([1, 1], 0, 0.4, 0.05, name="lock_acquire_timeout_leaves_no_place_in_the_queue", order="loose")
@returns([3, 3], 3, 0.4, 0.05, name="semaphore_acquire_timeout_leaves_no_place_in_the_queue", order="loose")
@workflow.defn
def hold_five_times(places: int, stay: float, patience: float) -> list[int]:
    """Five tasks use the guard. Returns how many held it in all, and how many at once."""
    room = CountingGuard(places)
    workflow.gather(*[workflow.spawn(room.hold, stay, patience) for _ in range(5)])
    return [room.ever, room.most]


@workflow.defn
class HoldsInUpdates:
    @workflow.init
    def __init__(self, places: int) -> None:
        self.room = CountingGuard(places)
        self.over = False

    @workflow.run
    def run(self, places: int) -> list[int]:
        workflow.wait_condition(lambda: self.over)
        return [self.room.ever, self.room.most]

    @workflow.update
    def hold(self, stay: float, patience: float) -> None:
        self.room.hold(stay, patience)

    @workflow.signal
    def finish(self) -> None:
        self.over = True


def run_five_updates(world: World, places: int, stay: float, patience: float) -> Any:
    """Send five concurrent updates; return the counts of the guard."""
    handle = world.start(HoldsInUpdates.run, places)
    calls = [
        BackgroundCall(lambda: handle.execute_update(HoldsInUpdates.hold, stay, patience)) for _ in range(5)
    ]
    assert [call.answer for call in calls] == [None] * 5
    handle.signal(HoldsInUpdates.finish)
    return handle.result(timeout=LIMIT)


@scenario("loose")
def update_handlers_share_a_lock(world: World) -> None:
    assert run_five_updates(world, 0, 0, 0) == [5, 1]


@scenario("loose")
def update_handlers_share_a_semaphore(world: World) -> None:
    ever, most = run_five_updates(world, 3, 0.2, 0)
    assert ever == 5
    assert 2 <= most <= 3
    # Which of the five updates overlap is undefined.
    world.handles.clear()


@scenario("loose")
def update_handler_that_times_out_on_lock_does_not_affect_others(world: World) -> None:
    ever, most = run_five_updates(world, 0, 0.5, 0.05)
    assert most == 1
    assert 1 <= ever < 5
    world.handles.clear()


@workflow.defn
def sleeps_with_summaries() -> int:
    def nap(number: int) -> None:
        workflow.sleep(0.02, summary=f"t{number}")

    def some(first: int, last: int) -> None:
        workflow.gather(*[workflow.spawn(nap, number) for number in range(first, last)])

    def patient() -> None:
        try:
            workflow.wait_condition(lambda: False, timeout=0.02, timeout_summary="condition")
        except TimeoutError:
            return

    workflow.gather(workflow.spawn(some, 0, 3), workflow.spawn(patient), workflow.spawn(workflow.sleep, 0.02))
    workflow.gather(workflow.spawn(some, 10, 12), workflow.spawn(some, 12, 14))
    return 9


@scenario("loose")
def concurrent_timers_keep_their_summaries(world: World) -> None:
    handle = world.start(sleeps_with_summaries)
    assert handle.result(timeout=LIMIT) == 9
    has_summary = [
        event.get("userMetadata", {}).get("summary") is not None
        for event in handle.history().events
        if event["eventType"] == "EVENT_TYPE_TIMER_STARTED"
    ]
    assert sorted(has_summary) == [False] + [True] * 8


@returns([f"task {n}" for n in range(10)], max_cached_workflows=0)
@workflow.defn
def wait_returns_tasks_in_given_order() -> list[str]:
    tasks = [workflow.spawn(lambda n=n: f"task {n}") for n in range(10)]  # type: ignore[misc]
    done, pending = workflow.wait(tasks)
    assert not pending
    return [activities.record_call(task.result()) for task in done]


@returns("TimeoutError", "block", name="timeout_block_around_activity_raises_timeout_error", order="loose")
@returns("TimeoutError", "condition", name="wait_condition_timeout_raises_timeout_error", order="loose")
@workflow.defn
def waits_with_time_limit(kind: str) -> str:
    slow = activities.stops_when_cancelled.start("begun")
    try:
        match kind:
            case "block":
                with workflow.timeout(0.1):
                    slow.result()
            case "wait_for":
                workflow.wait_for(slow, timeout=0.1)
            case _:
                workflow.wait_condition(lambda: slow.done(), timeout=0.1)
    except TimeoutError as error:
        slow.cancel()
        return type(error).__name__
    return "in time"


@workflow.defn
def exceeds_time_limit(kind: str) -> None:
    if kind == "block":
        with workflow.timeout(0.05):
            workflow.sleep(1000)
    workflow.wait_for(workflow.spawn(workflow.sleep, 1000), timeout=0.05)


@scenario()
def uncaught_timeout_of_block_fails_run(world: World) -> None:
    assert world.run_failing(exceeds_time_limit, "block").type == "TimeoutError"


@scenario()
def uncaught_timeout_of_wait_for_fails_run(world: World) -> None:
    assert world.run_failing(exceeds_time_limit, "wait").type == "TimeoutError"
