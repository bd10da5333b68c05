"""Twins of `programs.signalling`."""

from __future__ import annotations

from typing import Any

from hourglass import workflow

from ._corpus import act, start, twin


@twin("SignalActivities")
class SignalActivities:
    def __init__(self) -> None:
        self.notes: list[str] = []

    @workflow.run
    def run(self) -> list[str]:
        act("echo", "main 0")
        workflow.wait_condition(lambda: len(self.notes) >= 2)
        act("echo", "main 1")
        workflow.wait_condition(lambda: len(self.notes) >= 3)
        act("echo", "main 2")
        return self.notes

    @workflow.signal
    def note(self, text: str) -> None:
        self.notes.append(act("echo", "before " + text))
        act("echo", "after " + text)


@twin("SignalBurst")
class SignalBurst:
    def __init__(self) -> None:
        self.order: list[int] = []

    @workflow.run
    def run(self) -> list[int]:
        workflow.wait_condition(lambda: len(self.order) >= 2)
        start("echo", list(self.order))
        workflow.wait_condition(lambda: len(self.order) >= 4)
        act("echo", list(self.order))
        return self.order

    @workflow.signal
    def add(self, number: int) -> None:
        self.order.append(number)

    @workflow.signal
    def slow(self, number: int) -> None:
        workflow.sleep(0)
        start("echo", number)
        workflow.sleep(0.01)
        self.order.append(number)


@twin("SignalBeforeStart")
class SignalBeforeStart:
    def __init__(self) -> None:
        self.names: list[str] = []

    @workflow.run
    def run(self) -> list[str]:
        start("echo", f"main saw {len(self.names)}")
        workflow.wait_condition(lambda: len(self.names) == 4)
        return self.names

    @workflow.signal
    def greet(self, name: str) -> None:
        self.names.append(name)
        start("echo", "first " + name)
        self.names.append(act("echo", "hello " + name))


@twin("ResultThenSignal")
class ResultThenSignal:
    def __init__(self) -> None:
        self.poked = False

    @workflow.run
    def run(self) -> bool:
        act("gated", "a")
        poked = self.poked
        act("echo", f"main {poked}")
        return poked

    @workflow.signal
    def poke(self) -> None:
        self.poked = True
        act("echo", "poked")


@twin("HandlerSetLate")
def handler_set_late() -> list[str]:
    words: list[str] = []
    workflow.sleep(0.5)
    start("echo", "before")

    @workflow.signal
    def word(text: str) -> None:
        words.append(text)
        act("echo", "word " + text)

    start("echo", f"after {len(words)}")
    workflow.wait_condition(lambda: len(words) >= 3)
    act("echo", "end")
    return words


@twin("SignalStartsTasks")
class SignalStartsTasks:
    def __init__(self) -> None:
        self.tasks: list[Any] = []
        self.closed = False

    @workflow.run
    def run(self) -> list[str]:
        workflow.wait_condition(lambda: self.closed)
        return list(workflow.gather(*self.tasks))

    @workflow.signal
    def order(self, name: str) -> None:
        def ship() -> str:
            result = act("gated", name)
            act("echo", "shipped " + result)
            return str(result)

        self.tasks.append(workflow.spawn(ship))

    @workflow.signal
    def close(self) -> None:
        self.closed = True


@twin("QueriesBetween")
class QueriesBetween:
    def __init__(self) -> None:
        self.steps = 0
        self.may_end = False

    @workflow.run
    def run(self) -> int:
        act("gated", "a")
        self.steps += 1
        act("echo", self.steps)
        workflow.wait_condition(lambda: self.may_end, timeout=60)
        return self.steps

    @workflow.signal
    def go_on(self) -> None:
        self.may_end = True

    @workflow.query
    def count(self) -> int:
        return self.steps


@twin("HandlerUnfinished")
class HandlerUnfinished:
    def __init__(self) -> None:
        self.finished = False

    @workflow.run
    def run(self) -> str:
        workflow.wait_condition(lambda: self.finished)
        return "done"

    @workflow.signal
    def begin(self) -> None:
        act("gated", "never")

    @workflow.signal
    def finish(self) -> None:
        self.finished = True


@twin("SignalInbox")
class SignalInbox:
    def __init__(self) -> None:
        self.inbox: list[int] = []

    @workflow.run
    def run(self) -> int:
        total = 0
        for _ in range(4):
            workflow.wait_condition(lambda: bool(self.inbox))
            total += act("echo", self.inbox.pop(0))
        return total

    @workflow.signal
    def push(self, number: int) -> None:
        self.inbox.append(number)
