"""Twins of the recorded TypeScript workflows: results, order, messages, patches, local activities, children."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.errors import ActivityError, ApplicationError, ChildWorkflowError
from hourglass.workflow import ParentClosePolicy

from ._corpus import HOUR, act, entering, local, start, start_local

TWINS: dict[str, Any] = {}
twin = entering(TWINS)


@twin("sequence")
def sequence(name: str) -> Any:
    one = act("echo", name)
    workflow.sleep(0.05)
    two = act("echo", {"one": one, "list": [1, 2.5, None, True]})
    act("nothing")
    return two


@twin("parallel")
def parallel(names: list[str]) -> list[str]:
    tasks: list[workflow.Task[str]] = [start("echo", name) for name in names]
    return workflow.gather(*tasks)


@twin("chains")
def chains(names: list[str]) -> list[str]:
    def chain(name: str) -> str:
        return str(act("echo", act("gated", name) + "!"))

    return workflow.gather(*[workflow.spawn(chain, name) for name in names])


@twin("chainsAndTimers")
def chains_and_timers(names: list[str]) -> list[str]:
    def chain(name: str, place: int) -> str:
        first = act("gated", name)
        workflow.sleep(0.01 * (place + 1))
        second = act("echo", first)
        act("echo", second + "?")
        return str(second)

    return workflow.gather(*[workflow.spawn(chain, name, place) for place, name in enumerate(names)])


@twin("race")
def race() -> Any:
    activity = start("gated", "never")
    timer = workflow.spawn(workflow.sleep, 0.1)
    done, _ = workflow.wait([activity, timer], return_when="FIRST_COMPLETED")
    return act("echo", "timer" if timer in done else "activity")


@twin("allSettled")
def all_settled() -> Any:
    tasks = [start("fails", "x"), start("echo", "y"), start("fails", "z")]
    results = workflow.gather(*tasks, return_exceptions=True)
    return act(
        "echo", ["rejected" if isinstance(result, BaseException) else "fulfilled" for result in results]
    )


@twin("timersTogether")
def timers_together() -> int:
    order = []

    def one(ms: int) -> None:
        workflow.sleep(ms / 1000)
        order.append(ms)
        act("echo", ms)

    workflow.gather(*[workflow.spawn(one, ms) for ms in (30, 10, 20)])
    return len(order)


# --- conditions and messages ----------------------------------------------------------------------------------------


def wait_until(condition: Any, seconds: float) -> bool:
    """TypeScript's `condition` with a limit: whether it came true in time."""
    try:
        workflow.wait_condition(condition, timeout=seconds)
    except TimeoutError:
        return False
    return True


@twin("conditionMet")
class ConditionMet:
    def __init__(self) -> None:
        self.ready = False

    @workflow.run
    def run(self) -> Any:
        return act("echo", wait_until(lambda: self.ready, HOUR))

    @workflow.signal
    def go(self) -> None:
        self.ready = True


@twin("conditionTimesOut")
def condition_times_out() -> Any:
    return act("echo", wait_until(lambda: False, 0.1))


@twin("conditionTrueAlready")
def condition_true_already() -> bool:
    met = wait_until(lambda: True, HOUR)
    workflow.sleep(0.02)
    return met


@twin("inbox")
class Inbox:
    def __init__(self) -> None:
        self.seen: list[str] = []

    @workflow.run
    def run(self, until: int) -> Any:
        workflow.wait_condition(lambda: len(self.seen) >= until)
        return act("echo", self.seen)

    @workflow.signal
    def put(self, item: str) -> None:
        self.seen.append(item)


@twin("signalWork")
class SignalWork:
    def __init__(self) -> None:
        self.done: list[str] = []

    @workflow.run
    def run(self) -> list[str]:
        workflow.wait_condition(lambda: len(self.done) >= 3)
        workflow.wait_condition(workflow.all_handlers_finished)
        return self.done

    @workflow.signal
    def put(self, item: str) -> None:
        answer = act("echo", item)
        workflow.sleep(0.01)
        self.done.append(answer)


@twin("updates")
class Updates:
    def __init__(self) -> None:
        self.sum = 0
        self.over = False

    @workflow.run
    def run(self) -> int:
        workflow.wait_condition(lambda: self.over)
        return self.sum

    @workflow.update
    def set(self, number: int) -> int:
        self.sum += number
        return self.sum

    @set.validator
    def check(self, number: int) -> None:
        if number < 0:
            raise ValueError("negative")

    @workflow.query
    def total(self) -> int:
        return self.sum

    @workflow.signal
    def go(self) -> None:
        self.over = True


@twin("updatesWork")
class UpdatesWork:
    def __init__(self) -> None:
        self.log: list[int] = []
        self.over = False

    @workflow.run
    def run(self) -> list[int]:
        workflow.wait_condition(lambda: self.over and workflow.all_handlers_finished())
        return self.log

    @workflow.update
    def set(self, number: int) -> int:
        self.log.append(act("echo", number))
        workflow.sleep(0.02)
        return len(self.log)

    @workflow.signal
    def go(self) -> None:
        self.over = True


@twin("updateFails")
class UpdateFails:
    def __init__(self) -> None:
        self.over = False

    @workflow.run
    def run(self) -> str:
        workflow.wait_condition(lambda: self.over)
        return "over"

    @workflow.update
    def set(self, number: int) -> None:
        act("echo", number)
        raise ApplicationError("no such luck", type="Luck", non_retryable=True)

    @workflow.signal
    def go(self) -> None:
        self.over = True


@twin("ticker")
class Ticker:
    def __init__(self) -> None:
        self.stop = False

    @workflow.run
    def run(self) -> bool:
        ticks = 0
        while not self.stop and ticks < 4:
            if wait_until(lambda: self.stop, 0.03):
                break
            ticks += 1
            act("echo", "tick")
        return self.stop

    @workflow.signal
    def go(self) -> None:
        self.stop = True


@twin("mixed")
class Mixed:
    def __init__(self) -> None:
        self.log: list[str] = []

    @workflow.run
    def run(self) -> int:
        workflow.gather(workflow.spawn(self.side), workflow.spawn(self.timer))
        workflow.wait_condition(lambda: len(self.log) >= 4)
        return len(self.log)

    def side(self) -> None:
        self.log.append(act("gated", "g"))
        act("echo", "after g")

    def timer(self) -> None:
        workflow.sleep(0.2)
        self.log.append("timer")
        act("echo", "after timer")

    @workflow.signal
    def put(self, item: str) -> None:
        self.log.append(act("echo", "signal " + item))


# --- patches, local activities --------------------------------------------------------------------------------------


@twin("patches")
def patches() -> list[str]:
    out = [act("echo", "new" if workflow.patched("first") else "old")]
    workflow.sleep(0.01)
    if workflow.patched("second"):
        out.append(act("echo", "b"))
        workflow.sleep(0.01)
    if workflow.patched("first"):
        out.append("again")
    return out


@twin("deprecated")
def deprecated() -> str:
    workflow.deprecate_patch("first")
    answer = act("echo", "new")
    workflow.sleep(0.01)
    return str(answer)


@twin("locals")
def locals_() -> Any:
    one = local("echo", "a")
    two = local("flaky", "b")
    workflow.sleep(0.01)
    return local("echo", [one, two])


@twin("localsTogether")
def locals_together() -> list[Any]:
    first = workflow.gather(start_local("echo", 1), start_local("echo", 2), start("echo", 3))
    workflow.sleep(0.01)
    return [*first, local("echo", 4)]


@twin("localFails")
def local_fails() -> Any:
    try:
        local("fails", "x")
    except ActivityError:
        return act("echo", "it failed")
    return "fine"


@twin("localBacksOff")
def local_backs_off() -> Any:
    return local("flaky", "slowly", local_retry_threshold=0.1)


def message_of(error: BaseException | None) -> str:
    """Return the message of an application failure, as TypeScript reports it."""
    return error.message if isinstance(error, ApplicationError) else repr(error)


# --- children and others --------------------------------------------------------------------------------------------


def own_id() -> str:
    return workflow.info().workflow_id


@twin("kid")
class Kid:
    @workflow.run
    def run(self, what: str) -> str:
        return "kid " + what


@twin("children")
def children() -> list[Any]:
    one = workflow.execute_child_workflow("kid", "one", id=own_id() + "-one")
    handle = workflow.start_child_workflow("kid", "wait", id=own_id() + "-two")
    handle.signal("put", "hello")
    return [one, handle.result()]


@twin("childrenTogether")
def children_together() -> list[Any]:
    def one(name: str) -> Any:
        return workflow.execute_child_workflow("kid", name, id=own_id() + name)

    return workflow.gather(*[workflow.spawn(one, name) for name in "xyz"])


@twin("childDefaultId")
def child_default_id() -> Any:
    handle = workflow.start_child_workflow("kid", "wait", parent_close_policy=ParentClosePolicy.ABANDON)
    handle.signal("put", "there")
    answer = handle.result()
    workflow.start_child_workflow("kid", "long", parent_close_policy=ParentClosePolicy.TERMINATE)
    return answer


@twin("childFails")
def child_fails() -> Any:
    try:
        workflow.execute_child_workflow("kid", "fail", id=own_id() + "-kid")
    except ChildWorkflowError as error:
        return act("echo", message_of(error.cause))
    return "fine"


@twin("others")
def others(other: str) -> str:
    workflow.get_external_workflow_handle(other).signal("put", "from afar")
    workflow.sleep(0.01)
    try:
        workflow.get_external_workflow_handle("nobody-" + other).signal("put", "x")
    except ApplicationError:
        act("echo", "not there")
    workflow.get_external_workflow_handle(other + "-long").cancel()
    return "told"


# --- the rest -------------------------------------------------------------------------------------------------------


@twin("again")
def again(number: int) -> int:
    act("echo", number)
    workflow.sleep(0.01)
    if number < 2:
        workflow.continue_as_new(number + 1)
    return number


@twin("notes")
def notes() -> str:
    workflow.upsert_search_attributes({"CustomKeywordField": "green"})
    workflow.sleep(0.01)
    workflow.upsert_memo({"colour": "red", "count": 3})
    act("echo", "noted")
    return "ok"


@twin("chance")
def chance() -> str:
    name = str(workflow.uuid4())
    number = workflow.random().random()
    act("echo", name)
    act("echo", number)
    workflow.sleep(0.01)
    return "drawn"


@twin("retried")
def retried() -> Any:
    return act("flaky", "worn")


@twin("exhausted")
def exhausted() -> None:
    try:
        act("fails", "x")
    except ActivityError as error:
        act("echo", message_of(error.cause))
        raise


@twin("timeouts")
def timeouts() -> Any:
    seen = []
    for name, argument, queue in (("gated", "slow", ""), ("echo", "x", "nobody-listens")):
        try:
            act(name, argument, **({"task_queue": queue} if queue else {}))
            seen.append("fine")
        except ActivityError as error:
            seen.append(type(error.cause).__name__)
    return act("echo", len(seen))


@twin("fails")
def fails() -> None:
    act("echo", "before")
    raise ApplicationError("as told", "x", type="Told", non_retryable=True)
