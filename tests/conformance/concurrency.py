"""Several things at once inside one workflow."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.errors import ActivityError

from . import acts
from .scenario import scenario
from .world import World


@workflow.defn
def tree(depth: int) -> int:
    def grow(level: int) -> int:
        if level == 0:
            return acts.double(1)
        left, right = workflow.spawn(grow, level - 1), workflow.spawn(grow, level - 1)
        return left.result() + right.result()

    return grow(depth)


@scenario("loose")
def spawn_tree(world: World) -> None:
    """Functions that spawn functions that call activities."""
    assert world.run(tree, 3) == 16


@workflow.defn
def in_order_of_end() -> list[str]:
    tasks = [acts.released.start("slow"), acts.released.start("quick")]
    return [task.result() for task in workflow.as_completed(tasks)]


def release(world: World, handle: Any, *names: str) -> None:
    """Let activities end one after another, each seen by the workflow before the next."""
    for number, name in enumerate(names, 1):
        acts.gate(name).set()
        world.until(handle, "WORKFLOW_TASK_COMPLETED", number + 1)


@scenario()
def as_completed(world: World) -> None:
    """Tasks come in the order in which they end."""
    handle = world.start(in_order_of_end)
    release(world, handle, "quick", "slow")
    assert handle.result(timeout=60) == ["quick", "slow"]


@workflow.defn
def waits(mode: str) -> list[list[str]]:
    first, last = acts.released.start("first"), acts.released.start("last")
    failing = acts.released.start("failing", True)
    names = {first: "first", failing: "failing", last: "last"}
    if mode == "timeout":
        first.result()
        done, pending = workflow.wait(names, timeout=0.05)
    else:
        done, pending = workflow.wait(names, return_when=mode)  # type: ignore[arg-type]
    failing.exception()
    last.result()
    return [[names[task] for task in done], [names[task] for task in pending]]


def waited(world: World, mode: str) -> Any:
    handle = world.start(waits, mode)
    release(world, handle, "first")
    if mode == "timeout":
        world.until(handle, "WORKFLOW_TASK_COMPLETED", 3)
    acts.gate("failing").set()
    world.until(handle, "ACTIVITY_TASK_FAILED")
    world.until(handle, "WORKFLOW_TASK_COMPLETED", 4 if mode == "timeout" else 3)
    acts.gate("last").set()
    return handle.result(timeout=60)


@scenario()
def wait_all(world: World) -> None:
    """ALL_COMPLETED waits for failures too, and raises none."""
    assert waited(world, "ALL_COMPLETED") == [["first", "failing", "last"], []]


@scenario()
def wait_first(world: World) -> None:
    """FIRST_COMPLETED comes back with the first."""
    assert waited(world, "FIRST_COMPLETED") == [["first"], ["failing", "last"]]


@scenario()
def wait_first_exception(world: World) -> None:
    """FIRST_EXCEPTION comes back with the one that failed and what ended before."""
    assert waited(world, "FIRST_EXCEPTION") == [["first", "failing"], ["last"]]


@scenario()
def wait_with_timeout(world: World) -> None:
    """A timeout brings what is done by then."""
    assert waited(world, "timeout") == [["first"], ["failing", "last"]]


@workflow.defn
def gather_fails() -> None:
    workflow.gather(acts.double.start(1), acts.fails_for_good.start("no"))


@scenario("loose")
def gather_raises_again(world: World) -> None:
    """What one of several raises fails the run."""
    error = world.fails(gather_fails)
    assert isinstance(error, ActivityError)
    assert getattr(error.cause, "type", "") == "Broke"


@workflow.defn
def gather_collects() -> list[str]:
    tasks: list[Any] = [acts.double.start(1), acts.fails_for_good.start("no")]
    found = workflow.gather(*tasks, return_exceptions=True)
    return [type(each).__name__ for each in found]


@scenario("loose")
def gather_returns_exceptions(world: World) -> None:
    """With return_exceptions errors stand among the results."""
    assert world.run(gather_collects) == ["int", "ActivityError"]


@workflow.defn
def synchronised() -> list[Any]:
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
            return acts.double(1)

    workers = [workflow.spawn(guarded, name) for name in ("a", "b")]
    producer = workflow.spawn(produce)
    workflow.gather(*workers)
    opened.set()
    got = [queue.get() for _ in range(3)]
    producer.result()
    totals = workflow.gather(*[workflow.spawn(roomy) for _ in range(3)])
    return [log, got, list(totals)]


@scenario("loose")
def locks_and_queues(world: World) -> None:
    """Lock, semaphore, queue and event hold inside a workflow."""
    assert world.run(synchronised) == [["a in", "a out", "b in", "b out"], [0, 1, 2], [2, 2, 2]]


@workflow.defn
def unlooked_at() -> str:
    def breaks() -> None:
        raise LookupError("nobody sees this")

    workflow.spawn(breaks)
    return acts.note("fine")


@scenario()
def a_task_that_fails_alone(world: World) -> None:
    """A spawned task that fails and is not waited for does not fail the run."""
    assert world.run(unlooked_at) == "fine"


@workflow.defn
def races() -> str:
    timer = workflow.spawn(workflow.sleep, 0.02)
    slow = acts.passes.start("begun")
    both: list[workflow.Task[Any]] = [timer, slow]
    done, _ = workflow.wait(both, return_when="FIRST_COMPLETED")
    slow.cancel()
    return "timer" if done == [timer] else "activity"


@scenario()
def race_of_timer_and_activity(world: World) -> None:
    """The timer wins; the activity's cancellation is requested in the task that ends the run."""
    assert world.run(races) == "timer"
