"""Child workflows and other workflows, called from a workflow: start, signal, cancel, and wait for the result."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Required, TypedDict, TypeVar, TypeVarTuple, Unpack, cast, overload

from hourglass._evaluator.commands import SignalExternalWorkflow, StartChildWorkflow
from hourglass._evaluator.context import LiveRun
from hourglass._evaluator.event_groups import EventGroup, check_groups
from hourglass._evaluator.fibers import require_fiber
from hourglass._evaluator.interception import (
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    SignalWithStartWorkflowInput,
    StartChildWorkflowInput,
)
from hourglass._evaluator.operations import (
    ChildOperation,
    cancel_external,
    signal_external,
    start_child,
    start_step,
)
from hourglass._evaluator.options import (
    Duration,
    RetryPolicy,
    check_text,
    choice,
    start_spec,
)
from hourglass._evaluator.specs import (
    ChildCancellationType,
    ChildWorkflowSpec,
    IdReusePolicy,
    ParentClosePolicy,
    Payloads,
    VersioningOverride,
    check_override,
)
from hourglass._evaluator.state import ACTIVITY
from hourglass.activity import ActivityDefinition
from hourglass.activity import client as activity_client
from hourglass.activity._definition import step_definition
from hourglass.converter import (
    Converter,
    Payload,
    RawPayload,
    SearchAttributes,
    Signature,
)
from hourglass.errors import (
    ActivityError,
    ApplicationError,
    ServiceError,
    UsageError,
    WorkflowAlreadyStartedError,
)
from hourglass.workflow._facts import default_id
from hourglass.workflow._references import Channel, ResolvedReference, resolve_message, resolve_workflow

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ExternalWorkflowHandle:
    """A handle of a workflow that is not this workflow's child. Create it with `get_external_workflow_handle`."""

    def __init__(self, id: str, run_id: str | None) -> None:
        self.id = id
        self.run_id = run_id

    @overload
    def signal(self, signal: str, /, *args: Any) -> None: ...
    @overload
    def signal(self, signal: Channel[T], value: T, /) -> None: ...
    @overload
    def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> None: ...
    def signal(self, signal: Any, /, *args: Any) -> None:  # type: ignore[misc]
        """Send a signal and wait until it is delivered. Raise `ApplicationError` if the workflow does not
        exist.
        """
        run = require_fiber("signalling another workflow").run
        definition = resolve_message("signal", signal)

        def send(call: SignalExternalWorkflowInput) -> None:
            signal_external(signal_command(run, definition, call))

        call = SignalExternalWorkflowInput(
            signal=definition.name,
            workflow_id=self.id,
            workflow_run_id=self.run_id,
            args=list(args),
            _proceed=send,
        )
        send(call) if run.outbound is None else run.outbound.signal_external_workflow(call)

    def cancel(self, reason: str = "") -> None:
        """Request the workflow's cancellation and wait until the request is delivered, but not until the workflow is
        closed."""
        cancel_external(self.id, self.run_id or "", check_text(reason, "reason"))

    def __repr__(self) -> str:
        return f"<external workflow {self.id}>"


def get_external_workflow_handle(id: str, *, run_id: str | None = None) -> ExternalWorkflowHandle:
    """Return a handle of another workflow, or of one of its runs. Do not check whether the workflow exists."""
    check_external(id, run_id)
    return ExternalWorkflowHandle(id, run_id)


def check_external(id: str, run_id: str | None) -> None:
    """Raise `UsageError` if the ids are malformed, or if the caller is not workflow code."""
    require_fiber("workflow.get_external_workflow_handle")
    if not isinstance(id, str) or not id:
        raise UsageError("the id of a workflow must be a non-empty str")
    check_text(id, "the id of a workflow")
    check_text(run_id or "", "run_id")


def signal_command(
    run: LiveRun, definition: ResolvedReference, call: SignalExternalWorkflowInput | SignalChildWorkflowInput
) -> SignalExternalWorkflow:
    """Return the command that sends a signal to a child or another workflow, after interceptors have changed
    the call.
    """
    if isinstance(call, SignalChildWorkflowInput):
        workflow_id, run_id, is_child = call.child_workflow_id, "", True
    else:
        workflow_id, run_id, is_child = call.workflow_id, call.workflow_run_id or "", False
    return SignalExternalWorkflow(
        seq=0,
        workflow_id=workflow_id,
        run_id=run_id,
        signal_name=call.signal,
        is_child=is_child,
        arguments=definition.encode(run.converter_of_workflow(workflow_id), call.args),
        headers=call.headers,
    )


Encode = Callable[[Converter, Sequence[Any]], Payloads]
"""Encodes arguments to payloads."""


class CommonStartOptions(TypedDict, total=False):
    """The options that the start of a child and the start by a signal share."""

    task_queue: str
    """The workflow's task queue; this workflow's own by default."""
    execution_timeout: Duration | None
    """The timeout of all runs of the workflow together."""
    run_timeout: Duration | None
    """The timeout of a single run."""
    task_timeout: Duration | None
    """The timeout of a single workflow task; at most 120 s."""
    id_reuse_policy: IdReusePolicy
    """Whether the id of a closed workflow may be reused."""
    retry_policy: RetryPolicy | None
    """The workflow's retry policy; without a policy the workflow is not retried."""
    cron_schedule: str
    """A cron expression. The workflow runs repeatedly at the matching times."""
    memo: Mapping[str, Any]
    """Notes stored with the workflow; not searchable."""
    search_attributes: SearchAttributes
    """Values by which the workflow can be found in searches; never encrypted."""
    static_summary: str
    """A one-line summary for Temporal's web UI."""
    static_details: str
    """Multi-line details for Temporal's web UI."""
    priority_key: int
    """The workflow's priority in the task queue: lower numbers come first, and 0 is the default."""
    fairness_key: str
    """The key by which the task queue shares its capacity fairly; a child inherits its parent's."""
    fairness_weight: float
    """The weight of the fairness key; 1 by default."""
    versioning_override: VersioningOverride | None
    """Pins the workflow to a worker version, or moves it to the current one, regardless of its definition."""


class WithStartOptions(CommonStartOptions, total=False):
    """The options of a workflow that is started by a signal. They match a client's start options. All but the id are
    optional.
    """

    id: Required[str]
    """The workflow id."""
    start_delay: Duration | None
    """The delay before the first workflow task."""


class WithStart:
    """A workflow that a signal starts unless it is already running. Create it with `workflow.with_start`."""

    def __init__(
        self, workflow: ResolvedReference, args: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        self._workflow = workflow
        self._args = args
        self._options = options

    @overload
    def signal(self, signal: str, /, *args: Any) -> ExternalWorkflowHandle: ...
    @overload
    def signal(self, signal: Channel[T], value: T, /) -> ExternalWorkflowHandle: ...
    @overload
    def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> ExternalWorkflowHandle: ...
    def signal(self, signal: Any, /, *args: Any) -> ExternalWorkflowHandle:  # type: ignore[misc]
        """Start the workflow and send it a signal in one request, and wait until the request is done. If the workflow is
        already running, only send the signal.

        The worker sends the request in a step. If the worker dies before the step is recorded, the request is repeated with
        the same request id.
        """
        run = require_fiber("signalling with a start").run

        def send(call: SignalWithStartWorkflowInput) -> ExternalWorkflowHandle:
            definition = sending(run, self._workflow, resolve_message("signal", signal), call)
            task = start_step(definition, definition.name, (), definition.settings, str)
            try:
                return ExternalWorkflowHandle(call.workflow_id, task.result())
            except ActivityError as error:
                raise refusal(call, error) from None

        call = with_start_call(self._workflow, self._args, self._options, signal, args, send)
        handle: ExternalWorkflowHandle = (
            send(call) if run.outbound is None else run.outbound.signal_with_start_workflow(call)
        )
        return handle

    def __repr__(self) -> str:
        return f"<workflow {self._workflow.name} {self._options.get('id')} with a start>"


@overload
def with_start(workflow: str, /, *args: Any, **options: Unpack[WithStartOptions]) -> WithStart: ...
@overload
def with_start(
    workflow: Callable[[*Ts], Any], /, *args: *Ts, **options: Unpack[WithStartOptions]
) -> WithStart: ...
def with_start(workflow: Any, /, *args: Any, **options: Any) -> WithStart:  # type: ignore[misc]
    """Return an object whose `signal` starts the workflow unless it is running: `with_start(cart, owner,
    id="c-1").signal(add, item)`.

    Unlike a child, the workflow outlives this one, and its result cannot be awaited.
    """
    return WithStart(resolve_workflow(workflow), args, options)


def with_start_call(
    workflow: ResolvedReference,
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    signal: Any,
    signal_args: tuple[Any, ...],
    send: Callable[[SignalWithStartWorkflowInput], Any],
) -> SignalWithStartWorkflowInput:
    """Return the input that interceptors receive for a signal with start. Raise `UsageError` for unknown
    options.
    """
    _check_names(options, WithStartOptions, f"workflow {workflow.name} with a start")
    workflow_id = options.get("id")
    if not isinstance(workflow_id, str) or not workflow_id.strip():
        raise UsageError("with_start needs the id of the workflow")
    return SignalWithStartWorkflowInput(
        workflow=workflow.name,
        workflow_id=check_text(workflow_id, "id"),
        signal=resolve_message("signal", signal).name,
        args=list(args),
        signal_args=list(signal_args),
        options={name: value for name, value in options.items() if name != "id"},
        _proceed=send,
    )


def sending(
    run: LiveRun, workflow: ResolvedReference, signal: ResolvedReference, call: SignalWithStartWorkflowInput
) -> ActivityDefinition:
    """Return the step that sends a signal with start, after interceptors have changed the call."""
    converter = run.converter_of_workflow(call.workflow_id)
    arguments = [RawPayload(payload, converter) for payload in workflow.encode(converter, call.args)]
    signal_arguments = [
        RawPayload(payload, converter) for payload in signal.encode(converter, call.signal_args)
    ]
    options = {"task_queue": run.settings.task_queue, **call.options}
    # The id is the same in each attempt, so that the engine recognises a repeated request.
    request_id = f"{run.state.run_id}-with-start-{run.state.next_seq.get(ACTIVITY, 0)}"

    def send() -> str:
        starter = activity_client().with_start(
            call.workflow, *arguments, id=call.workflow_id, request_id=request_id, **options
        )
        starter.headers.update(call.headers)
        try:
            return starter.signal(call.signal, *signal_arguments).run_id or ""
        except (UsageError, ServiceError) as error:
            if isinstance(error, ServiceError) and error.status not in _FINAL:
                raise
            raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from None

    return step_definition(
        send,
        "hourglass.signal_with_start",
        {"start_to_close_timeout": 60.0, "summary": f"signal {call.signal} to {call.workflow_id}"},
    )


_FINAL = frozenset(
    (
        "ALREADY_EXISTS",
        "FAILED_PRECONDITION",
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "PERMISSION_DENIED",
        "UNAUTHENTICATED",
        "UNIMPLEMENTED",
    )
)


def refusal(call: SignalWithStartWorkflowInput, error: ActivityError) -> BaseException:
    """Return the exception that a failed signal with start raises in the workflow."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type == WorkflowAlreadyStartedError.__name__:
        return WorkflowAlreadyStartedError(
            f"workflow {call.workflow_id!r} was not started: {cause.message}", workflow_id=call.workflow_id
        )
    return cause or error


class ChildOptions(CommonStartOptions, total=False):
    """The options of a child workflow. All are optional. A duration is a `timedelta` or a number of seconds."""

    id: str
    """The child's workflow id. By default it is generated, and is the same on every execution."""
    parent_close_policy: ParentClosePolicy
    """The action applied to the child when its parent closes; by default the child is terminated."""
    cancellation_type: ChildCancellationType
    """The effect of cancelling the child; by default the parent waits until the child is closed."""
    event_groups: Sequence[EventGroup] | None
    """The event groups that the start of the child belongs to."""


_CHOICES: dict[str, Any] = {
    "parent_close_policy": ParentClosePolicy,
    "id_reuse_policy": IdReusePolicy,
    "cancellation_type": ChildCancellationType,
}
"""The fields of a `ChildWorkflowSpec` that are enums, with their types."""


class ChildWorkflowHandle(ChildOperation[R], Generic[R]):
    """A started child workflow: a task with the child's result. It can also be signalled."""

    __slots__ = ()

    @property
    def first_execution_run_id(self) -> str:
        """The run id of the child's first run."""
        return self.first_run_id

    @overload
    def signal(self, signal: str, /, *args: Any) -> None: ...
    @overload
    def signal(self, signal: Channel[T], value: T, /) -> None: ...
    @overload
    def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> None: ...
    def signal(self, signal: Any, /, *args: Any) -> None:  # type: ignore[misc]
        """Send a signal to the child and wait until it is delivered."""
        run, definition = self.run, resolve_message("signal", signal)

        def send(call: SignalChildWorkflowInput) -> None:
            signal_external(signal_command(run, definition, call))

        call = SignalChildWorkflowInput(
            signal=definition.name, child_workflow_id=self.id, args=list(args), _proceed=send
        )
        send(call) if run.outbound is None else run.outbound.signal_child_workflow(call)

    def __repr__(self) -> str:
        return f"<child workflow {self.command.workflow_type} {self.id}>"


@overload
def start_child_workflow(
    workflow: str, /, *args: Any, result_type: type[R], **options: Unpack[ChildOptions]
) -> ChildWorkflowHandle[R]: ...
@overload
def start_child_workflow(
    workflow: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ChildOptions]
) -> ChildWorkflowHandle[Any]: ...
@overload
def start_child_workflow(
    workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ChildOptions]
) -> ChildWorkflowHandle[R]: ...
def start_child_workflow(workflow: Any, /, *args: Any, result_type: Any = None, **options: Any) -> Any:  # type: ignore[misc]
    """Start a child workflow, identified by its decorated object or its name, and wait until it has started.

    Raise `WorkflowAlreadyStartedError` if the child's id is in use. `result_type` is the type of the result of a workflow
    identified by name.
    """
    run = require_fiber("starting a child workflow").run
    definition = resolve_workflow(workflow)
    return_type = definition.return_type if result_type is None else result_type
    return _begin(run, definition.name, list(args), definition.encode, return_type, options)


@overload
def execute_child_workflow(
    workflow: str, /, *args: Any, result_type: type[R], **options: Unpack[ChildOptions]
) -> R: ...
@overload
def execute_child_workflow(
    workflow: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ChildOptions]
) -> Any: ...
@overload
def execute_child_workflow(
    workflow: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ChildOptions]
) -> R: ...
def execute_child_workflow(workflow: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
    """Run a child workflow and wait for its result. Raise `ChildWorkflowError` if the child does not complete."""
    return start_child_workflow(workflow, *args, **options).result()


def start_defined(
    run: LiveRun,
    name: str,
    signature: Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> ChildWorkflowHandle[Any]:
    """Start a decorated workflow as a child, with arguments bound to its signature."""
    return _begin(run, name, signature.bind(args, kwargs), signature.encode, signature.return_type, options)


def check_options(options: Mapping[str, Any], where: str) -> None:
    """Raise `UsageError` for an unknown option of a child workflow."""
    _check_names(options, ChildOptions, f"{where} as a child")


def _check_names(options: Mapping[str, Any], option_type: Any, where: str) -> None:
    names = option_type.__annotations__
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; known options: {', '.join(names)}"
            raise UsageError(f"{where} has no option {name!r}{hint}")


def _begin(
    run: LiveRun, name: str, args: list[Any], encode: Encode, return_type: Any, options: Mapping[str, Any]
) -> ChildWorkflowHandle[Any]:
    if run.outbound is None:
        return _start(run, name, encode, args, return_type, options)
    check_options(options, f"workflow {name}")
    handle: ChildWorkflowHandle[Any] = run.outbound.start_child_workflow(
        StartChildWorkflowInput(
            workflow=name,
            args=args,
            options=dict(options),
            _proceed=lambda call: _start(
                run, call.workflow, encode, call.args, return_type, call.options, call.headers
            ),
        )
    )
    return handle


def _start(
    run: LiveRun,
    workflow_type: str,
    encode: Encode,
    args: list[Any],
    return_type: Any,
    options: Mapping[str, Any],
    headers: dict[str, Payload] | None = None,
) -> ChildWorkflowHandle[Any]:
    command = child_command(run, workflow_type, encode, args, options, headers)
    return cast(ChildWorkflowHandle[Any], start_child(command, return_type, ChildWorkflowHandle))


def child_command(
    run: LiveRun,
    workflow_type: str,
    encode: Encode,
    args: list[Any],
    options: Mapping[str, Any],
    headers: dict[str, Payload] | None = None,
) -> StartChildWorkflow:
    """Validate the options, and return the command that starts a child, without its sequence number."""
    if run.contextual:  # the child's values are encoded for the child's id
        workflow_id = _id(options)
        converter = run.converter_of_workflow(workflow_id)
        arguments = tuple(encode(converter, args))
    else:
        converter = run.converter
        arguments = tuple(encode(converter, args))
        workflow_id = ""
    check_options(options, f"workflow {workflow_type}")
    spec = start_spec(options, converter)
    child_options: dict[str, Any] = {
        name: choice(kind, options[name], name) for name, kind in _CHOICES.items() if name in options
    }
    if "versioning_override" in options:
        child_options["versioning_override"] = check_override(options["versioning_override"])
    return StartChildWorkflow(
        seq=0,
        workflow_id=workflow_id or _id(options),
        workflow_type=workflow_type,
        arguments=arguments,
        headers=headers or {},
        spec=spec,
        child=ChildWorkflowSpec(**child_options),
        event_groups=check_groups(options.get("event_groups")),
    )


def _id(options: Mapping[str, Any]) -> str:
    if "id" not in options:
        return default_id()
    name = options["id"]
    if not isinstance(name, str) or not name.strip():
        raise UsageError("the id of a child workflow must be a non-empty str")
    return check_text(name, "the id of a child workflow")
