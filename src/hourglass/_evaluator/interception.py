"""What may stand between a run and its code: interceptors of what comes in and of what goes out. Pure.

A chain is made for each execution of a run, also when it is executed again, and its methods run as workflow code does: on
the lane, inside the run's fibers, deterministic. Each call is an `…Input` that an interceptor may change, or replace by
`dataclasses.replace`, before it hands it to `self.next`. Where no interceptor is given nothing of this is touched.

The inputs show neither arguments nor headers in their `repr`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias, TypeVar

from hourglass._evaluator.options import ActivitySettings, CallSettings
from hourglass._evaluator.specs import Payloads
from hourglass.converter import Payload

Headers: TypeAlias = dict[str, Payload]
"""Payloads that travel beside the arguments, by name. Not encoded by a codec: tools must read them."""


@dataclass(kw_only=True)
class InterceptedCall:
    """A call on its way through a chain: its arguments, its headers, and how it goes on after the last interceptor."""

    args: list[Any] = field(default_factory=list, repr=False)
    headers: Headers = field(default_factory=dict, repr=False)
    _proceed: Callable[[Any], Any] = field(repr=False, compare=False)

    def __setattr__(self, name: str, value: Any) -> None:
        # Else Python would make a new attribute, and the call would go on as if nothing had been changed.
        fields: dict[str, object] = self.__dataclass_fields__  # type: ignore[assignment]
        if name not in fields and not hasattr(type(self), name):
            known = ", ".join(field_name for field_name in fields if not field_name.startswith("_"))
            raise AttributeError(
                f"{type(self).__name__} has no field {name!r}: an interceptor can change {known}"
            )
        super().__setattr__(name, value)


@dataclass(kw_only=True)
class ExecuteWorkflowInput(InterceptedCall):
    """The body of a workflow is to run. `type` is its type's name."""

    type: str
    run_fn: Callable[..., Any] = field(repr=False)


@dataclass(kw_only=True)
class HandleSignalInput(InterceptedCall):
    """A signal is to be handled. What is read from a channel has no handler, and is not seen here."""

    signal: str


@dataclass(kw_only=True)
class HandleQueryInput(InterceptedCall):
    """A query is to be answered."""

    id: str
    query: str


@dataclass(kw_only=True)
class HandleUpdateInput(InterceptedCall):
    """An update is to be validated, or handled."""

    id: str
    update: str


@dataclass(kw_only=True)
class StartActivityInput(InterceptedCall):
    """An activity is to be scheduled. `settings` may be replaced by `msgspec.structs.replace`."""

    activity: str
    settings: ActivitySettings


@dataclass(kw_only=True)
class StartLocalActivityInput(InterceptedCall):
    """A local activity is to be scheduled."""

    activity: str
    settings: ActivitySettings


@dataclass(kw_only=True)
class StartChildWorkflowInput(InterceptedCall):
    """A child workflow is to be started. `options` are those of `workflow.ChildOptions`."""

    workflow: str
    options: dict[str, Any] = field(repr=False)


@dataclass(kw_only=True)
class SignalChildWorkflowInput(InterceptedCall):
    """A child is to be signalled."""

    signal: str
    child_workflow_id: str


@dataclass(kw_only=True)
class SignalExternalWorkflowInput(InterceptedCall):
    """Another workflow is to be signalled."""

    signal: str
    workflow_id: str
    workflow_run_id: str | None = None


@dataclass(kw_only=True)
class SignalWithStartWorkflowInput(InterceptedCall):
    """Another workflow is to be signalled, and started first unless it runs. `args` are the workflow's, `signal_args` the
    signal's; `options` are those of `workflow.with_start`, but for the id.
    """

    workflow: str
    workflow_id: str
    signal: str
    signal_args: list[Any] = field(default_factory=list, repr=False)
    options: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(kw_only=True)
class ContinueAsNewInput(InterceptedCall):
    """The run is to end and begin anew. `options` are what `workflow.continue_as_new` was given by name."""

    workflow: str
    options: dict[str, Any] = field(repr=False)


@dataclass(kw_only=True)
class StartNexusOperationInput(InterceptedCall):
    """An operation of a Nexus service is to be called; `args` holds its argument, if there is one. `options` are what was
    given by name; `nexus_headers`, texts, travel with the call, while `headers` stay here.
    """

    endpoint: str
    service: str
    operation: str
    nexus_headers: dict[str, str] = field(default_factory=dict, repr=False)
    options: dict[str, Any] = field(default_factory=dict, repr=False)


@dataclass(kw_only=True)
class SleepInput(InterceptedCall):
    """The workflow is to wait, so many seconds."""

    duration: float
    summary: str = ""


@dataclass(kw_only=True)
class InfoInput(InterceptedCall):
    """The workflow asks who it is."""


class WorkflowOutboundInterceptor:
    """What a workflow asks for, on its way out. Override what you want to see; call `self.next` to go on."""

    def __init__(self, next: WorkflowOutboundInterceptor) -> None:
        self.next = next

    def start_activity(self, input: StartActivityInput) -> Any:
        """Schedule an activity; the task that stands for it."""
        return self.next.start_activity(input)

    def start_local_activity(self, input: StartLocalActivityInput) -> Any:
        """Schedule a local activity; the task that stands for it."""
        return self.next.start_local_activity(input)

    def start_child_workflow(self, input: StartChildWorkflowInput) -> Any:
        """Start a child and wait until it has started; its handle."""
        return self.next.start_child_workflow(input)

    def signal_child_workflow(self, input: SignalChildWorkflowInput) -> None:
        """Signal a child and wait until the signal is delivered."""
        return self.next.signal_child_workflow(input)

    def signal_external_workflow(self, input: SignalExternalWorkflowInput) -> None:
        """Signal another workflow and wait until the signal is delivered."""
        return self.next.signal_external_workflow(input)

    def start_nexus_operation(self, input: StartNexusOperationInput) -> Any:
        """Call an operation of a Nexus service and wait until it has started; its handle."""
        return self.next.start_nexus_operation(input)

    def signal_with_start_workflow(self, input: SignalWithStartWorkflowInput) -> Any:
        """Signal another workflow, which is started first unless it runs, and wait until that is done; its handle."""
        return self.next.signal_with_start_workflow(input)

    def continue_as_new(self, input: ContinueAsNewInput) -> NoReturn:
        """End this run and begin the next; never returns."""
        self.next.continue_as_new(input)

    def sleep(self, input: SleepInput) -> None:
        """Wait."""
        return self.next.sleep(input)

    def info(self, input: InfoInput) -> Any:
        """What `workflow.info()` gives."""
        return self.next.info(input)


class WorkflowInboundInterceptor:
    """What comes to a workflow, on its way in. Override what you want to see; call `self.next` to go on."""

    def __init__(self, next: WorkflowInboundInterceptor) -> None:
        self.next = next

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        """The run begins. To see what goes out, hand on an interceptor of your own that has `outbound` as its next."""
        self.next.init(outbound)

    def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        """Run the body; what it returns is the workflow's result."""
        return self.next.execute_workflow(input)

    def handle_signal(self, input: HandleSignalInput) -> None:
        """Run a signal's handler."""
        return self.next.handle_signal(input)

    def handle_query(self, input: HandleQueryInput) -> Any:
        """Run a query's handler. It must only look, and so must its interceptors."""
        return self.next.handle_query(input)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        """Run an update's validator, where it has one. It must only look."""
        return self.next.handle_update_validator(input)

    def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        """Run an update's handler; what it returns is the update's result."""
        return self.next.handle_update_handler(input)


InterceptWorkflow: TypeAlias = Callable[[WorkflowInboundInterceptor], WorkflowInboundInterceptor]
"""Puts an interceptor before the next one; called for each execution of a run."""


class _LastOutbound(WorkflowOutboundInterceptor):
    """The end of the chain: the call itself."""

    def __init__(self) -> None:
        pass

    def _proceed_call(self, input: InterceptedCall) -> Any:
        return input._proceed(input)

    start_activity = start_local_activity = start_child_workflow = start_nexus_operation = _proceed_call
    signal_with_start_workflow = _proceed_call
    signal_child_workflow = signal_external_workflow = continue_as_new = sleep = info = _proceed_call


class _LastInbound(WorkflowInboundInterceptor):
    """The end of the chain: the author's code."""

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
    """What stands between a run and its code; the first interceptor is the outermost, in both directions."""
    last = _LastInbound()
    inbound: WorkflowInboundInterceptor = last
    for intercept in reversed(interceptors):
        inbound = intercept(inbound)
    inbound.init(_LastOutbound())
    return inbound, last.outbound


# --- an activity on its way through a chain ----------------------------------------------------------------------------

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
    """Schedule an activity as the interceptors will have it: `encode` makes payloads of what they leave of its arguments, and
    `start` schedules it.
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
