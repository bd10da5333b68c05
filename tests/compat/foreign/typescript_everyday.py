"""Twins of recorded TypeScript workflows of everyday kinds: races, clean-up, work lists, children, versions, equal timers."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.errors import ActivityError, ApplicationError
from hourglass.workflow import ChildCancellationType, ParentClosePolicy

from ._corpus import HOUR, act, entering, local, start

TWINS: dict[str, Any] = {}
twin = entering(TWINS)


def child_id(suffix: str = "-c") -> str:
    """Return the id of a child, which every program here derives from its own."""
    return workflow.info().workflow_id + suffix


# --- activities, timers, cancellation -----------------------------------------------------------------------------------


@twin("raceCancelTimer")
def race_cancel_timer() -> Any:
    timer = workflow.spawn(workflow.sleep, HOUR)
    quick = start("echo", "quick")
    workflow.wait([quick, timer], return_when="FIRST_COMPLETED")
    timer.cancel()
    workflow.wait([timer])
    return act("echo", "won " + quick.result())


@twin("saga")
def saga() -> str:
    undo: list[str] = []
    try:
        act("echo", "reserve")
        undo.append("unreserve")
        act("echo", "charge")
        undo.append("refund")
        act("fails", "ship")
    except ActivityError as error:
        for step in reversed(undo):
            act("echo", step)
        raise ApplicationError("undone", type="Saga", non_retryable=True) from error
    return "shipped"


@twin("timeoutNested")
def timeout_nested() -> Any:
    out: list[Any] = []
    with workflow.timeout(HOUR):
        try:
            with workflow.timeout(0.08):
                act("beats", "inner")
        except TimeoutError:
            out.append("inner late")
        out.append(act("echo", "outer goes on"))
    try:
        with workflow.timeout(0.06):
            with workflow.shield():
                act("slow", "kept", 150)
            act("echo", "never")
    except TimeoutError:
        out.append("late")
    return act("echo", out)


@twin("cancelTwice")
def cancel_twice() -> list[int]:
    def work(number: int) -> None:
        try:
            act("beats", f"b{number}")
        finally:
            with workflow.shield():
                act("echo", f"clean {number}")

    for number in (1, 2):
        task = workflow.spawn(work, number)
        workflow.sleep(0.08)
        task.cancel()
        workflow.wait([task])
    return [1, 2]


@twin("sleepZero")
def sleep_zero() -> str:
    workflow.sleep(0)
    act("echo", "one")
    workflow.sleep(0)
    workflow.gather(workflow.spawn(workflow.sleep, 0), start("echo", "two"))
    return "ok"


@twin("sameTimers")
def same_timers() -> int:
    def leg(name: str) -> None:
        workflow.sleep(0.05)
        act("echo", name)
        workflow.sleep(0.05)
        act("echo", name + "!")

    def pair() -> None:
        workflow.gather(workflow.spawn(leg, "a"), workflow.spawn(leg, "b"))

    workflow.gather(workflow.spawn(pair), workflow.spawn(leg, "c"))
    return 3


@twin("localChains")
def local_chains() -> list[Any]:
    def chain(name: str) -> Any:
        one = local("echo", name + "1")
        two = local("slow", one + "2", 30)
        return act("echo", two + "3")

    return workflow.gather(*[workflow.spawn(chain, name) for name in "abc"])


@twin("versions")
def versions() -> list[Any]:
    def side() -> None:
        if workflow.patched("side"):
            workflow.sleep(0.01)

    out = []
    for number in range(3):
        out.append(act("echo", f"new {number}" if workflow.patched("loop") else f"old {number}"))
    workflow.deprecate_patch("gone")
    workflow.gather(workflow.spawn(side), start("echo", "other"))
    if workflow.patched("last"):
        local("echo", "l")
    return out


# --- messages -----------------------------------------------------------------------------------------------------------


@twin("worklist")
def worklist() -> list[Any]:
    queue: list[int] = []
    out: list[Any] = []
    over = False

    @workflow.signal
    def put(item: int) -> None:
        queue.append(item)

    @workflow.signal
    def go() -> None:
        nonlocal over
        over = True

    while not (over and not queue):
        workflow.wait_condition(lambda: over or bool(queue))
        while queue:
            out.append(act("echo", queue.pop(0)))
    return out


@twin("lateHandlers")
def late_handlers() -> list[str]:
    got: list[str] = []
    act("echo", "before")

    @workflow.signal
    def put(item: int) -> None:
        got.append(f"put {item}")

    act("echo", "between")

    @workflow.signal
    def go() -> None:
        got.append("go")

    workflow.wait_condition(lambda: "go" in got)
    return got


@twin("updateAtEnd")
class UpdateAtEnd:
    def __init__(self) -> None:
        self.asked = self.ended = False

    @workflow.run
    def run(self) -> None:
        workflow.wait_condition(lambda: self.asked)
        self.ended = True

    @workflow.update
    def set(self) -> str:
        self.asked = True
        workflow.wait_condition(lambda: self.ended)
        return "answered"


# --- children and others ------------------------------------------------------------------------------------------------


@twin("childSignals")
def child_signals() -> Any:
    handle = workflow.start_child_workflow("child2", "signals", id=child_id())
    workflow.gather(workflow.spawn(handle.signal, "put", "a"), start("echo", "meanwhile"))
    handle.signal("put", "b")
    return handle.result()


def cancelled_child(word: str, **options: Any) -> Any:
    """Cancels a child while it runs, and says a word."""
    task = workflow.spawn(lambda: workflow.execute_child_workflow("child2", "long", id=child_id(), **options))
    workflow.sleep(0.15)
    task.cancel()
    workflow.wait([task])
    return act("echo", word)


@twin("childCancels")
def child_cancels() -> Any:
    return cancelled_child("child is gone")


@twin("childTryCancel")
def child_try_cancel() -> Any:
    return cancelled_child(
        "child was told",
        cancellation_type=ChildCancellationType.TRY_CANCEL,
        parent_close_policy=ParentClosePolicy.REQUEST_CANCEL,
    )


@twin("parentCancelled")
def parent_cancelled() -> None:
    try:
        workflow.gather(
            workflow.spawn(lambda: workflow.execute_child_workflow("child2", "long", id=child_id("-1"))),
            start("beats", "b"),
            workflow.spawn(workflow.sleep, HOUR),
        )
    finally:
        with workflow.shield():
            act("echo", "parent cleans")


@twin("externals")
def externals(other: str) -> str:
    handle = workflow.get_external_workflow_handle(other)
    workflow.gather(
        workflow.spawn(handle.signal, "put", 1), workflow.spawn(handle.signal, "put", 2), start("echo", "x")
    )
    try:
        workflow.get_external_workflow_handle("no-such").cancel()
    except ApplicationError:
        act("echo", "no such")
    handle.cancel()
    return "done"
