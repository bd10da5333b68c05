"""Dynamic workflows and activities, which take every type that has no definition."""

from __future__ import annotations

from collections.abc import Sequence

from hourglass import activity, workflow
from hourglass.errors import ActivityError, ApplicationError

from .scenario import scenario
from .world import World


@activity.defn
def named_activity(text: str) -> str:
    return f"named {text}"


@activity.defn(dynamic=True)
def dynamic_activity(arguments: Sequence[activity.RawPayload]) -> str:
    called = activity.info().activity_type
    if called == "fails":
        raise ApplicationError("asked to", type="Asked", non_retryable=True)
    return f"{called}({', '.join(str(argument.decode()) for argument in arguments)})"


@workflow.defn
def named_workflow() -> str:
    return f"known {named_activity('activity')}"


@workflow.defn(dynamic=True)
class DynamicWorkflow:
    """Takes every other workflow type; what it does depends on the type."""

    @workflow.init
    def __init__(self, arguments: Sequence[workflow.RawPayload]) -> None:
        self.first = arguments[0].decode(int) if arguments else 0
        self.heard: list[str] = []

    @workflow.run
    def run(self, arguments: Sequence[workflow.RawPayload]) -> object:
        called = workflow.info().workflow_type
        if called == "forwards":
            return workflow.execute_activity("any-activity", *arguments)
        if called == "counts-down" and self.first:
            workflow.continue_as_new(self.first - 1, "rest")
        if called == "has-child":
            return workflow.execute_child_workflow("as-child", 7, id=f"{workflow.info().workflow_id}-child")
        if called == "waits":
            workflow.wait_condition(lambda: bool(self.heard))
            return self.heard
        if called == "fails-oddly":
            raise LookupError(f"no {self.first}")
        if called == "fails-inside":
            try:
                workflow.execute_activity("fails")
            except ActivityError as error:
                return f"{error.activity_type}: {getattr(error.cause, 'type', None)}"
        return [called, self.first, *(argument.decode() for argument in arguments)]

    @workflow.dynamic_config
    def config(self) -> workflow.DynamicWorkflowConfig:
        """Let one of its types fail by an exception that suspends all others."""
        if workflow.info().workflow_type == "fails-oddly":
            return workflow.DynamicWorkflowConfig(failure_exceptions=[LookupError])
        return workflow.DynamicWorkflowConfig()

    @workflow.signal
    def hear(self, text: str) -> None:
        self.heard.append(text)


@scenario()
def dynamic_workflow_takes_unknown_types_with_arguments(world: World) -> None:
    assert world.run("never-heard-of", 3, "x", [1, 2]) == ["never-heard-of", 3, 3, "x", [1, 2]]
    assert world.run("another") == ["another", 0]


@scenario()
def named_definition_takes_precedence_over_dynamic_one(world: World) -> None:
    assert world.run(named_workflow) == "known named activity"
    assert world.run("named_workflow") == "known named activity"


@scenario()
def raw_payloads_can_be_passed_to_dynamic_activity(world: World) -> None:
    assert world.run("forwards", 2, "a") == "any-activity(2, a)"


@scenario()
def dynamic_workflow_continues_as_new_with_same_type(world: World) -> None:
    assert world.run("counts-down", 2) == ["counts-down", 0, 0, "rest"]


@scenario()
def dynamic_workflow_can_be_a_child(world: World) -> None:
    assert world.run("has-child") == ["as-child", 7, 7]


@scenario()
def dynamic_workflow_handles_signals(world: World) -> None:
    handle = world.start_waiting("waits")
    handle.signal(DynamicWorkflow.hear, "hello")
    assert handle.result(timeout=60) == ["hello"]


@scenario(loud=True)
def failed_dynamic_activity_has_requested_type(world: World) -> None:
    assert world.run("fails-inside") == "fails: Asked"


@scenario()
def dynamic_config_sets_failure_exceptions_by_type(world: World) -> None:
    error = world.failure(world.start("fails-oddly", 4))
    assert isinstance(error, ApplicationError)
    assert (error.type, error.message) == ("LookupError", "no 4")
    assert world.run("another") == ["another", 0]
