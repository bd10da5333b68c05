"""Definitions that take whatever no other does: dynamic workflows and activities."""

from __future__ import annotations

from collections.abc import Sequence

from hourglass import activity, workflow
from hourglass.errors import ActivityError, ApplicationError

from .scenario import scenario
from .world import World


@activity.defn
def named(text: str) -> str:
    """Is known by its name."""
    return f"named {text}"


@activity.defn(dynamic=True)
def anything(arguments: Sequence[activity.RawPayload]) -> str:
    """Says what it was called, and with what; one kind of call fails."""
    called = activity.info().activity_type
    if called == "fails":
        raise ApplicationError("asked to", type="Asked", non_retryable=True)
    return f"{called}({', '.join(str(each.decode()) for each in arguments)})"


@workflow.defn
def known() -> str:
    """Is known by its name."""
    return f"known {named('activity')}"


@workflow.defn(dynamic=True)
class Anything:
    """Takes every other type: by its name it decides what to do."""

    @workflow.init
    def __init__(self, arguments: Sequence[workflow.RawPayload]) -> None:
        self.first = arguments[0].decode(int) if arguments else 0
        self.heard: list[str] = []

    @workflow.run
    def run(self, arguments: Sequence[workflow.RawPayload]) -> object:
        """Branches on the type that was asked for."""
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
        return [called, self.first, *(each.decode() for each in arguments)]

    @workflow.dynamic_config
    def config(self) -> workflow.DynamicWorkflowConfig:
        """One of its types fails by an exception that is a bug of all others."""
        if workflow.info().workflow_type == "fails-oddly":
            return workflow.DynamicWorkflowConfig(failure_exceptions=[LookupError])
        return workflow.DynamicWorkflowConfig()

    @workflow.signal
    def tell(self, text: str) -> None:
        """Hears something."""
        self.heard.append(text)


@scenario()
def a_dynamic_workflow(world: World) -> None:
    """Whatever type is asked for, the dynamic workflow takes it, with its arguments, and knows its name."""
    assert world.run("never-heard-of", 3, "x", [1, 2]) == ["never-heard-of", 3, 3, "x", [1, 2]]
    assert world.run("another") == ["another", 0]


@scenario()
def a_name_comes_before_the_dynamic_one(world: World) -> None:
    """What is known by its name is not taken by the dynamic definition."""
    assert world.run(known) == "known named activity"
    assert world.run("known") == "known named activity"


@scenario()
def raw_arguments_travel_on(world: World) -> None:
    """A dynamic workflow gives its arguments on to an activity as they are, and a dynamic activity takes them."""
    assert world.run("forwards", 2, "a") == "any-activity(2, a)"


@scenario()
def a_dynamic_workflow_continues_as_new(world: World) -> None:
    """It goes on as the same type, though no definition is called so."""
    assert world.run("counts-down", 2) == ["counts-down", 0, 0, "rest"]


@scenario()
def a_dynamic_child(world: World) -> None:
    """A child of a type that nobody is called."""
    assert world.run("has-child") == ["as-child", 7, 7]


@scenario()
def handlers_of_a_dynamic_workflow(world: World) -> None:
    """A dynamic class has handlers like any other."""
    handle = world.start("waits")
    world.until(handle, "WORKFLOW_TASK_COMPLETED")
    handle.signal(Anything.tell, "hello")
    assert handle.result(timeout=60) == ["hello"]


@scenario(loud=True)
def a_dynamic_activity_that_fails(world: World) -> None:
    """Its failure names the type that was asked for."""
    assert world.run("fails-inside") == "fails: Asked"


@scenario()
def a_dynamic_workflow_is_configured(world: World) -> None:
    """What fails a run is said for its type alone, when it begins."""
    error = world.failure(world.start("fails-oddly", 4))
    assert isinstance(error, ApplicationError)
    assert (error.type, error.message) == ("LookupError", "no 4")
    assert world.run("another") == ["another", 0]
