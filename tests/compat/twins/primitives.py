"""Twins of `programs.primitives`."""

from __future__ import annotations

from typing import Any

from hourglass import workflow

from ._corpus import act, start, twin


@twin("FactsAsArguments")
def facts_as_arguments() -> list[str]:
    def draw(name: str) -> str:
        act("echo", f"{name} {workflow.uuid4()}")
        workflow.sleep(0.01)
        act("echo", [workflow.random().randint(0, 10**9), workflow.random().random()])
        return str(workflow.uuid4())

    drawn = workflow.gather(workflow.spawn(draw, "a"), workflow.spawn(draw, "b"))
    act("echo", workflow.now().isoformat())
    act("echo", round(workflow.time(), 6))
    return [*drawn, workflow.info().workflow_id]


@twin("LockedSections")
def locked_sections() -> list[str]:
    lock = workflow.Lock()
    order: list[str] = []

    def section(name: str) -> None:
        with lock:
            start("echo", "in " + name)
            order.append(act("gated", name))
        start("echo", "out " + name)

    workflow.gather(*[workflow.spawn(section, name) for name in "abc"])
    act("echo", "end")
    return order


@twin("SemaphoreLimits")
def semaphore_limits() -> list[str]:
    limit = workflow.Semaphore(2)
    order: list[str] = []

    def work(name: str) -> None:
        with limit:
            order.append(act("gated", name))

    workflow.gather(*[workflow.spawn(work, name) for name in "abcd"])
    return order


@twin("EventGate")
def event_gate() -> None:
    gate = workflow.Event()

    def passer(name: str) -> None:
        gate.wait()
        act("echo", name)

    tasks = [workflow.spawn(passer, name) for name in "abc"]
    act("gated", "key")
    gate.set()
    start("echo", "opened")
    passer("late")
    workflow.gather(*tasks)


@twin("QueueFeed")
def queue_feed() -> list[str]:
    queue: Any = workflow.Queue(2)
    done: list[str] = []

    def consume(name: str) -> None:
        while (item := queue.get()) is not None:
            act("gated", item)
            done.append(f"{name}{item}")
            start("echo", done[-1])

    consumers = [workflow.spawn(consume, name) for name in "xy"]
    for number in range(1, 6):
        queue.put(str(number))
    for _ in consumers:
        queue.put(None)
    workflow.gather(*consumers)
    act("echo", "end")
    return done
