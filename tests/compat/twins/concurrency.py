"""Twins of `programs.concurrency`."""

from __future__ import annotations

from typing import Any

from hourglass import workflow

from ._corpus import act, start, twin


@twin("GatherSteps")
def gather_steps() -> list[str]:
    def steps(name: str) -> str:
        first = act("gated", name + "1")
        workflow.sleep(0.01)
        second = act("gated", name + "2")
        return str(first + second)

    return workflow.gather(*[workflow.spawn(steps, name) for name in "abc"])


@twin("NestedTasks")
def nested_tasks() -> None:
    def inner() -> None:
        act("echo", "inner")

    def outer() -> None:
        task = workflow.spawn(inner)
        act("echo", "outer")
        task.result()
        act("echo", "outer again")

    def other() -> None:
        act("echo", "other")

    workflow.gather(workflow.spawn(outer), workflow.spawn(other))
    act("echo", "end")


@twin("SpawnThenGoOn")
def spawn_then_go_on() -> None:
    def twice(name: str) -> None:
        act("echo", name)
        act("echo", name + name)

    first = workflow.spawn(twice, "k")
    one = start("echo", "m1")
    second = workflow.spawn(twice, "l")
    two = start("echo", "m2")
    workflow.sleep(0.01)
    workflow.gather(one, two, first, second)


@twin("TaskThenMain")
def task_then_main() -> str:
    started: list[Any] = []

    def child() -> None:
        act("echo", "A")
        started.append(start("echo", "B"))

    workflow.spawn(child).result()
    act("echo", "C")
    return str(started[0].result())


@twin("GatherDepths")
def gather_depths() -> None:
    def inner(handle: Any) -> Any:
        return workflow.gather(handle)

    def deep() -> None:
        workflow.gather(workflow.spawn(inner, start("gated", "a")))
        act("echo", "deep")

    def flat() -> None:
        act("gated", "b")
        act("echo", "flat")

    workflow.gather(workflow.spawn(deep), workflow.spawn(flat))


@twin("YieldOrder")
def yield_order() -> list[str]:
    order: list[str] = []

    def turns(name: str, count: int) -> None:
        for turn in range(count):
            order.append(f"{name}{turn}")
            start("echo", f"{name}{turn}")
            workflow.sleep(0)

    tasks = [workflow.spawn(turns, name, count) for name, count in (("a", 3), ("b", 1), ("c", 2))]
    workflow.sleep(0)
    order.append("main")
    start("echo", "main")
    workflow.gather(*tasks)
    act("echo", "end")
    return order


@twin("DeepAwait")
def deep_await() -> None:
    def chain(name: str, depth: int) -> str:
        if depth == 0:
            return str(act("gated", name))
        return str(workflow.spawn(chain, name, depth - 1).result())

    def then(name: str, depth: int) -> None:
        act("echo", "after " + chain(name, depth))

    def plain(depth: int) -> None:
        if depth:
            plain(depth - 1)
        else:
            act("echo", "plain")

    workflow.gather(
        workflow.spawn(then, "deep", 5),
        workflow.spawn(then, "shallow", 0),
        workflow.spawn(then, "middle", 2),
        workflow.spawn(plain, 6),
    )


@twin("ManyRounds")
def many_rounds() -> int:
    total = 0
    for turn in range(20):
        total += sum(workflow.gather(*[workflow.spawn(act, "echo", turn * 3 + part) for part in range(3)]))
    return total


@twin("SpawnInLoop")
def spawn_in_loop() -> list[int]:
    def work(number: int) -> int:
        workflow.sleep(0.01 * (number % 2))
        return int(act("echo", number))

    tasks = []
    for number in range(4):
        tasks.append(workflow.spawn(work, number))
        act("echo", f"main {number}")
    return workflow.gather(*tasks)


@twin("DoneTasks")
def done_tasks() -> list[str]:
    first, second, third = (start("gated", name) for name in "abc")
    first.result()
    result = second.result()
    follow = workflow.spawn(act, "echo", "follow")
    again = workflow.gather(first, second)
    last = start("echo", "after " + "".join(again))
    workflow.gather(follow, last, third)
    return [result, *again]
