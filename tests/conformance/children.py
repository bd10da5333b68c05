"""Child workflows and external workflows: results, failures, cancellation, signals and parent close policies."""

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

from . import activities
from .scenario import returns, scenario, scenarios
from .world import World


@workflow.defn
def doubles(number: int) -> int:
    return number * 2


@workflow.defn
def fails_with_text(text: str) -> None:
    raise ApplicationError(text, "detail", type="Sad", non_retryable=True)


@workflow.defn
class CollectsWords:
    """Collects words until its `end` signal."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ended = False

    @workflow.run
    def run(self) -> list[str]:
        try:
            workflow.wait_condition(lambda: self.ended)
        except Cancelled:
            activities.record_call("cancelled")
            raise
        return self.heard

    @workflow.signal
    def hear(self, word: str) -> None:
        self.heard.append(word)

    @workflow.signal
    def end(self) -> None:
        self.ended = True


@returns(9, 4)
@workflow.defn
def child_workflow_is_called_like_a_function(number: int) -> int:
    return doubles(number) + 1


@returns([0, 2, 4, 20, 22, 24, 26], order="loose")
@workflow.defn
def child_can_be_started_by_reference_name_and_options() -> list[int]:
    started = [doubles.start(number) for number in range(3)]
    return [
        *workflow.gather(*started),
        workflow.execute_child_workflow(doubles, 10),
        workflow.execute_child_workflow("doubles", 11, result_type=int),
        workflow.start_child_workflow(doubles, 12, id=f"{workflow.info().workflow_id}/twelve").result(),
        doubles.options(run_timeout=timedelta(minutes=1), memo={"a": 1}, static_summary="thirteen")(13),
    ]


@returns("fails_with_text Sad no luck ('detail',)")
@workflow.defn
def child_failure_is_raised_with_its_cause() -> str:
    try:
        fails_with_text("no luck")
    except ChildWorkflowError as error:
        cause = error.cause
        assert isinstance(cause, ApplicationError)
        return f"{error.workflow_type} {cause.type} {cause} {cause.details}"
    return "never"


@workflow.defn
def fails_with_its_child() -> None:
    fails_with_text("let out")


@scenario()
def uncaught_child_failure_fails_parent(world: World) -> None:
    error = world.run_failing(fails_with_its_child)
    assert isinstance(error, ChildWorkflowError)
    assert isinstance(error.cause, ApplicationError)


@returns("taken: True", order="loose")
@workflow.defn
def child_start_with_id_in_use_raises() -> str:
    name = f"{workflow.info().workflow_id}/same"
    first = CollectsWords.run.options(id=name).start()
    try:
        CollectsWords.run.options(id=name).start()
    except WorkflowAlreadyStartedError as error:
        first.signal(CollectsWords.end)
        first.result()
        return f"taken: {error.workflow_id == name}"
    return "never"


@returns(["one", "two"], order="loose")
@workflow.defn
def signals_reach_child_in_order() -> list[str]:
    child = CollectsWords.run.start()
    child.signal(CollectsWords.hear, "one")
    child.signal("hear", "two")
    child.signal(CollectsWords.end)
    return child.result()


@returns(
    "error CancelledError", 2, name="wait_cancellation_completed_waits_for_cancelled_child", order="loose"
)
@returns("error CancelledError", 1, name="try_cancel_cancels_child", order="loose")
@returns("error CancelledError", 3, name="wait_cancellation_requested_cancels_child", order="loose")
@workflow.defn
def cancels_child(kind: int) -> str:
    child = CollectsWords.run.options(cancellation_type=ChildCancellationType(kind)).start()
    child.cancel()
    try:
        child.result()
    except ChildWorkflowError as error:
        return f"error {type(error.cause).__name__}"
    except CancelledError:
        return "cancelled"
    return "never"


@workflow.defn
def closes_with_open_child(policy: int) -> str:
    child = CollectsWords.run.options(parent_close_policy=ParentClosePolicy(policy)).start()
    return child.id


@scenarios(
    "loose",
    parent_close_policy_terminate_terminates_child=(ParentClosePolicy.TERMINATE, "TerminatedError"),
    parent_close_policy_request_cancel_cancels_child=(ParentClosePolicy.REQUEST_CANCEL, "CancelledError"),
    parent_close_policy_abandon_leaves_child_running=(ParentClosePolicy.ABANDON, []),
)
def outcome_of_child_after_parent_closed(world: World, policy: ParentClosePolicy) -> object:
    name = world.run(closes_with_open_child, int(policy))
    child = world.client.get_workflow_handle(name)
    world.handles.append(child)
    if policy is ParentClosePolicy.ABANDON:
        child.signal("end")
    try:
        return child.result(timeout=60)
    except WorkflowFailedError as error:
        return type(error.cause).__name__


@workflow.defn
def waits_for_child() -> None:
    CollectsWords.run()


@scenario("loose")
def cancelled_parent_cancels_child_that_it_waits_for(world: World) -> None:
    handle = world.start(waits_for_child)
    world.wait_for_event(handle, "WORKFLOW_TASK_COMPLETED", 2)  # the parent knows that its child has started
    handle.cancel()
    assert isinstance(world.failure(handle), (CancelledError, ChildWorkflowError))


@workflow.defn
def signals_workflow(name: str) -> str:
    external = workflow.get_external_workflow_handle(name)
    external.signal(CollectsWords.hear, "hello")
    external.signal("end")
    return "sent"


@scenario("loose")
def workflow_signals_external_workflow(world: World) -> None:
    listener = world.start_waiting(CollectsWords.run)
    assert world.run(signals_workflow, listener.id) == "sent"
    assert listener.result(timeout=60) == ["hello"]


@workflow.defn
def signals_or_cancels_missing_workflow(cancel: bool) -> str:
    missing = workflow.get_external_workflow_handle("nobody-of-this-name")
    try:
        missing.cancel("no reason") if cancel else missing.signal("hear", "hello")
    except ApplicationError as error:
        return f"{error.type}: {error}"
    return "never"


@scenario("loose")
def signal_to_missing_workflow_raises_not_found(world: World) -> None:
    assert "ExternalWorkflowExecutionNotFound" in world.run(signals_or_cancels_missing_workflow, False)


@scenario("loose")
def cancellation_of_missing_workflow_raises_not_found(world: World) -> None:
    assert "ExternalWorkflowExecutionNotFound" in world.run(signals_or_cancels_missing_workflow, True)


@workflow.defn
def cancels_external_workflow(name: str) -> str:
    workflow.get_external_workflow_handle(name).cancel("because")
    return "asked"


@scenario("loose")
def workflow_cancels_external_workflow(world: World) -> None:
    listener = world.start_waiting(CollectsWords.run)
    assert world.run(cancels_external_workflow, listener.id) == "asked"
    assert isinstance(world.failure(listener), CancelledError)


@workflow.defn
def returns_root_at_depth(depth: int) -> list[str]:
    if depth:
        return returns_root_at_depth(depth - 1)
    info = workflow.info()
    return [info.root_workflow_id or "", str(info.parent_workflow_id is not None)]


@scenario("loose")
def grandchild_knows_root_workflow(world: World) -> None:
    handle = world.start(returns_root_at_depth, 2)
    assert handle.result(timeout=60) == [handle.id, "True"]


@workflow.defn
def continues_as_doubles(as_doubles: bool, number: int) -> int:
    if as_doubles:
        workflow.continue_as_new(number, workflow=doubles)
    return number


@scenario()
def run_can_continue_as_another_workflow_type(world: World) -> None:
    assert world.run(continues_as_doubles, True, 21) == 42


@returns(10, order="loose")
@workflow.defn
def parent_waits_for_last_run_of_continued_child() -> int:
    return continues_as_doubles(True, 5)
