"""Twins of `programs.later`."""

from __future__ import annotations

from hourglass import workflow

from ._corpus import MINUTE, act, start, twin


@twin("ChildAndSignal")
def child_and_signal() -> str:
    handle = workflow.start_child_workflow("Kid", "k", id=workflow.info().workflow_id + "-kid")
    side = start("echo", "side")
    signal = workflow.spawn(handle.signal, "say", "x")
    workflow.gather(side, signal, workflow.spawn(workflow.sleep, 0.01))
    return str(act("echo", handle.result()))


@twin("Updates")
class Updates:
    def __init__(self) -> None:
        self.items: list[str] = []

    @workflow.run
    def run(self) -> list[str]:
        workflow.wait_condition(lambda: len(self.items) >= 2)
        workflow.wait_condition(workflow.all_handlers_finished)
        return self.items

    @workflow.update
    def put(self, item: str) -> int:
        self.items.append(act("echo", "put " + item))
        return len(self.items)


@twin("LocalActivities")
def local_activities() -> list[str]:
    def both(name: str) -> str:
        result = workflow.execute_local_activity("echo", name, start_to_close_timeout=MINUTE)
        return str(act("echo", f"after {result}"))

    return workflow.gather(*[workflow.spawn(both, name) for name in "abc"])


@twin("Patches")
class Patches:
    def __init__(self) -> None:
        self.may_go_on = False

    @workflow.run
    def run(self) -> str:
        act("echo", "before")
        workflow.wait_condition(lambda: self.may_go_on)
        return str(act("echo", "new" if workflow.patched("words") else "old"))

    @workflow.signal
    def go_on(self) -> None:
        act("echo", "handler new" if workflow.patched("words") else "handler old")
        self.may_go_on = True


@twin("ContinuesAsNew")
def continues_as_new(rest: int) -> str:
    act("echo", rest)
    if rest:
        workflow.continue_as_new(rest - 1)
    return "end"
