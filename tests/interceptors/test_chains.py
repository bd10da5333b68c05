"""How chains are made, what they may change, and what they cost where there is none. In test environments."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

import msgspec
import pytest

from hourglass import activity, workflow
from hourglass._evaluator.context import current_run
from hourglass.client import Client
from hourglass.errors import ApplicationError, ReadOnlyError, UsageError, WorkflowFailedError, WorkflowParked
from hourglass.interceptors import (
    ActivityInboundInterceptor,
    ClientOutboundInterceptor,
    ContinueAsNewInput,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    Interceptor,
    SleepInput,
    StartActivityInput,
    StartWorkflowInput,
    WorkflowInboundInterceptor,
    WorkflowOutboundInterceptor,
)
from hourglass.testing import Environment
from hourglass.worker import Worker


@activity.defn
def double(number: int) -> int:
    return 2 * number


@activity.defn
def timeout_of_this() -> str:
    return str(activity.info().start_to_close_timeout)


@workflow.defn
def doubles(number: int) -> int:
    return double(number)


class Named(Interceptor):
    """Writes its name down before and after what it sees."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log

    def note(self, what: str) -> None:
        if not workflow.is_catching_up():
            self.log.append(what)

    def intercept_client(self, next: ClientOutboundInterceptor) -> ClientOutboundInterceptor:
        named = self

        class Outbound(ClientOutboundInterceptor):
            def start_workflow(self, input: StartWorkflowInput) -> Any:
                named.log.append(f"start {named.name}")
                return super().start_workflow(input)

        return Outbound(next)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        named = self

        class Inbound(ActivityInboundInterceptor):
            def execute_activity(self, input: ExecuteActivityInput) -> Any:
                named.log.append(f"activity {named.name}")
                return super().execute_activity(input)

        return Inbound(next)

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        named = self

        class Outbound(WorkflowOutboundInterceptor):
            def start_activity(self, input: StartActivityInput) -> Any:
                named.note(f"out {named.name}")
                return super().start_activity(input)

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

            def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                named.note(f"in {named.name}")
                return super().execute_workflow(input)

        return Inbound(next)


def test_first_interceptor_is_the_outermost() -> None:
    """Inbound calls, and outbound calls of a client, reach the first of the list first."""
    log: list[str] = []
    with Environment(interceptors=[Named("a", log), Named("b", log)]) as env:
        assert env.execute_workflow(doubles, 2) == 4
    assert log == [
        "start a",
        "start b",
        "in a",
        "in b",
        "out b",
        "out a",
        "activity a",
        "activity b",
    ]


def test_client_interceptors_precede_those_of_the_worker() -> None:
    """Interceptors of a client also apply to its workers."""
    log: list[str] = []
    with (
        Client.connect("local:", interceptors=[Named("client", log)]) as client,
        Worker(client, workflows=[doubles], activities=[double], interceptors=[Named("worker", log)]),
    ):
        assert client.execute_workflow(doubles, 3) == 6
    assert log[:3] == ["start client", "in client", "in worker"]
    assert log[-2:] == ["activity client", "activity worker"]


class Changing(Interceptor):
    """Changes what passes: arguments, settings, results, types."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        class Inbound(ActivityInboundInterceptor):
            def execute_activity(self, input: ExecuteActivityInput) -> Any:
                if input.activity == "double":
                    return (
                        super().execute_activity(dataclasses.replace(input, args=[input.args[0] + 1])) + 1000
                    )
                return super().execute_activity(input)

        return Inbound(next)

    def intercept_client(self, next: ClientOutboundInterceptor) -> ClientOutboundInterceptor:
        class Outbound(ClientOutboundInterceptor):
            def start_workflow(self, input: StartWorkflowInput) -> Any:
                input.id = f"tenant-1/{input.id}"
                input.options["memo"] = {"by": "interceptor"}
                return super().start_workflow(input)

        return Outbound(next)

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        class Outbound(WorkflowOutboundInterceptor):
            def start_activity(self, input: StartActivityInput) -> Any:
                input.settings = msgspec.structs.replace(input.settings, start_to_close_timeout=7.0)
                return super().start_activity(input)

            def sleep(self, input: SleepInput) -> None:
                super().sleep(dataclasses.replace(input, duration=input.duration / 2))

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

            def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
                try:
                    return super().execute_workflow(input)
                except LookupError as error:
                    raise ApplicationError(f"looked for {error}", type="Lookup") from error

        return Inbound(next)


@workflow.defn
def asks_for_the_timeout() -> str:
    workflow.sleep(60)
    return timeout_of_this()


@workflow.defn
def looks_up() -> None:
    raise KeyError("k")


def test_interceptors_may_change_arguments_and_results() -> None:
    """Arguments and results of activities, their timeouts, how long a sleep is, a start's id and options, what fails a run."""
    with Environment(interceptors=[Changing()]) as env:
        handle = env.start_workflow(doubles, 1, id="x")
        assert handle.result() == 1004
        assert (handle.id, handle.describe().memo) == ("tenant-1/x", {"by": "interceptor"})
        before = env.now()
        assert env.execute_workflow(asks_for_the_timeout) == "0:00:07"
        assert (env.now() - before).total_seconds() == 30
        with pytest.raises(WorkflowFailedError, match="looked for 'k'"):
            env.execute_workflow(looks_up)


class Swallowing(Interceptor):
    """Does not go on where it must."""

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        class Outbound(WorkflowOutboundInterceptor):
            def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:  # type: ignore[misc]
                pass

        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                super().init(Outbound(outbound))

        return Inbound(next)


@workflow.defn
def goes_round() -> None:
    workflow.continue_as_new()


def test_continue_as_new_cannot_be_swallowed() -> None:
    """The author's code must not go on behind it: the run is parked, and the message names the interceptor's duty."""
    with (
        Environment(interceptors=[Swallowing()]) as env,
        pytest.raises(WorkflowParked, match="an interceptor of continue_as_new returned"),
    ):
        env.execute_workflow(goes_round)


class Starting(Interceptor):
    """Asks for something before the run has begun."""

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                assert workflow.info().workflow_type == "doubles"
                with pytest.raises(ReadOnlyError, match="the factory of an interceptor"):
                    workflow.sleep(1)
                super().init(outbound)

        return Inbound(next)


def test_init_of_an_interceptor_must_not_issue_commands() -> None:
    """`init` sees the run's facts only."""
    with Environment(interceptors=[Starting()]) as env:
        assert env.execute_workflow(doubles, 2) == 4


@workflow.defn
def has_no_chain() -> bool:
    run = current_run()
    assert run is not None
    return run.inbound is None and run.outbound is None


class OnlyClients(Interceptor):
    """Wants to see nothing of workflows."""


def test_runs_without_interceptors_have_no_chain() -> None:
    """A run has no chain if no interceptor overrides a method for runs."""
    for interceptors in ([], [OnlyClients()]):
        with Environment(interceptors=interceptors) as env:
            assert env.execute_workflow(has_no_chain) is True


def test_repr_of_inputs_hides_arguments() -> None:
    """Their repr is fit for a log."""
    shown: list[str] = []

    class Showing(Interceptor):
        def intercept_client(self, next: ClientOutboundInterceptor) -> ClientOutboundInterceptor:
            class Outbound(ClientOutboundInterceptor):
                def start_workflow(self, input: StartWorkflowInput) -> Any:
                    shown.append(repr(input))
                    return super().start_workflow(input)

            return Outbound(next)

    with Environment(interceptors=[Showing()]) as env:
        env.execute_workflow(doubles, 4711, id="w", memo={"secret": "s3cret"})
    assert shown == ["StartWorkflowInput(id='w', workflow='doubles')"]


@pytest.mark.parametrize("given", [Named, object(), "tracing"])
def test_invalid_interceptor_is_rejected(given: Any) -> None:
    """A class instead of an object, or another object, raises an error at once."""
    with pytest.raises(UsageError, match="interceptors must be instances"):
        Environment(interceptors=[given])
    with pytest.raises(UsageError, match="interceptors must be instances"):
        Client.connect("local:", interceptors=[given])
