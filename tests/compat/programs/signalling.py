"""Signals: handlers that act, several in one task, before the start, handlers set while the workflow runs."""

from __future__ import annotations

import asyncio

from temporalio import workflow

from ._corpus import act, program, start


@program("completed 1 | stop | signal note a | signal note b | go | scheduled 6 | signal note c")
class SignalActivities:
    """Handlers run activities while main waits for what they count."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @workflow.run
    async def run(self) -> list[str]:
        await act("echo", "main 0")
        await workflow.wait_condition(lambda: len(self.notes) >= 2)
        await act("echo", "main 1")
        await workflow.wait_condition(lambda: len(self.notes) >= 3)
        await act("echo", "main 2")
        return self.notes

    @workflow.signal
    async def note(self, text: str) -> None:
        self.notes.append(await act("echo", "before " + text))
        await act("echo", "after " + text)


@program("tasks 1 | stop | signal add 1 | signal slow 2 | signal add 3 | signal slow 4 | go")
class SignalBurst:
    """Plain and waiting handlers, four signals in one task."""

    def __init__(self) -> None:
        self.order: list[int] = []

    @workflow.run
    async def run(self) -> list[int]:
        await workflow.wait_condition(lambda: len(self.order) >= 2)
        start("echo", list(self.order))
        await workflow.wait_condition(lambda: len(self.order) >= 4)
        await act("echo", list(self.order))
        return self.order

    @workflow.signal
    def add(self, number: int) -> None:
        self.order.append(number)

    @workflow.signal
    async def slow(self, number: int) -> None:
        await asyncio.sleep(0)
        start("echo", number)
        await asyncio.sleep(0.01)
        self.order.append(number)


@program("held | signal greet a | signal greet b | go")
class SignalBeforeStart:
    """Signals that came before the first task: their handlers run before the body."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @workflow.run
    async def run(self) -> list[str]:
        start("echo", f"main saw {len(self.names)}")
        await workflow.wait_condition(lambda: len(self.names) == 4)
        return self.names

    @workflow.signal
    async def greet(self, name: str) -> None:
        self.names.append(name)
        start("echo", "first " + name)
        self.names.append(await act("echo", "hello " + name))


@program("scheduled 1 | stop | open a | signal poke | go")
class ResultThenSignal:
    """A result and then a signal in one task: the handler still runs first."""

    def __init__(self) -> None:
        self.poked = False

    @workflow.run
    async def run(self) -> bool:
        await act("gated", "a")
        poked = self.poked
        await act("echo", f"main {poked}")
        return poked

    @workflow.signal
    async def poke(self) -> None:
        self.poked = True
        await act("echo", "poked")


@program("tasks 1 | stop | signal word a | signal other 1 | signal word b | go | completed 2 | signal word c")
class HandlerSetLate:
    """A handler set while the workflow runs receives what was kept for it, in order."""

    @workflow.run
    async def run(self) -> list[str]:
        words: list[str] = []

        async def word(text: str) -> None:
            words.append(text)
            await act("echo", "word " + text)

        await asyncio.sleep(0.5)
        start("echo", "before")
        workflow.set_signal_handler("word", word)
        start("echo", f"after {len(words)}")
        await workflow.wait_condition(lambda: len(words) >= 3)
        await act("echo", "end")
        return words


@program("tasks 1 | stop | signal order a | signal order b | go | scheduled 2 | open a b | signal close")
class SignalStartsTasks:
    """Handlers start tasks that outlive them; main gathers them."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[str]] = []
        self.closed = False

    @workflow.run
    async def run(self) -> list[str]:
        await workflow.wait_condition(lambda: self.closed)
        return await asyncio.gather(*self.tasks)

    @workflow.signal
    def order(self, name: str) -> None:
        async def ship() -> str:
            result = await act("gated", name)
            await act("echo", "shipped " + result)
            return str(result)

        self.tasks.append(asyncio.create_task(ship()))

    @workflow.signal
    def close(self) -> None:
        self.closed = True


@program("scheduled 1 | query count | open a | scheduled 2 | query count | query count | signal go_on")
class QueriesBetween:
    """Questions between the steps leave nothing in the history and change no order."""

    def __init__(self) -> None:
        self.steps = 0
        self.may_end = False

    @workflow.run
    async def run(self) -> int:
        await act("gated", "a")
        self.steps += 1
        await act("echo", self.steps)
        await workflow.wait_condition(lambda: self.may_end, timeout=60)
        return self.steps

    @workflow.signal
    def go_on(self) -> None:
        self.may_end = True

    @workflow.query
    def count(self) -> int:
        return self.steps


@program("tasks 1 | signal begin | scheduled 1 | signal finish | tasks 3")
class HandlerUnfinished:
    """Main returns while a handler still waits for its activity."""

    def __init__(self) -> None:
        self.finished = False

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self.finished)
        return "done"

    @workflow.signal(unfinished_policy=workflow.HandlerUnfinishedPolicy.ABANDON)
    async def begin(self) -> None:
        await act("gated", "never")

    @workflow.signal
    def finish(self) -> None:
        self.finished = True


@program("tasks 1 | stop | signal push 1 | signal push 2 | signal push 3 | go | signal push 4")
class SignalInbox:
    """Main drains an inbox and acts on each message, as functions with channels do."""

    def __init__(self) -> None:
        self.inbox: list[int] = []

    @workflow.run
    async def run(self) -> int:
        total = 0
        for _ in range(4):
            await workflow.wait_condition(lambda: bool(self.inbox))
            total += await act("echo", self.inbox.pop(0))
        return total

    @workflow.signal
    def push(self, number: int) -> None:
        self.inbox.append(number)
