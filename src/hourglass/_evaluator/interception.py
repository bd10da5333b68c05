"""Interceptors of the inbound and outbound calls between a run and its code. Pure.

A chain of interceptors is created for each execution of a run, including re-executions. The methods of
interceptors run like workflow code: on the lane, inside the run's fibers, and deterministically. Each call is
represented by an `…Input`. An interceptor may change the input, or replace it with `dataclasses.replace`,
before it passes the input to `self.next`. A worker without interceptors does not use this module.

The `repr` of an input contains neither arguments nor headers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias, TypeVar

from hourglass._evaluator.options import ActivitySettings, CallSettings
from hourglass._evaluator.specs import Payloads
from hourglass.converter import Payload

Headers: TypeAlias = dict[str, Payload]
"""Payloads that are sent in addition to the arguments, by name. They are not encoded by a codec, because tools
must be able to read them.
"""


@dataclass(kw_only=True)
class InterceptedCall:
    """A call that passes through a chain of interceptors: its arguments, its headers, and the function that
    performs the call after the last interceptor.
    """

    args: list[Any] = field(default_factory=list, repr=False)
    headers: Headers = field(default_factory=dict, repr=False)
    _proceed: Callable[[Any], Any] = field(repr=False, compare=False)

    def __setattr__(self, name: str, value: Any) -> None:
        # Without this check, assigning to a misspelled field would create an attribute and have no effect.
        fields: dict[str, object] = self.__dataclass_fields__  # type: ignore[assignment]
        if name not in fields and not hasattr(type(self), name):
            field_names = ", ".join(field_name for field_name in fields if not field_name.startswith("_"))
            raise AttributeError(
                f"{type(self).__name__} has no field {name!r}; fields that an interceptor can change: {field_names}"
            )
        super().__setattr__(name, value)


@dataclass(kw_only=True)
class ExecuteWorkflowInput(InterceptedCall):
    """The input of a call of the workflow's body. `type` is the workflow type."""

    type: str
    run_fn: Callable[..., Any] = field(repr=False)


@dataclass(kw_only=True)
class HandleSignalInput(InterceptedCall):
    """The input of a signal handler. Messages read from a channel have no handler, and are not intercepted."""

    signal: str


@dataclass(kw_only=True)
class HandleQueryInput(InterceptedCall):
    """The input of a query handler."""

    id: str
    query: str


@dataclass(kw_only=True)
class HandleUpdateInput(InterceptedCall):
    """The input of an update's validator or handler."""

    id: str
    update: str


@dataclass(kw_only=True)
class StartActivityInput(InterceptedCall):
    """The input of an activity call. Replace `settings` with `msgspec.structs.replace`."""

    activity: str
    settings: ActivitySettings


@dataclass(kw_only=True)
class StartLocalActivityInput(InterceptedCall):
    """The input of a local activity call."""

    activity: str
    settings: ActivitySettings


@dataclass(kw_only=True)
class StartChildWorkflowInput(InterceptedCall):
    """The input of the start of a child workflow. `options` has the fields of `workflow.ChildOptions`."""

    workflow: str
    options: dict[str, Any] = field(repr=False)


@dataclass(kw_only=True)
class SignalChildWorkflowInput(InterceptedCall):
    """The input of a signal to a child."""

    signal: str
    child_workflow_id: str


@dataclass(kw_only=True)
class SignalExternalWorkflowInput(InterceptedCall):
    """The input of a signal to another workflow."""

    signal: str
    workflow_id: str
    workflow_run_id: str | None = None


@dataclass(kw_only=True)
class SignalWithStartWorkflowInput(InterceptedCall):
    """The input of a signal to another workflow, which is started unless it is running. `args` are the
    arguments of the workflow, `signal_args` the arguments of the signal. `options` are the options of
    `workflow.with_start` except the id.
    """

    workflow: str
    workflow_id: str
    signal: str
    signal_args: list[Any] = field(default_factory=list, repr=False)
    options: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(kw_only=True)
class ContinueAsNewInput(InterceptedCall):
    """The input of continue-as-new. `options` are the keyword arguments of `workflow.continue_as_new`."""

    workflow: str
    options: dict[str, Any] = field(repr=False)


@dataclass(kw_only=True)
class StartNexusOperationInput(InterceptedCall):
    """The input of a Nexus operation call. `args` contains the operation's argument, if any, and `options` the
    keyword arguments of the call. `nexus_headers` are strings that are sent with the call. `headers` are not
    sent.
    """

    endpoint: str
    service: str
    operation: str
    nexus_headers: dict[str, str] = field(default_factory=dict, repr=False)
    options: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(kw_only=True)
class SleepInput(InterceptedCall):
    """The input of a `workflow.sleep`. `duration` is in seconds."""

    duration: float
    summary: str = ""


@dataclass(kw_only=True)
class InfoInput(InterceptedCall):
    """The input of `workflow.info()`."""


class WorkflowOutboundInterceptor:
    """An interceptor of a workflow's outbound calls. Override methods, and call the same method of `self.next`
    to continue the call.
    """

    def __init__(self, next: WorkflowOutboundInterceptor) -> None:
        self.next = next

    def start_activity(self, input: StartActivityInput) -> Any:
        """Schedule an activity. Return the activity's task."""
        return self.next.start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> Any:
        """Schedule a local activity. Return the activity's task."""
        return self.next.start_local_activity(input)

    def start_child_workflow(self, input: StartChildWorkflowInput) -> Any:
        """Start a child workflow and wait until it has started. Return the child's handle."""
        return self.next.start_child_workflow(input)

    def signal_child_workflow(self, input: SignalChildWorkflowInput) -> None:
        """Signal a child workflow and wait until the signal is delivered."""
        return self.next.signal_child_workflow(input)

    def signal_external_workflow(self, input: SignalExternalWorkflowInput) -> None:
        """Signal another workflow and wait until the signal is delivered."""
        return self.next.signal_external_workflow(input)

    def start_nexus_operation(self, input: StartNexusOperationInput) -> Any:
        """Call a Nexus operation and wait until it has started. Return the operation's handle."""
        return self.next.start_nexus_operation(input)

    def signal_with_start_workflow(self, input: SignalWithStartWorkflowInput) -> Any:
        """Signal another workflow, after starting it unless it is running. Wait until the signal is delivered,
        and return the workflow's handle.
        """
        return self.next.signal_with_start_workflow(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:
        """End this run and start the next one; never returns."""
        self.next.continue_as_new(input)

    def sleep(self, input: SleepInput) -> None:
        """Wait for a duration in workflow time."""
        return self.next.sleep(input)

    def info(self, input: InfoInput) -> Any:
        """Return the result of `workflow.info()`."""
        return self.next.info(input)


class WorkflowInboundInterceptor:
    """An interceptor of a workflow's inbound calls. Override methods, and call the same method of `self.next`
    to continue the call.
    """

    def __init__(self, next: WorkflowInboundInterceptor) -> None:
        self.next = next

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """Initialise the interceptor at the start of an execution. To intercept outbound calls, pass an
        interceptor that wraps `outbound`.
        """
        self.next.init(outbound)

    def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        """Run the body. Return the workflow's result."""
        return self.next.execute_workflow(input)

    def handle_signal(self, input: HandleSignalInput) -> None:
        """Run a signal handler."""
        return self.next.handle_signal(input)

    def handle_query(self, input: HandleQueryInput) -> Any:
        """Run a query handler. The handler and its interceptors must only read."""
        return self.next.handle_query(input)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        """Run an update's validator, if there is one. The validator must only read."""
        return self.next.handle_update_validator(input)

    def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        """Run an update's handler. Return the update's result."""
        return self.next.handle_update_handler(input)


InterceptWorkflow: TypeAlias = Callable[[WorkflowInboundInterceptor], WorkflowInboundInterceptor]
"""A function that returns a new interceptor in front of a given one. It is called for each execution of a run."""


class _LastOutbound(WorkflowOutboundInterceptor):
    """The last outbound interceptor, which performs the call."""

    def __init__(self) -> None:
        pass

    def _proceed_call(self, input: InterceptedCall) -> Any:
        return input._proceed(input)

    start_activity = start_local_activity = start_child_workflow = start_nexus_operation = _proceed_call
    signal_with_start_workflow = _proceed_call
    signal_child_workflow = signal_external_workflow = continue_as_new = sleep = info = _proceed_call


class _LastInbound(WorkflowInboundInterceptor):
    """The last inbound interceptor, which calls the author's code."""

    def __init__(self) -> None:
        self.outbound: WorkflowOutboundInterceptor = _LastOutbound()

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        self.outbound = outbound

    def _proceed_call(self, input: InterceptedCall) -> Any:
        return input._proceed(input)

    execute_workflow = handle_signal = handle_query = _proceed_call
    handle_update_validator = handle_update_handler = _proceed_call


def chain(
    interceptors: tuple[InterceptWorkflow, ...],
) -> tuple[WorkflowInboundInterceptor, WorkflowOutboundInterceptor]:
    """Return the inbound and outbound interceptors of a run. The first interceptor of the list is the outermost
    for inbound and outbound calls.
    """
    last = _LastInbound()
    inbound: WorkflowInboundInterceptor = last
    for intercept in reversed(interceptors):
        inbound = intercept(inbound)
    inbound.init(_LastOutbound())
    return inbound, last.outbound


T = TypeVar("T")


def start_intercepted(
    outbound: WorkflowOutboundInterceptor,
    activity: str,
    args: list[Any],
    settings: CallSettings,
    return_type: Any,
    encode: Callable[[Sequence[Any]], Payloads],
    *,
    local: bool,
    start: Callable[..., T],
) -> T:
    """Schedule an activity through the interceptors. After the last interceptor, `encode` encodes the arguments
    and `start` schedules the activity.
    """

    def proceed(call: StartActivityInput | StartLocalActivityInput) -> Any:
        return start(
            call.activity,
            encode(call.args),
            call.settings.call(),
            return_type,
            local=local,
            headers=call.headers,
        )

    task: T
    fields: dict[str, Any] = {"activity": activity, "settings": ActivitySettings.of(settings), "args": args}
    if local:
        task = outbound.start_local_activity(StartLocalActivityInput(**fields, _proceed=proceed))
    else:
        task = outbound.start_activity(StartActivityInput(**fields, _proceed=proceed))
    return task
