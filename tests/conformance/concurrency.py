"""Concurrent tasks inside one workflow."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.errors import ActivityError

from . import activities
from .scenario import returns, scenario, scenarios
from .world import World


@returns(16, 3, order="loose")
@workflow.defn
def spawned_functions_can_spawn_functions(depth: int) -> int:
    def grow(level: int) -> int:
        if level == 0:
            return activities.double(1)
        left, right = workflow.spawn(grow, level - 1), workflow.spawn(grow, level - 1)
        return left.result() + right.result()

    return grow(depth)


@workflow.defn
def collects_results_as_completed() -> list[str]:
    tasks = [activities.returns_when_released.start("slow"), activities.returns_when_released.start("quick")]
    return [task.result() for task in workflow.as_completed(tasks)]


def release(world: World, handle: Any, *names: str) -> None:
    """Complete activities one after another; wait for a workflow task between them."""
    for number, name in enumerate(names, 1):
        activities.gate(name).set()
        world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", number + 1)


@scenario()
def as_completed_yields_tasks_in_order_of_completion(world: World) -> None:
    handle = world.start(collects_results_as_completed)
    release(world, handle, "quick", "slow")
    assert handle.result(timeout=60) == ["quick", "slow"]


@workflow.defn
def waits_with_mode(mode: str) -> list[list[str]]:
    first, last = (
        activities.returns_when_released.start("first"),
        activities.returns_when_released.start("last"),
    )
    failing = activities.returns_when_released.start("failing", True)
    names = {first: "first", failing: "failing", last: "last"}
    if mode == "timeout":
        first.result()
        done, pending = workflow.wait(names, timeout=0.05)
    else:
        done, pending = workflow.wait(names, return_when=mode)  # type: ignore[arg-type]
    failing.exception()
    last.result()
    return [[names[task] for task in done], [names[task] for task in pending]]


@scenarios(
    wait_for_all_completed_includes_failures_without_raising=(
        "ALL_COMPLETED",
        [["first", "failing", "last"], []],
    ),
    wait_for_first_completed_returns_after_first_result=("FIRST_COMPLETED", [["first"], ["failing", "last"]]),
    wait_for_first_exception_returns_failed_and_earlier_tasks=(
        "FIRST_EXCEPTION",
        [["first", "failing"], ["last"]],
    ),
    wait_with_timeout_returns_completed_tasks=("timeout", [["first"], ["failing", "last"]]),
)
def result_of_wait(world: World, mode: str) -> Any:
    handle = world.start(waits_with_mode, mode)
    release(world, handle, "first")
    if mode == "timeout":
        world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", 3)
    activities.gate("failing").set()
    world.wait_for_event(handle, "ACTIVITY_TASK_FAILED")
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", 4 if mode == "timeout" else 3)
    activities.gate("last").set()
    return handle.result(timeout=60)


@workflow.defn
def gather_fails() -> None:
    workflow.gather(activities.double.start(1), activities.fails_without_retries.start("no"))


@scenario("loose")
def gather_raises_first_error(world: World) -> None:
    error = world.run_failing(gather_fails)
    assert isinstance(error, ActivityError)
    assert getattr(error.cause, "type", "") == "Broke"


@returns(["int", "ActivityError"], order="loose")
@workflow.defn
def gather_with_return_exceptions_returns_errors() -> list[str]:
    tasks: list[Any] = [activities.double.start(1), activities.fails_without_retries.start("no")]
    results = workflow.gather(*tasks, return_exceptions=True)
    return [type(result).__name__ for result in results]


@returns(
    [
        ["a in", "a out", "b in", "b out"],
        [0, 1, 2],
        [2, 2, 2],
    ],
    order="loose",
)
@workflow.defn
def lock_semaphore_queue_and_event_synchronise_fibers() -> list[Any]:
    lock, room, queue, opened = (
        workflow.Lock(),
        workflow.Semaphore(2),
        workflow.Queue[int](),
        workflow.Event(),
    )
    log: list[str] = []

    def guarded(name: str) -> None:
        with lock:
            log.append(f"{name} in")
            workflow.sleep(0.01)
            log.append(f"{name} out")

    def produce() -> None:
        opened.wait()
        for number in range(3):
            queue.put(number)

    def roomy() -> int:
        with room:
            return activities.double(1)

    workers = [workflow.spawn(guarded, name) for name in ("a", "b")]
    producer = workflow.spawn(produce)
    workflow.gather(*workers)
    opened.set()
    got = [queue.get() for _ in range(3)]
    producer.result()
    totals = workflow.gather(*[workflow.spawn(roomy) for _ in range(3)])
    return [log, got, list(totals)]


@returns("fine")
@workflow.defn
def unawaited_failed_task_does_not_fail_run() -> str:
    def breaks() -> None:
        raise LookupError("nobody sees this")

    workflow.spawn(breaks)
    return activities.record_call("fine")


@returns("timer")
@workflow.defn
def timer_wins_race_and_activity_is_cancelled() -> str:
    timer = workflow.spawn(workflow.sleep, 0.02)
    slow = activities.opens_gate_and_waits_for_go.start("begun")
    both: list[workflow.Task[Any]] = [timer, slow]
    done, _ = workflow.wait(both, return_when="FIRST_COMPLETED")
    slow.cancel()
    return "timer" if done == [timer] else "activity"
