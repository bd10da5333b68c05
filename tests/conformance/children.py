"""Child workflows and other workflows: results, failures, cancellation, signals, what becomes of them when the parent closes."""

from __future__ import annotations

from datetime import timedelta

from hourglass import workflow
from hourglass.errors import (
    ApplicationError,
    Cancelled,
    CancelledError,
    ChildWorkflowError,
    WorkflowAlreadyStartedError,
    WorkflowFailedError,
)
from hourglass.workflow import ChildCancellationType, ParentClosePolicy

from . import acts
from .scenario import scenario
from .world import World


@workflow.defn
def doubles(number: int) -> int:
    """Returns at once."""
    return number * 2


@workflow.defn
def fails_with(text: str) -> None:
    """Fails at once."""
    raise ApplicationError(text, "detail", type="Sad", non_retryable=True)


@workflow.defn
class Listener:
    """Waits until it is told to end; notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ended = False

    @workflow.run
    def run(self) -> list[str]:
        """Listen."""
        try:
            workflow.wait_condition(lambda: self.ended)
        except Cancelled:
            acts.note("cancelled")
            raise
        return self.heard

    @workflow.signal
    def hear(self, word: str) -> None:
        """Note a word."""
        self.heard.append(word)

    @workflow.signal
    def end(self) -> None:
        """End."""
        self.ended = True


@workflow.defn
def calls_a_child(number: int) -> int:
    """Runs a child by calling it."""
    return doubles(number) + 1


@scenario()
def a_child_is_a_call(world: World) -> None:
    """A workflow called inside a workflow runs as its child and returns."""
    assert world.run(calls_a_child, 4) == 9


@workflow.defn
def calls_children_in_every_way() -> list[int]:
    """By `.start`, by name, by the functions of the module, with options."""
    started = [doubles.start(number) for number in range(3)]
    return [
        *workflow.gather(*started),
        workflow.execute_child_workflow(doubles, 10),
        workflow.execute_child_workflow("doubles", 11, result_type=int),
        workflow.start_child_workflow(doubles, 12, id=f"{workflow.info().workflow_id}/twelve").result(),
        doubles.options(run_timeout=timedelta(minutes=1), memo={"a": 1}, static_summary="thirteen")(13),
    ]


@scenario("loose")
def children_in_every_way(world: World) -> None:
    """All the ways to start a child give its result."""
    assert world.run(calls_children_in_every_way) == [0, 2, 4, 20, 22, 24, 26]


@workflow.defn
def child_that_fails() -> str:
    """A child's failure is raised as a `ChildWorkflowError`, its reason the cause."""
    try:
        fails_with("no luck")
    except ChildWorkflowError as error:
        cause = error.cause
        assert isinstance(cause, ApplicationError)
        return f"{error.workflow_type} {cause.type} {cause} {cause.details}"
    return "never"


@scenario()
def a_failing_child(world: World) -> None:
    """The parent catches its child's failure."""
    assert world.run(child_that_fails) == "fails_with Sad no luck ('detail',)"


@workflow.defn
def lets_a_childs_failure_out() -> None:
    """Fails with its child."""
    fails_with("let out")


@scenario()
def a_childs_failure_that_is_let_out(world: World) -> None:
    """A child's failure that the parent lets out fails the parent, the whole chain of causes within."""
    error = world.fails(lets_a_childs_failure_out)
    assert isinstance(error, ChildWorkflowError)
    assert isinstance(error.cause, ApplicationError)


@workflow.defn
def starts_the_same_twice() -> str:
    """The id of a running child is taken."""
    name = f"{workflow.info().workflow_id}/same"
    first = Listener.run.options(id=name).start()
    try:
        Listener.run.options(id=name).start()
    except WorkflowAlreadyStartedError as error:
        first.signal(Listener.end)
        first.result()
        return f"taken: {error.workflow_id == name}"
    return "never"


@scenario("loose")
def a_childs_id_that_is_taken(world: World) -> None:
    """Starting a second child with the id of one that runs raises."""
    assert world.run(starts_the_same_twice) == "taken: True"


@workflow.defn
def signals_a_child() -> list[str]:
    """Talks to its child."""
    child = Listener.run.start()
    child.signal(Listener.hear, "one")
    child.signal("hear", "two")
    child.signal(Listener.end)
    return child.result()


@scenario("loose")
def a_child_hears_its_parent(world: World) -> None:
    """Signals reach a child in order."""
    assert world.run(signals_a_child) == ["one", "two"]


@workflow.defn
def cancels_a_child(kind: int) -> str:
    """Cancels its child and says what it saw."""
    child = Listener.run.options(cancellation_type=ChildCancellationType(kind)).start()
    child.cancel()
    try:
        child.result()
    except ChildWorkflowError as error:
        return f"error {type(error.cause).__name__}"
    except CancelledError:
        return "cancelled"
    return "never"


@scenario("loose")
def a_child_that_is_cancelled_and_waited_for(world: World) -> None:
    """By default one waits until the child has ended."""
    assert world.run(cancels_a_child, 2) == "error CancelledError"


@scenario("loose")
def a_child_that_is_asked_to_cancel(world: World) -> None:
    """With TRY_CANCEL one does not wait for the child's end."""
    assert world.run(cancels_a_child, 1) == "error CancelledError"


@scenario("loose")
def a_child_whose_cancellation_was_requested(world: World) -> None:
    """With WAIT_CANCELLATION_REQUESTED one waits until the request has arrived."""
    assert world.run(cancels_a_child, 3) == "error CancelledError"


@workflow.defn
def leaves_a_child(policy: int) -> str:
    """Closes while its child runs."""
    child = Listener.run.options(parent_close_policy=ParentClosePolicy(policy)).start()
    return child.id


def left(world: World, policy: ParentClosePolicy) -> object:
    name = world.run(leaves_a_child, int(policy))
    child = world.client.get_workflow_handle(name)
    world.handles.append(child)
    if policy is ParentClosePolicy.ABANDON:
        child.signal("end")
    try:
        return child.result(timeout=60)
    except WorkflowFailedError as error:
        return type(error.cause).__name__


@scenario("loose")
def a_child_of_a_parent_that_closed_is_terminated(world: World) -> None:
    """By default a child ends with its parent."""
    assert left(world, ParentClosePolicy.TERMINATE) == "TerminatedError"


@scenario("loose")
def a_child_of_a_parent_that_closed_is_cancelled(world: World) -> None:
    """With REQUEST_CANCEL the child is asked to end."""
    assert left(world, ParentClosePolicy.REQUEST_CANCEL) == "CancelledError"


@scenario("loose")
def a_child_of_a_parent_that_closed_goes_on(world: World) -> None:
    """With ABANDON the child does not care."""
    assert left(world, ParentClosePolicy.ABANDON) == []


@workflow.defn
def passes_cancellation_on() -> None:
    """Cancelled while it waits for its child."""
    Listener.run()


@scenario("loose")
def a_cancelled_parent_cancels_its_child(world: World) -> None:
    """Cancelling a parent that waits for its child cancels the child, and then the parent."""
    handle = world.start(passes_cancellation_on)
    world.until(handle, "WORKFLOW_TASK_COMPLETED", 2)  # it knows that its child has started
    handle.cancel()
    assert isinstance(world.failure(handle), (CancelledError, ChildWorkflowError))


@workflow.defn
def talks_to(name: str) -> str:
    """Signals another workflow."""
    other = workflow.get_external_workflow_handle(name)
    other.signal(Listener.hear, "hello")
    other.signal("end")
    return "sent"


@scenario("loose")
def another_workflow_is_signalled(world: World) -> None:
    """A workflow signals one that is not its child."""
    listener = world.start(Listener.run)
    world.until(listener, "WORKFLOW_TASK_COMPLETED")
    assert world.run(talks_to, listener.id) == "sent"
    assert listener.result(timeout=60) == ["hello"]


@workflow.defn
def talks_to_nobody(cancel: bool) -> str:
    """Signals, or cancels, a workflow that is not there."""
    other = workflow.get_external_workflow_handle("nobody-of-this-name")
    try:
        other.cancel("no reason") if cancel else other.signal("hear", "hello")
    except ApplicationError as error:
        return f"{error.type}: {error}"
    return "never"


@scenario("loose")
def a_workflow_that_is_not_there_is_signalled(world: World) -> None:
    """Signalling a workflow that does not exist raises."""
    assert "ExternalWorkflowExecutionNotFound" in world.run(talks_to_nobody, False)


@scenario("loose")
def a_workflow_that_is_not_there_is_cancelled(world: World) -> None:
    """Cancelling a workflow that does not exist raises."""
    assert "ExternalWorkflowExecutionNotFound" in world.run(talks_to_nobody, True)


@workflow.defn
def cancels(name: str) -> str:
    """Asks another workflow to cancel."""
    workflow.get_external_workflow_handle(name).cancel("because")
    return "asked"


@scenario("loose")
def another_workflow_is_cancelled(world: World) -> None:
    """A workflow cancels one that is not its child."""
    listener = world.start(Listener.run)
    world.until(listener, "WORKFLOW_TASK_COMPLETED")
    assert world.run(cancels, listener.id) == "asked"
    assert isinstance(world.failure(listener), CancelledError)


@workflow.defn
def grandchild_of(depth: int) -> list[str]:
    """Who the root is, seen from below."""
    if depth:
        return grandchild_of(depth - 1)
    info = workflow.info()
    return [info.root_workflow_id or "", str(info.parent_workflow_id is not None)]


@scenario("loose")
def a_grandchild_knows_its_root(world: World) -> None:
    """Parents and root are told down the line."""
    handle = world.start(grandchild_of, 2)
    assert handle.result(timeout=60) == [handle.id, "True"]


@workflow.defn
def becomes(other: bool, number: int) -> int:
    """Continues as a child's type."""
    if other:
        workflow.continue_as_new(number, workflow=doubles)
    return number


@scenario()
def continuing_as_another_workflow(world: World) -> None:
    """A run may continue as a workflow of another type."""
    assert world.run(becomes, True, 21) == 42


@workflow.defn
def child_continues() -> int:
    """The result of a child is that of its last run."""
    return becomes(True, 5)


@scenario("loose")
def a_child_that_continues_as_new(world: World) -> None:
    """A parent waits for its child along successive runs."""
    assert world.run(child_continues) == 10
