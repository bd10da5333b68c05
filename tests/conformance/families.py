"""Children in trouble, their ids, their queues, their policies; parents that close, continue, or are ended."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from hourglass import RetryPolicy, Worker, workflow
from hourglass.client import IdReusePolicy
from hourglass.errors import (
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    TerminatedError,
    WorkflowAlreadyStartedError,
    WorkflowFailedError,
    WorkflowNotFoundError,
)
from hourglass.workflow import Channel, ChildCancellationType, ParentClosePolicy

from . import acts
from .scenario import scenario
from .world import World, kinds

ENDS = Channel("end", str)


@workflow.defn
def squares(number: int) -> int:
    """Returns at once."""
    return number * number


@workflow.defn
def waits(word: str = "") -> str:
    """Waits for a signal, or until it is cancelled."""
    return f"{word}{ENDS.receive()}"


@workflow.defn
def breaks(text: str) -> None:
    """Fails at once."""
    raise ApplicationError(text, 1, type="Broke")


def ended_by(error: BaseException | None) -> str:
    """A chain of failures in short."""
    names: list[str] = []
    while error is not None:
        names.append(f"{type(error).__name__}({getattr(error, 'message', error)})")
        error = error.__cause__
    return " <- ".join(names)


# --- trouble ----------------------------------------------------------------------------------------------------------


@workflow.defn
def succeeds_at(attempt: int) -> int:
    """Fails until it is run for the how-manieth time."""
    now = workflow.info().attempt
    if now < attempt:
        raise ApplicationError(f"attempt {now}", type="NotYet")
    return now


@workflow.defn
def runs_a_child_again(attempts: int) -> str:
    """Its child is tried again, as often as its policy allows."""
    policy = RetryPolicy(initial_interval=0.05, backoff_coefficient=1.0, maximum_attempts=attempts)
    try:
        return str(succeeds_at.options(retry_policy=policy)(3))
    except ChildWorkflowError as error:
        return f"{int(error.retry_state or 0)} {ended_by(error)}"


@scenario("loose")
def a_child_that_is_tried_until_it_succeeds(world: World) -> None:
    """A parent hears of the last run of a child that was retried, and of that alone."""
    assert world.run(runs_a_child_again, 5) == "3"


@scenario("loose")
def a_child_that_is_tried_too_often(world: World) -> None:
    """When the attempts are used up the parent hears of the last failure."""
    result = world.run(runs_a_child_again, 2)
    assert result.startswith("4 ")
    assert "ApplicationError(attempt 2)" in result


@workflow.defn
def child_takes_too_long(whole: bool) -> str:
    """Its child has a limit, for one run or for all."""
    limit = timedelta(seconds=1)
    child = waits.options(execution_timeout=limit) if whole else waits.options(run_timeout=limit)
    try:
        return child("never")
    except ChildWorkflowError as error:
        return ended_by(error)


@scenario("loose")
def a_child_that_takes_too_long(world: World) -> None:
    """A child's run timeout is the parent's to handle."""
    assert "Child Workflow execution timed out" in world.run(child_takes_too_long, False)


@scenario("loose")
def a_child_whose_runs_take_too_long(world: World) -> None:
    """So is the timeout of its execution."""
    assert "Child Workflow execution timed out" in world.run(child_takes_too_long, True)


@workflow.defn
def waits_for_a_child() -> str:
    """Says how its child ended."""
    try:
        return waits.options(id=f"{workflow.info().workflow_id}/child")("went ")
    except ChildWorkflowError as error:
        return ended_by(error)


def with_child(world: World, parent: Any, *args: Any) -> tuple[Any, Any]:
    """A parent whose child has started, and the child."""
    handle = world.start(parent, *args)
    world.until(handle, "CHILD_WORKFLOW_EXECUTION_STARTED")
    child = world.client.get_workflow_handle(f"{handle.id}/child")
    world.handles.append(child)
    return handle, child


@scenario("loose")
def a_child_that_is_terminated_from_outside(world: World) -> None:
    """A parent hears that its child was terminated."""
    parent, child = with_child(world, waits_for_a_child)
    child.terminate("enough")
    assert "TerminatedError(Terminated)" in parent.result(timeout=60)
    assert isinstance(world.failure(child), TerminatedError)


@scenario("loose")
def a_child_that_is_cancelled_from_outside(world: World) -> None:
    """A parent hears that its child was cancelled, though it did not ask for it."""
    parent, child = with_child(world, waits_for_a_child)
    child.cancel()
    assert "CancelledError" in parent.result(timeout=60)


@scenario("loose")
def a_child_that_is_signalled_from_outside(world: World) -> None:
    """A child is a workflow like any other."""
    parent, child = with_child(world, waits_for_a_child)
    child.signal("end", "well")
    assert parent.result(timeout=60) == "went well"


@workflow.defn
def lets_it_out(depth: int) -> None:
    """Fails with the failure of its child's child."""
    lets_it_out(depth - 1) if depth else breaks("deep down")


@scenario("loose")
def a_failure_through_two_levels(world: World) -> None:
    """A failure that nobody catches arrives with all the children that it passed."""
    error = world.fails(lets_it_out, 1)
    assert isinstance(error, ChildWorkflowError)
    assert ended_by(error).count("ChildWorkflowError") == 2
    assert ended_by(error).endswith("ApplicationError(deep down)")


@workflow.defn
def takes_it_back() -> str:
    """Starts a child and gives it up in the same breath."""
    task = workflow.spawn(lambda: waits.start("never"))
    workflow.sleep(0)
    task.cancel()
    try:
        task.result()
    except (ChildWorkflowError, CancelledError) as error:
        return ended_by(error)
    return "never"


@scenario("loose")
def a_child_that_is_taken_back_before_it_was_sent(world: World) -> None:
    """A child that is given up in the task that asked for it leaves no trace."""
    assert "Cancelled" in world.run(takes_it_back)
    assert not [kind for kind in kinds(world.handles[0].history()) if "CHILD" in kind]


@workflow.defn
def gives_a_child_up() -> str:
    """With ABANDON one does not even ask."""
    child = waits.options(
        id=f"{workflow.info().workflow_id}/child",
        cancellation_type=ChildCancellationType.ABANDON,
        parent_close_policy=ParentClosePolicy.ABANDON,
    ).start("goes on ")
    child.cancel()
    try:
        return child.result()
    except ChildWorkflowError as error:
        return ended_by(error)


@scenario("loose")
def a_child_that_is_given_up(world: World) -> None:
    """Cancelling with ABANDON resolves at once, and the child does not hear of it."""
    parent, child = with_child(world, gives_a_child_up)
    assert "CancelledError" in parent.result(timeout=60)
    child.signal("end", "and on")
    assert child.result(timeout=60) == "goes on and on"


@workflow.defn
def becomes_another(times: int) -> str:
    """Continues as new, then waits."""
    if times:
        workflow.continue_as_new(times - 1)
    return waits.fn("at last ")


@workflow.defn
def has_a_child_that_continues() -> str:
    """Its child goes on in another run."""
    try:
        return becomes_another.options(id=f"{workflow.info().workflow_id}/child")(1)
    except ChildWorkflowError as error:
        return ended_by(error)


@scenario("loose")
def a_child_that_continued_and_was_terminated(world: World) -> None:
    """A parent belongs to all runs of its child."""
    parent, child = with_child(world, has_a_child_that_continues)
    first = child.describe().first_execution_run_id
    world.until_true(lambda: child.describe().run_id != first, "second run")
    child.terminate("enough")
    assert "TerminatedError" in parent.result(timeout=60)


# --- parents ----------------------------------------------------------------------------------------------------------


@workflow.defn
def continues_beside_a_child(policy: int, again: bool = True) -> str:
    """Continues as new while its child runs."""
    if again:
        name = f"{workflow.info().workflow_id}/child"
        waits.options(id=name, parent_close_policy=ParentClosePolicy(policy)).start("left ")
        workflow.continue_as_new(policy, False)
    return "done"


def after_its_parent(world: World, policy: ParentClosePolicy) -> str:
    parent = world.start(continues_beside_a_child, int(policy))
    assert parent.result(timeout=60) == "done"
    child = world.client.get_workflow_handle(f"{parent.id}/child")
    world.handles.append(child)
    if policy is ParentClosePolicy.ABANDON:
        child.signal("end", "alone")
    try:
        return str(child.result(timeout=60))
    except WorkflowFailedError as error:
        return type(error.cause).__name__


@scenario("loose")
def a_parent_that_continues_ends_its_child(world: World) -> None:
    """A parent's continuing as new is its close: children are terminated."""
    assert after_its_parent(world, ParentClosePolicy.TERMINATE) == "TerminatedError"


@scenario("loose")
def a_parent_that_continues_cancels_its_child(world: World) -> None:
    """Or asked to cancel."""
    assert after_its_parent(world, ParentClosePolicy.REQUEST_CANCEL) == "CancelledError"


@scenario("loose")
def a_parent_that_continues_leaves_its_child(world: World) -> None:
    """Or left alone, and the new run hears nothing of them."""
    assert after_its_parent(world, ParentClosePolicy.ABANDON) == "left alone"


@scenario("loose")
def a_parent_that_is_terminated_ends_its_child(world: World) -> None:
    """Whoever ends a parent ends its children."""
    parent, child = with_child(world, waits_for_a_child)
    parent.terminate("enough")
    assert isinstance(world.failure(child), TerminatedError)


@workflow.defn
def leaves_at_once(policy: int) -> str:
    """Closes in the very task that asks for a child."""
    name = f"{workflow.info().workflow_id}/child"
    start = waits.options(id=name, parent_close_policy=ParentClosePolicy(policy)).start
    workflow.spawn(lambda: start("late "))
    workflow.sleep(0)
    return name


@scenario("loose")
def children_of_parents_that_closed_before_they_started(world: World) -> None:
    """A child that is asked for in the task that closes its parent never starts, whatever its policy."""
    names = [world.run(leaves_at_once, int(policy)) for policy in list(ParentClosePolicy)[1:]]
    world.run(has_many_children, 2)  # asked for later, and all done: those before were passed over
    assert not any(is_there(world.client.get_workflow_handle(name)) for name in names)


def is_there(child: Any) -> bool:
    try:
        child.describe()
    except WorkflowNotFoundError:
        return False
    return True


# --- ids, queues, notes -----------------------------------------------------------------------------------------------


@workflow.defn
def uses_an_id_again(policy: int, fail: bool) -> str:
    """Two children of one id, one after the other."""
    name = f"{workflow.info().workflow_id}/child"
    try:
        breaks.options(id=name)("first") if fail else squares.options(id=name)(1)
    except ChildWorkflowError:
        pass
    try:
        return str(squares.options(id=name, id_reuse_policy=IdReusePolicy(policy))(2))
    except WorkflowAlreadyStartedError as error:
        return f"taken {error.workflow_id == name}"


@scenario("loose")
def ids_of_children_that_ended(world: World) -> None:
    """Each policy says whether the id of a child that ended may be used again."""
    found = {
        (policy.name, fail): world.run(uses_an_id_again, int(policy), fail)
        for policy in list(IdReusePolicy)[1:]
        for fail in (False, True)
    }
    assert found == {
        ("ALLOW_DUPLICATE", False): "4",
        ("ALLOW_DUPLICATE", True): "4",
        ("ALLOW_DUPLICATE_FAILED_ONLY", False): "taken True",
        ("ALLOW_DUPLICATE_FAILED_ONLY", True): "4",
        ("REJECT_DUPLICATE", False): "taken True",
        ("REJECT_DUPLICATE", True): "taken True",
        ("TERMINATE_IF_RUNNING", False): "4",
        ("TERMINATE_IF_RUNNING", True): "4",
    }


@workflow.defn
def takes_an_id_over() -> list[str]:
    """Two children of one id at a time: the second ends the first."""
    name = f"{workflow.info().workflow_id}/child"
    first = waits.options(id=name).start("never")
    second = squares.options(id=name, id_reuse_policy=IdReusePolicy.TERMINATE_IF_RUNNING)(3)
    try:
        return [first.result()]
    except ChildWorkflowError as error:
        return [str(second), ended_by(error)]


@scenario("loose")
def an_id_that_is_taken_over(world: World) -> None:
    """With TERMINATE_IF_RUNNING a child takes the place of one that runs."""
    second, first = world.run(takes_an_id_over)
    assert second == "9"
    assert "TerminatedError" in first


@workflow.defn
def is_its_own_child() -> str:
    """Nobody can be his own child."""
    try:
        squares.options(id=workflow.info().workflow_id)(1)
    except WorkflowAlreadyStartedError:
        return "taken"
    return "never"


@scenario("loose")
def a_child_with_its_parents_id(world: World) -> None:
    """The id of the parent is taken."""
    assert world.run(is_its_own_child) == "taken"


@workflow.defn
def tells_its_queue() -> str:
    """The queue on which it runs."""
    return workflow.info().task_queue


@workflow.defn
def has_a_child_elsewhere(queue: str) -> list[str]:
    """Its child runs on another queue, and has an activity there."""
    return [tells_its_queue(), tells_its_queue.options(task_queue=queue)()]


@scenario("loose")
def a_child_on_another_queue(world: World) -> None:
    """A child runs where it is told to; by default where its parent runs."""
    other = f"{world.queue}-other"
    with Worker(world.client, other, modules=[sys.modules[__name__], acts], verify="always"):
        assert world.run(has_a_child_elsewhere, other) == [world.queue, other]


@workflow.defn
def has_a_noted_child() -> str:
    """Its child has a memo, search attributes, a summary and a priority."""
    return waits.options(
        id=f"{workflow.info().workflow_id}/child",
        memo={"colour": "red"},
        search_attributes={"CustomKeywordField": "of a child"},
        static_summary="a child",
        static_details="with details",
        priority_key=2,
    )("noted ")


@scenario("loose")
def a_child_with_notes(world: World) -> None:
    """Memo, search attributes and notes of a child are where anybody finds them."""
    parent, child = with_child(world, has_a_noted_child)
    seen = child.describe()
    assert seen.memo == {"colour": "red"}
    assert seen.search_attributes["CustomKeywordField"] in ("of a child", ["of a child"])
    assert (seen.static_summary, seen.static_details) == ("a child", "with details")
    assert (seen.parent_id, seen.root_id) == (parent.id, parent.id)
    assert seen.parent_run_id == seen.root_run_id == parent.describe().run_id
    child.signal("end", "well")
    assert parent.result(timeout=60) == "noted well"


@scenario("loose")
def children_that_are_pending(world: World) -> None:
    """A description names the children that have not ended."""
    parent, child = with_child(world, waits_for_a_child)
    (pending,) = parent.describe().pending_children
    assert (pending.id, pending.workflow_type) == (child.id, "waits")
    assert pending.run_id == child.describe().run_id
    assert pending.parent_close_policy is ParentClosePolicy.TERMINATE
    child.signal("end", "well")
    parent.result(timeout=60)
    assert parent.describe().pending_children == ()


@workflow.defn
def has_many_children(count: int) -> int:
    """Many children at a time."""
    tasks = [workflow.spawn(squares, number) for number in range(count)]
    return sum(workflow.gather(*tasks))


@scenario("loose")
def many_children(world: World) -> None:
    """Forty children of one run start, end and are heard."""
    assert world.run(has_many_children, 40) == sum(number * number for number in range(40))


# --- others -----------------------------------------------------------------------------------------------------------


@workflow.defn
def speaks_to(name: str, run_id: str, cancel: bool) -> str:
    """Signals or cancels another workflow, or one run of it."""
    other = workflow.get_external_workflow_handle(name, run_id=run_id or None)
    try:
        other.cancel("enough") if cancel else other.signal("end", "by another")
    except ApplicationError as error:
        return f"{error.type}: {error}"
    return "arrived"


@scenario("loose")
def a_closed_workflow_is_signalled(world: World) -> None:
    """A signal to a workflow that has closed does not arrive."""
    closed = world.start(squares, 2)
    assert closed.result(timeout=60) == 4
    assert "ExternalWorkflowExecutionNotFound" in world.run(speaks_to, closed.id, "", False)


@scenario("loose")
def a_closed_workflow_is_cancelled(world: World) -> None:
    """A request to cancel a workflow that has closed is no error."""
    closed = world.start(squares, 2)
    assert closed.result(timeout=60) == 4
    assert world.run(speaks_to, closed.id, "", True) == "arrived"


@scenario("loose")
def one_run_of_a_workflow_is_signalled(world: World) -> None:
    """A signal can be meant for one run."""
    waiting = world.start(waits, "told ")
    world.until(waiting, "WORKFLOW_TASK_COMPLETED")
    assert world.run(speaks_to, waiting.id, waiting.run_id, False) == "arrived"
    assert waiting.result(timeout=60) == "told by another"


@scenario("loose")
def another_run_of_a_workflow_is_signalled(world: World) -> None:
    """A signal to a run that is not there arrives nowhere."""
    waiting = world.start(waits, "told ")
    world.until(waiting, "WORKFLOW_TASK_COMPLETED")
    nobody = "7b1f4e0a-0000-4000-8000-000000000000"
    assert "ExternalWorkflowExecutionNotFound" in world.run(speaks_to, waiting.id, nobody, False)
    waiting.signal("end", "at last")
    assert waiting.result(timeout=60) == "told at last"


@workflow.defn
def speaks_to_itself(cancel: bool) -> str:
    """Nobody reaches himself this way."""
    return speaks_to.fn(workflow.info().workflow_id, "", cancel)


@scenario("loose")
def a_workflow_that_signals_itself(world: World) -> None:
    """A signal to oneself does not arrive."""
    assert "ExternalWorkflowExecutionNotFound" in world.run(speaks_to_itself, False)


@scenario("loose")
def a_workflow_that_cancels_itself(world: World) -> None:
    """Nor does a request to cancel."""
    assert "ExternalWorkflowExecutionNotFound" in world.run(speaks_to_itself, True)


@workflow.defn
def speaks_and_leaves(name: str) -> str:
    """Closes in the very task that sends a signal."""
    other = workflow.get_external_workflow_handle(name)
    workflow.spawn(lambda: other.signal("end", "too late"))
    workflow.sleep(0)
    return "gone"


@scenario("loose")
def a_signal_of_one_who_left(world: World) -> None:
    """What is sent in the task that closes a run is never sent: as on a server."""
    waiting = world.start(waits, "heard ")
    world.until(waiting, "WORKFLOW_TASK_COMPLETED")
    assert world.run(speaks_and_leaves, waiting.id) == "gone"
    waiting.signal("end", "this")
    assert waiting.result(timeout=60) == "heard this"
