"""Several things in one workflow task, and the end of the run among them: what is sent, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from hourglass import RetryPolicy, workflow
from hourglass.client import WorkflowHandle
from hourglass.errors import (
    ApplicationError,
    TerminatedError,
    UpdateFailedError,
    WorkflowAlreadyStartedError,
)
from hourglass.workflow import Channel, ChildCancellationType, ParentClosePolicy

from . import acts
from .scenario import scenario
from .world import LIMIT, World, kinds

ENDS = Channel("end", str)
WORDS = Channel("words", str)


@workflow.defn
def stays(word: str = "") -> str:
    """Waits for a signal, or until it is cancelled."""
    return f"{word}{ENDS.receive()}"


@workflow.defn
def listens() -> list[str]:
    """Notes what it hears until it is told to end."""
    heard: list[str] = []
    while not heard or heard[-1] != "end":
        heard.append(WORDS.receive())
    return heard


@workflow.defn
def ends_at_once(word: str = "ended") -> str:
    """Returns at once."""
    return word


@workflow.defn
def has_a_child() -> str:
    """Waits for a child."""
    return ends_at_once()


def child_name() -> str:
    """The id of the one child."""
    return f"{workflow.info().workflow_id}/child"


# --- all at once, and the end ------------------------------------------------------------------------------------------


@workflow.defn
def says_all_and_ends(way: str, other: str) -> str:
    """Asks for one thing of each kind and closes in the same task."""
    if way == "second":
        return "second"
    handle = workflow.get_external_workflow_handle(other)
    child = stays.options(id=child_name(), parent_close_policy=ParentClosePolicy.ABANDON)
    late: list[Any] = [
        workflow.spawn(acts.note, "late"),
        workflow.spawn(workflow.sleep, 60),
        workflow.spawn(child, "late"),
        workflow.spawn(handle.signal, "words", "late"),
        workflow.spawn(handle.cancel),
    ]
    workflow.upsert_memo({"said": "all"})
    workflow.patched("spoken")
    workflow.sleep(0)
    if way == "fail":
        raise ApplicationError("all said", type="Said", non_retryable=True)
    if way == "continue":
        workflow.continue_as_new("second", other)
    return f"{len(late)} things"


def _says_all(world: World, way: str) -> WorkflowHandle[Any]:
    """Drives it; shows that the other heard nothing, and that nothing was called."""
    other = world.start(listens)
    world.until(other, "WORKFLOW_TASK_COMPLETED")
    speaker = world.start(says_all_and_ends, way, other.id)
    if way == "fail":
        assert world.failure(speaker).message == "all said"
    else:
        assert speaker.result(timeout=LIMIT) == ("second" if way == "continue" else "5 things")
    assert world.run(has_a_child) == "ended"  # asked for later, and done: what was before was passed over
    other.signal("words", "end")
    assert other.result(timeout=LIMIT) == ["end"]
    assert acts.place.calls == []
    return speaker


@scenario()
def all_is_said_in_the_last_task(world: World) -> None:
    """What a run asks for in the task in which it completes stands in its history; its memo holds, nothing else is done."""
    assert _says_all(world, "complete").describe().memo == {"said": "all"}


@scenario()
def all_is_said_before_a_failure(world: World) -> None:
    """The same for a run that fails."""
    assert _says_all(world, "fail").describe().memo == {"said": "all"}


@scenario()
def all_is_said_before_a_continuation(world: World) -> None:
    """The same for a run that continues as new; the next has the memo that the first was started with."""
    speaker = _says_all(world, "continue")
    assert world.client.get_workflow_handle(speaker.id).describe().memo == {}


# --- to a child that has started --------------------------------------------------------------------------------------


@workflow.defn
def parts_from_its_child(policy: int, what: str) -> str:
    """Signals or cancels its child in the task in which it closes."""
    child = listens.options(
        id=child_name(),
        parent_close_policy=ParentClosePolicy(policy),
        cancellation_type=ChildCancellationType.TRY_CANCEL,
    ).start()
    WORDS.receive()
    if what == "signal":
        workflow.spawn(child.signal, "words", "farewell")
    else:
        child.cancel()
    workflow.sleep(0)
    return child.id


def _parts(world: World, policy: ParentClosePolicy, what: str) -> WorkflowHandle[Any]:
    parent = world.start(parts_from_its_child, int(policy), what)
    world.until(parent, "CHILD_WORKFLOW_EXECUTION_STARTED")
    parent.signal("words", "go")
    child = world.client.get_workflow_handle(parent.result(timeout=LIMIT))
    assert world.run(has_a_child) == "ended"
    return child


@scenario("loose")
def a_last_signal_to_a_child(world: World) -> None:
    """A signal to a child in the task that closes its parent is not sent; the child goes on if it may."""
    child = _parts(world, ParentClosePolicy.ABANDON, "signal")
    child.signal("words", "end")
    assert child.result(timeout=LIMIT) == ["end"]


@scenario("loose")
def a_last_cancellation_of_a_child(world: World) -> None:
    """Nor is a request to cancel it."""
    child = _parts(world, ParentClosePolicy.ABANDON, "cancel")
    assert "WORKFLOW_EXECUTION_CANCEL_REQUESTED" not in kinds(child.history())
    child.signal("words", "end")
    assert child.result(timeout=LIMIT) == ["end"]


@scenario("loose")
def a_last_cancellation_and_a_policy(world: World) -> None:
    """Where the policy asks the child to cancel it is asked, once."""
    child = _parts(world, ParentClosePolicy.REQUEST_CANCEL, "cancel")
    world.failure(child)
    assert kinds(child.history()).count("WORKFLOW_EXECUTION_CANCEL_REQUESTED") == 1


@scenario("loose")
def a_last_signal_and_a_policy(world: World) -> None:
    """Where it terminates the child that does not hear the signal."""
    child = _parts(world, ParentClosePolicy.TERMINATE, "signal")
    world.failure(child)
    assert "WORKFLOW_EXECUTION_SIGNALED" not in kinds(child.history())


# --- what is pending ----------------------------------------------------------------------------------------------------


@workflow.defn
def leaves_all_behind(way: str) -> str:
    """Closes while an activity, a timer and a child of it are under way."""
    if way == "second":
        return "second"
    child = stays.options(id=child_name()).start()
    work = acts.stops_when_told.options(heartbeat_timeout=5).start("left")
    timer = workflow.spawn(workflow.sleep, 60)
    WORDS.receive()
    if way == "cancel":  # all of it, in the task that closes the run
        timer.cancel()
        work.cancel()
        child.cancel()
        workflow.sleep(0)
        workflow.sleep(0)
    if way == "fail":
        raise ApplicationError("left", type="Left")
    if way == "continue":
        workflow.continue_as_new("second")
    return "left"


def _leaves(world: World, way: str, **options: Any) -> tuple[WorkflowHandle[Any], WorkflowHandle[Any]]:
    run = world.start(leaves_all_behind, way, **options)
    world.until(run, "CHILD_WORKFLOW_EXECUTION_STARTED")
    acts.arrived("left")
    run.signal("words", "go")
    return run, world.client.get_workflow_handle(f"{run.id}/child")


@scenario("loose")
def everything_is_left_behind(world: World) -> None:
    """A run that completes while all kinds of things are under way: its child is terminated, the rest is nobody's."""
    run, child = _leaves(world, "complete")
    assert run.result(timeout=LIMIT) == "left"
    assert isinstance(world.failure(child), TerminatedError)


@scenario("loose")
def everything_is_left_behind_by_a_failure(world: World) -> None:
    """The same for one that fails, and is tried no more."""
    run, child = _leaves(world, "fail", retry_policy=RetryPolicy(maximum_attempts=1))
    assert world.failure(run).type == "Left"
    assert isinstance(world.failure(child), TerminatedError)


@scenario("loose")
def everything_is_left_behind_by_a_continuation(world: World) -> None:
    """The same for one that continues as new."""
    run, child = _leaves(world, "continue")
    assert run.result(timeout=LIMIT) == "second"
    assert isinstance(world.failure(child), TerminatedError)


@scenario("loose")
def everything_is_cancelled_and_left(world: World) -> None:
    """What is cancelled in the last task stands in the history; the child is terminated by its policy."""
    run, child = _leaves(world, "cancel")
    assert run.result(timeout=LIMIT) == "left"
    assert isinstance(world.failure(child), TerminatedError)


# --- two of one name ----------------------------------------------------------------------------------------------------


def _tried(name: str) -> str:
    try:
        return stays.options(id=name)()
    except WorkflowAlreadyStartedError:
        return "taken"


@workflow.defn
def names_two_alike() -> list[str]:
    """Asks for two children of one id in one task."""
    return sorted(workflow.gather(*[workflow.spawn(_tried, child_name()) for _ in range(2)]))


@scenario("loose")
def two_children_of_one_id_in_one_task(world: World) -> None:
    """One gets the id, the other is refused; on a server it may be either."""
    parent = world.start(names_two_alike)
    world.until(parent, "START_CHILD_WORKFLOW_EXECUTION_FAILED")
    world.client.get_workflow_handle(f"{parent.id}/child").signal("end", "done")
    assert parent.result(timeout=LIMIT) == ["done", "taken"]


@workflow.defn
def speaks_and_cancels(name: str) -> str:
    """Sends two signals and a request to cancel to one workflow, in one task."""
    other = workflow.get_external_workflow_handle(name)
    workflow.gather(
        workflow.spawn(other.signal, "words", "one"),
        workflow.spawn(other.signal, "words", "two"),
        workflow.spawn(other.cancel),
    )
    return "said"


@workflow.defn
def listens_to_the_end() -> None:
    """Ends when it is cancelled and has heard two words: a server may bring the request to cancel before them."""
    try:
        workflow.wait_condition(lambda: False)
    finally:
        with workflow.shield():
            WORDS.receive()
            WORDS.receive()


@scenario("loose")
def signals_and_a_cancellation_in_one_task(world: World) -> None:
    """All three arrive, and the other ends as cancelled."""
    other = world.start(listens_to_the_end)
    world.until(other, "WORKFLOW_TASK_COMPLETED")
    assert world.run(speaks_and_cancels, other.id) == "said"
    world.failure(other)
    heard = kinds(other.history())
    assert heard.count("WORKFLOW_EXECUTION_SIGNALED") == 2
    assert heard.count("WORKFLOW_EXECUTION_CANCEL_REQUESTED") == 1


# --- updates ------------------------------------------------------------------------------------------------------------


@workflow.defn
class Desk:
    """Closes when it was asked, with the update still at work or done."""

    def __init__(self) -> None:
        self.asked = False

    @workflow.run
    def run(self) -> str:
        """Wait to be asked."""
        workflow.wait_condition(lambda: self.asked)
        return "closed"

    @workflow.update
    def ask(self, work: str) -> str:
        """Answer at once, or begin to work."""
        self.asked = True
        if work:
            acts.note(work)
        return "answered"


@scenario("loose")
def an_update_is_answered_in_the_last_task(world: World) -> None:
    """An update that is answered in the task that closes the run is answered."""
    desk = world.start(Desk)
    world.until(desk, "WORKFLOW_TASK_COMPLETED")
    assert desk.execute_update("ask", "") == "answered"
    assert desk.result(timeout=LIMIT) == "closed"


@scenario("loose")
def an_update_is_at_work_when_its_run_closes(world: World) -> None:
    """One that has asked for an activity in that task is abandoned: its caller hears of it, and the activity never runs."""
    desk = world.start(Desk)
    world.until(desk, "WORKFLOW_TASK_COMPLETED")
    with pytest.raises(UpdateFailedError):
        desk.execute_update("ask", "work")
    assert desk.result(timeout=LIMIT) == "closed"
    assert world.run(has_a_child) == "ended"
    assert acts.place.calls == []
