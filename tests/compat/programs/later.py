"""What goes beyond the first release: children, updates, local activities, patches, continuing as new."""

from __future__ import annotations

import asyncio

from temporalio import workflow

from ._corpus import MINUTE, act, program, start


@workflow.defn
class Kid:
    """The child of `ChildAndSignal`: waits for a word."""

    def __init__(self) -> None:
        self.word = ""

    @workflow.run
    async def run(self, name: str) -> str:
        await workflow.wait_condition(lambda: bool(self.word))
        return name + self.word

    @workflow.signal
    def say(self, word: str) -> None:
        self.word = word


@program(later=True)
class ChildAndSignal:
    """A child started, signalled and waited for, beside other steps."""

    @workflow.run
    async def run(self) -> str:
        handle = await workflow.start_child_workflow("Kid", "k", id=workflow.info().workflow_id + "-kid")
        side = start("echo", "side")
        signal = asyncio.create_task(handle.signal("say", "x"))
        await asyncio.gather(side, signal, asyncio.sleep(0.01))
        return str(await act("echo", await handle))


@program("tasks 1 | stop | update put a | update put b | go | completed 2", later=True)
class Updates:
    """Two updates in one task whose handlers act."""

    def __init__(self) -> None:
        self.items: list[str] = []

    @workflow.run
    async def run(self) -> list[str]:
        await workflow.wait_condition(lambda: len(self.items) >= 2)
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.items

    @workflow.update
    async def put(self, item: str) -> int:
        self.items.append(await act("echo", "put " + item))
        return len(self.items)


@program(later=True)
class LocalActivities:
    """Local activities in parallel, each with a follow-up."""

    @workflow.run
    async def run(self) -> list[str]:
        async def both(name: str) -> str:
            result = await workflow.execute_local_activity("echo", name, start_to_close_timeout=MINUTE)
            return str(await act("echo", f"after {result}"))

        return list(await asyncio.gather(both("a"), both("b"), both("c")))


@program("completed 1 | signal go_on", later=True)
class Patches:
    """The same patch asked for in a handler and in the body."""

    def __init__(self) -> None:
        self.may_go_on = False

    @workflow.run
    async def run(self) -> str:
        await act("echo", "before")
        await workflow.wait_condition(lambda: self.may_go_on)
        return str(await act("echo", "new" if workflow.patched("words") else "old"))

    @workflow.signal
    async def go_on(self) -> None:
        await act("echo", "handler new" if workflow.patched("words") else "handler old")
        self.may_go_on = True


@program("", 1, later=True)
class ContinuesAsNew:
    """One more run, then the end; the history is the first run's."""

    @workflow.run
    async def run(self, rest: int) -> str:
        await act("echo", rest)
        if rest:
            workflow.continue_as_new(rest - 1)
        return "end"
