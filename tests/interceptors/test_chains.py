"""Chains of interceptors: their order, what they may change, and runs without a chain."""

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

from .caller_interceptor import with_outbound


@activity.defn
def double(number: int) -> int:
    return 2 * number


@activity.defn
def timeout_of_this() -> str:
    return str(activity.info().start_to_close_timeout)


@workflow.defn
def call_double(number: int) -> int:
    return double(number)


class RecordsCalls(Interceptor):
    """Records each call with its own name."""

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
    log: list[str] = []
    with Environment(interceptors=[RecordsCalls("a", log), RecordsCalls("b", log)]) as env:
        assert env.execute_workflow(call_double, 2) == 4
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
    log: list[str] = []
    with (
        Client.connect("local:", interceptors=[RecordsCalls("client", log)]) as client,
        Worker(
            client, workflows=[call_double], activities=[double], interceptors=[RecordsCalls("worker", log)]
        ),
    ):
        assert client.execute_workflow(call_double, 3) == 6
    assert log[:3] == ["start client", "in client", "in worker"]
    assert log[-2:] == ["activity client", "activity worker"]


class ChangesCalls(Interceptor):
    """Changes arguments, settings, results and exceptions."""

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
def sleep_and_return_timeout() -> str:
    workflow.sleep(60)
    return timeout_of_this()


@workflow.defn
def raise_key_error() -> None:
    raise KeyError("k")


def test_interceptors_may_change_arguments_options_results_and_exceptions() -> None:
    with Environment(interceptors=[ChangesCalls()]) as env:
        handle = env.start_workflow(call_double, 1, id="x")
        assert handle.result() == 1004
        assert (handle.id, handle.describe().memo) == ("tenant-1/x", {"by": "interceptor"})
        before = env.now()
        assert env.execute_workflow(sleep_and_return_timeout) == "0:00:07"
        assert (env.now() - before).total_seconds() == 30
        with pytest.raises(WorkflowFailedError, match="looked for 'k'"):
            env.execute_workflow(raise_key_error)


class SwallowsContinueAsNew(Interceptor):
    """Returns from `continue_as_new`, which must not return."""

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        class Outbound(WorkflowOutboundInterceptor):
            def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:  # type: ignore[misc]
                pass

        return with_outbound(next, Outbound)


@workflow.defn
def continue_forever() -> None:
    workflow.continue_as_new()


def test_interceptor_that_swallows_continue_as_new_parks_the_run() -> None:
    with (
        Environment(interceptors=[SwallowsContinueAsNew()]) as env,
        pytest.raises(WorkflowParked, match="an interceptor of continue_as_new returned"),
    ):
        env.execute_workflow(continue_forever)


class SleepsInInit(Interceptor):
    """Calls `sleep` in `init`."""

    def intercept_workflow(self, next: WorkflowInboundInterceptor) -> WorkflowInboundInterceptor:
        class Inbound(WorkflowInboundInterceptor):
            def init(self, outbound: WorkflowOutboundInterceptor) -> None:
                assert workflow.info().workflow_type == "call_double"
                with pytest.raises(ReadOnlyError, match="the factory of an interceptor"):
                    workflow.sleep(1)
                super().init(outbound)

        return Inbound(next)


def test_interceptor_init_must_not_issue_commands() -> None:
    with Environment(interceptors=[SleepsInInit()]) as env:
        assert env.execute_workflow(call_double, 2) == 4


@workflow.defn
def has_no_chain() -> bool:
    run = current_run()
    assert run is not None
    return run.inbound is None and run.outbound is None


class NoWorkflowMethods(Interceptor):
    """Overrides no method for workflows."""


def test_run_without_overriding_interceptors_has_no_chain() -> None:
    for interceptors in ([], [NoWorkflowMethods()]):
        with Environment(interceptors=interceptors) as env:
            assert env.execute_workflow(has_no_chain) is True


def test_repr_of_interceptor_input_hides_arguments() -> None:
    shown: list[str] = []

    class Showing(Interceptor):
        def intercept_client(self, next: ClientOutboundInterceptor) -> ClientOutboundInterceptor:
            class Outbound(ClientOutboundInterceptor):
                def start_workflow(self, input: StartWorkflowInput) -> Any:
                    shown.append(repr(input))
                    return super().start_workflow(input)

            return Outbound(next)

    with Environment(interceptors=[Showing()]) as env:
        env.execute_workflow(call_double, 4711, id="w", memo={"secret": "s3cret"})
    assert shown == ["StartWorkflowInput(id='w', workflow='call_double')"]


@pytest.mark.parametrize("invalid", [RecordsCalls, object(), "tracing"])
def test_invalid_interceptor_is_rejected(invalid: Any) -> None:
    with pytest.raises(UsageError, match="interceptors must be instances"):
        Environment(interceptors=[invalid])
    with pytest.raises(UsageError, match="interceptors must be instances"):
        Client.connect("local:", interceptors=[invalid])
