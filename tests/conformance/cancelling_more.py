"""Cancellation of several things at once, of things that were never sent, and by signals."""

from __future__ import annotations

from typing import Any

from hourglass import workflow
from hourglass.client import WorkflowStatus
from hourglass.errors import ActivityError, Cancelled, CancelledError, ChildWorkflowError, TaskCancelledError
from hourglass.workflow import ActivityCancellationType

from . import acts
from .scenario import scenario
from .world import World, counts, kinds

LIMIT = 30


@workflow.defn
def sleeps_long() -> None:
    """Until it is cancelled."""
    workflow.sleep(1000)


@workflow.defn
def cancels_all() -> list[str]:
    """A timer, a shielded timer, an activity and a child, all cancelled at once."""
    log: list[str] = []

    def timer() -> None:
        try:
            workflow.sleep(3)
            log.append("timer fired")
        except Cancelled:
            log.append("timer cancelled")

    def shielded() -> None:
        with workflow.shield():
            timer()

    def activity() -> None:
        try:
            acts.passes.options(cancellation_type=ActivityCancellationType.TRY_CANCEL)("begun")
        except (ActivityError, Cancelled):
            log.append("activity cancelled")

    def child() -> None:
        try:
            sleeps_long.options(id=f"{workflow.info().workflow_id}/child")()
        except (ChildWorkflowError, Cancelled):
            log.append("child cancelled")

    tasks = [workflow.spawn(each) for each in (timer, shielded, activity, child)]
    workflow.sleep(0.1)
    for task in tasks:
        task.cancel()
    workflow.wait_condition(lambda: len(log) == 4, timeout=60)
    return sorted(log)


@scenario("loose")
def everything_is_cancelled_at_once(world: World) -> None:
    """A timer, an activity and a child that are cancelled together all end so; what is shielded runs to its end."""
    assert world.run(cancels_all) == [
        "activity cancelled",
        "child cancelled",
        "timer cancelled",
        "timer fired",
    ]


@workflow.defn
def takes_everything_back() -> int:
    """Starts things and cancels them before anybody has heard of them."""
    taken = 0
    starts: list[Any] = [
        lambda: workflow.spawn(workflow.sleep, 500),
        lambda: acts.double.start(1),
        lambda: workflow.spawn(acts.double, 1),
        lambda: acts.double.start_local(1),
        lambda: workflow.spawn(acts.double.local, 1),
        lambda: workflow.spawn(sleeps_long.start),
        lambda: workflow.spawn(sleeps_long),
    ]
    for start in starts:
        task = start()
        task.cancel()
        try:
            task.result()
        except (TaskCancelledError, ActivityError, ChildWorkflowError, CancelledError):
            taken += 1
    workflow.sleep(0.01)
    return taken


@scenario()
def nothing_is_sent_of_what_is_taken_back(world: World) -> None:
    """Timers, activities, local ones and children that are cancelled in the task that asked for them are never sent."""
    handle = world.start(takes_everything_back)
    assert handle.result(timeout=LIMIT) == 7
    found = counts(handle.history())
    assert found["TIMER_STARTED"] == 1
    assert not [kind for kind in found if "CHILD" in kind or kind == "ACTIVITY_TASK_SCHEDULED"]


@workflow.defn
class Supervisor:
    """Has a child that a signal cancels."""

    def __init__(self) -> None:
        self.task: workflow.Task[None] | None = None

    @workflow.run
    def run(self, called: bool) -> None:
        """Lets out what becomes of the child."""
        child = sleeps_long.options(id=f"{workflow.info().workflow_id}/child")
        self.task = workflow.spawn(child) if called else child.start()
        self.task.result()

    @workflow.signal
    def cancel_child(self) -> None:
        """Cancel it."""
        assert self.task is not None
        self.task.cancel()


def supervised(world: World, called: bool) -> Any:
    """A parent whose child is cancelled by a signal."""
    handle = world.start(Supervisor.run, called)
    world.until(handle, "CHILD_WORKFLOW_EXECUTION_STARTED")
    world.until(handle, "WORKFLOW_TASK_COMPLETED", 2)
    handle.signal(Supervisor.cancel_child)
    return handle


@scenario("loose")
def a_started_child_is_cancelled_by_a_signal(world: World) -> None:
    """A child that was started and is cancelled ends as cancelled, and its parent fails with that as the cause."""
    error = world.failure(supervised(world, False))
    assert isinstance(error, ChildWorkflowError)
    assert isinstance(error.cause, CancelledError)
    child = world.client.get_workflow_handle(f"{world.handles[0].id}/child")
    assert child.describe().status == WorkflowStatus.CANCELED


@workflow.defn
def cleans_up() -> list[str]:
    """Cancelled, it still runs an activity, a timer and a child."""
    log: list[str] = []
    try:
        workflow.wait_condition(lambda: False)
    except Cancelled:
        log.append(acts.note("refunded"))
        workflow.sleep(0.01)
        log.append(says_so("told"))
    return log


@workflow.defn
def says_so(word: str) -> str:
    """A child that cleans up."""
    return word


@scenario("loose")
def cleaning_up_takes_its_time(world: World) -> None:
    """After a cancellation everything durable works as before: activities, timers and children."""
    handle = world.start(cleans_up)
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    handle.cancel("please")
    assert handle.result(timeout=LIMIT) == ["refunded", "told"]
    assert "CHILD_WORKFLOW_EXECUTION_COMPLETED" in kinds(handle.history())


@workflow.defn
def hears_why() -> list[Any]:
    """Knows that and why it is cancelled."""
    before = workflow.info().cancel_requested
    try:
        workflow.sleep(1000)
    except Cancelled:
        return [before, workflow.info().cancel_requested, workflow.info().cancel_reason]
    return []


@scenario()
def a_cancellation_has_a_reason(world: World) -> None:
    """The reason that was given arrives with the request."""
    handle = world.start(hears_why)
    world.until(handle, "TIMER_STARTED")
    handle.cancel("because I say so")
    assert handle.result(timeout=LIMIT) == [False, True, "because I say so"]


@workflow.defn
def one_of_two() -> str:
    """A signal cancels a timer in the task in which it fires."""
    word = workflow.Channel("word", str)
    timer = workflow.spawn(workflow.sleep, 0.2)
    told = workflow.spawn(word.receive)
    both: list[workflow.Task[Any]] = [timer, told]
    workflow.wait(both, return_when="FIRST_COMPLETED")
    if told.done():
        timer.cancel()
        return "told"
    told.cancel()
    return "time is up"


@scenario("loose")
def a_signal_and_a_timer_in_one_task(world: World) -> None:
    """A signal that comes while nobody works meets the timer that fires after it, in one task: the signal counts."""
    handle = world.start(one_of_two)
    world.until(handle, "TIMER_STARTED")
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    world.stop_worker()
    handle.signal("word", "now")
    if world.engine != "file":  # a file that nobody serves fires no timers
        world.until(handle, "TIMER_FIRED")
    world.start_worker()
    assert handle.result(timeout=LIMIT) == "told"
    world.handles.clear()  # on a file the run may end before its timer fires


@scenario()
def a_run_that_ends_as_cancelled_says_so(world: World) -> None:
    """A run that lets its cancellation out is CANCELED, which its description and its result both say."""
    handle = world.start(sleeps_long)
    world.until(handle, "TIMER_STARTED")
    handle.cancel()
    assert isinstance(world.failure(handle), CancelledError)
    assert handle.describe().status == WorkflowStatus.CANCELED


@scenario()
def a_termination_with_details(world: World) -> None:
    """A run that is terminated tells the reason and the details that were given."""
    handle = world.start(sleeps_long)
    world.until(handle, "TIMER_STARTED")
    handle.terminate("enough is enough", "first", {"second": 2})
    error = world.failure(handle)
    assert (str(error), list(error.details)) == ("enough is enough", ["first", {"second": 2}])
