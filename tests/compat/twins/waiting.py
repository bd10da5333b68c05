"""Twins of `programs.waiting`."""

from __future__ import annotations

from hourglass import workflow
from hourglass.errors import ActivityError

from ._corpus import act, start, twin, wait_for


class Counter:
    def __init__(self) -> None:
        self.count = 0

    @workflow.signal
    def add(self, number: int) -> None:
        self.count += number


@twin("ConditionTimeouts")
class ConditionTimeouts(Counter):
    @workflow.run
    def run(self) -> list[str]:
        seen = []
        for limit in (0.3, 30, 5):
            try:
                workflow.wait_condition(lambda: self.count > 0, timeout=limit)
                seen.append("met")
            except TimeoutError:
                seen.append("timeout")
            act("echo", seen[-1])
        return seen


@twin("ConditionAtOnce")
def condition_at_once() -> None:
    task = workflow.spawn(act, "echo", "task")
    workflow.wait_condition(lambda: True)
    start("echo", "first")
    workflow.wait_condition(lambda: True, timeout=5)
    act("echo", "second")
    workflow.sleep(0.01)
    task.result()


@twin("TwoWaiters")
class TwoWaiters(Counter):
    @workflow.run
    def run(self) -> list[str]:
        seen: list[str] = []

        def consume(name: str) -> None:
            workflow.wait_condition(lambda: self.count > 0)
            self.count -= 1
            seen.append(f"{name}{self.count}")
            act("echo", seen[-1])

        tasks = [workflow.spawn(consume, name) for name in "ab"]
        workflow.wait(tasks, return_when="FIRST_COMPLETED")
        workflow.sleep(0.05)
        return seen


@twin("ConditionChain")
class ConditionChain(Counter):
    @workflow.run
    def run(self) -> list[int]:
        met: list[int] = []

        def link(number: int) -> None:
            workflow.wait_condition(lambda: self.count >= number)
            met.append(number)
            start("echo", number)
            self.count += 1

        workflow.gather(*[workflow.spawn(link, number) for number in (4, 3, 1, 2)])
        act("echo", "end")
        return met


@twin("ConditionAgainstTimer")
class ConditionAgainstTimer(Counter):
    @workflow.run
    def run(self) -> list[str]:
        def wait(name: str, limit: float, wanted: int) -> str:
            try:
                workflow.wait_condition(lambda: self.count >= wanted, timeout=limit)
                act("echo", name + " met")
                return "met"
            except TimeoutError:
                act("echo", name + " timeout")
                return "timeout"

        return list(workflow.gather(workflow.spawn(wait, "a", 1, 1), workflow.spawn(wait, "b", 60, 1)))


@twin("TimerAgainstCondition")
class TimerAgainstCondition(Counter):
    @workflow.run
    def run(self) -> str:
        try:
            workflow.wait_condition(lambda: self.count > 0, timeout=1)
        except TimeoutError:
            act("echo", "timeout")
            return "timeout"
        act("echo", "met")
        return "met"


@twin("WaitForActivity")
def wait_for_activity() -> list[str]:
    seen = [wait_for(start("echo", "in time"), 50)]
    act("echo", "between")
    try:
        wait_for(start("gated", "never"), 0.2)
    except (TimeoutError, ActivityError):
        seen.append("too late")
    act("echo", "end")
    return seen


@twin("WaitForBoth")
def wait_for_both() -> str:
    handle = start("gated", "a")

    def other() -> None:
        act("echo", "other " + handle.result())

    task = workflow.spawn(other)
    try:
        result = str(wait_for(handle, 1))
    except TimeoutError:
        result = "too late"
    act("echo", result)
    task.result()
    return result


@twin("TimeoutBlock")
def timeout_block() -> list[str]:
    seen = []
    with workflow.timeout(60):
        seen.append(act("echo", "one"))
        seen.append(act("echo", "two"))
    try:
        with workflow.timeout(0.3):
            act("gated", "slow")
    except TimeoutError:
        seen.append("too late")
        act("echo", "too late")
    return seen


@twin("TimeoutNested")
def timeout_nested() -> list[str]:
    seen = []
    with workflow.timeout(60):
        try:
            with workflow.timeout(0.2):
                workflow.sleep(30)
        except TimeoutError:
            seen.append("inner")
            act("echo", "inner")
        workflow.sleep(0.05)
        seen.append("outer")
    act("echo", "end")
    return seen
