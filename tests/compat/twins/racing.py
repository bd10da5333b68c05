"""Twins of `programs.racing`."""

from __future__ import annotations

from hourglass import workflow
from hourglass.errors import ActivityError

from ._corpus import act, start, twin


@twin("AsCompleted")
def as_completed() -> list[str]:
    seen = []
    for task in workflow.as_completed([start("gated", name) for name in "abc"]):
        seen.append(act("echo", task.result() + "!"))
    return seen


@twin("AsCompletedTasks")
def as_completed_tasks() -> list[str]:
    def work(name: str) -> str:
        result = act("gated", name)
        start("echo", "from " + name)
        return str(result)

    seen = []
    for task in workflow.as_completed([workflow.spawn(work, name) for name in "abc"]):
        seen.append(task.result())
        start("echo", "saw " + seen[-1])
    workflow.sleep(0.01)
    return seen


@twin("WaitFirst")
def wait_first() -> int:
    def work(name: str) -> str:
        result = act("gated", name)
        start("echo", "from " + name)
        return str(result)

    todo = [workflow.spawn(work, name) for name in "abcd"]
    rounds = 0
    while todo:
        done, todo = workflow.wait(todo, return_when="FIRST_COMPLETED")
        rounds += 1
        act("echo", f"{rounds}: " + ",".join(task.result() for task in done))
    return rounds


@twin("WaitFirstException")
def wait_first_exception() -> list[bool]:
    def fails_after(name: str) -> None:
        act("gated", name)
        act("echo", "about to fail")
        act("fails", name)

    tasks = [start("gated", "a"), workflow.spawn(fails_after, "b"), start("gated", "c")]
    _, pending = workflow.wait(tasks, return_when="FIRST_EXCEPTION")
    act("echo", f"{len(pending)} left")
    workflow.wait(pending)
    return [task.exception() is not None for task in tasks]


@twin("WaitTimesOut")
def wait_times_out() -> list[int]:
    def work(name: str) -> None:
        act("gated", name)
        act("echo", "done " + name)

    tasks = [workflow.spawn(work, name) for name in "ab"]
    done, pending = workflow.wait(tasks, timeout=1)
    start("echo", f"{len(done)} {len(pending)}")
    for task in pending:
        task.cancel()
    workflow.wait(pending)
    act("echo", "end")
    return [len(done), len(pending)]


@twin("WaitInTime")
def wait_in_time() -> int:
    done, pending = workflow.wait([start("gated", name) for name in "ab"], timeout=60)
    act("echo", len(done))
    return len(pending)


def _activity_and_timer() -> None:
    def activity() -> None:
        act("gated", "a")
        act("echo", "after activity")

    def timer() -> None:
        workflow.sleep(1)
        act("echo", "after timer")

    workflow.gather(workflow.spawn(activity), workflow.spawn(timer))


@twin("ActivityAgainstTimer")
def activity_against_timer() -> None:
    _activity_and_timer()


@twin("TimerAgainstActivity")
def timer_against_activity() -> None:
    _activity_and_timer()


@twin("TimersTogether")
def timers_together() -> list[str]:
    order: list[str] = []

    def nap(name: str, seconds: float) -> None:
        workflow.sleep(seconds)
        order.append(name)
        start("echo", name)

    naps = [workflow.spawn(nap, name, seconds) for name, seconds in (("a", 0.9), ("b", 0.3), ("c", 0.6))]
    workflow.gather(*naps, workflow.spawn(workflow.sleep, 0.5))
    act("echo", "end")
    return order


@twin("RaceWithTimer")
def race_with_timer() -> list[str]:
    def race(name: str, seconds: float) -> str:
        activity = start("gated", name)
        timer = workflow.spawn(workflow.sleep, seconds)
        workflow.wait([activity, timer], return_when="FIRST_COMPLETED")
        if activity.done():
            timer.cancel()
            return str(activity.result())
        activity.cancel()
        try:
            activity.result()
        except ActivityError:
            act("echo", "gave up")
        return "too slow"

    first = race("fast", 60)
    act("echo", first)
    return [first, race("slow", 0.3)]


@twin("FailingGather")
def failing_gather() -> None:
    def work(activity: str, name: str) -> None:
        act(activity, name)
        act("echo", "after " + name)

    tasks = [workflow.spawn(work, *each) for each in (("fails", "a"), ("echo", "b"), ("gated", "c"))]
    try:
        workflow.gather(*tasks)
    except ActivityError:
        act("echo", "handled")
    tasks[2].result()
    act("echo", "end")


@twin("GatherExceptions")
def gather_exceptions() -> list[str]:
    def cancels_itself() -> None:
        raise workflow.Cancelled

    cancelling = workflow.spawn(cancels_itself)  # as there: the coroutines become tasks after it
    outcomes = workflow.gather(
        start("gated", "x"),
        workflow.spawn(act, "fails", "y"),
        cancelling,
        workflow.spawn(act, "gated", "y"),
        return_exceptions=True,
    )
    names = [outcome if isinstance(outcome, str) else "failed" for outcome in outcomes]
    act("echo", names)
    return names
