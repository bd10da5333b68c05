"""Child workflows and other workflows, as a workflow asks for them: started, signalled, asked to cancel, awaited."""

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
from hourglass.workflow._references import Channel, Given, given_message, given_workflow

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ExternalWorkflowHandle:
    """A workflow that is not a child of this one. Made by `get_external_workflow_handle`."""

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
        """Send a signal and wait until it is delivered. Raises `ApplicationError` where there is no such workflow."""
        run = require_fiber("signalling another workflow").run
        definition = given_message("signal", signal)

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
        """Ask the workflow to cancel and wait until the request is delivered, not until it has cancelled."""
        cancel_external(self.id, self.run_id or "", check_text(reason, "reason"))

    def __repr__(self) -> str:
        return f"<external workflow {self.id}>"


def get_external_workflow_handle(id: str, *, run_id: str | None = None) -> ExternalWorkflowHandle:
    """A handle to another workflow, or with `run_id` to that run alone. Does not ask whether it exists."""
    check_external(id, run_id)
    return ExternalWorkflowHandle(id, run_id)


def check_external(id: str, run_id: str | None) -> None:
    """Raise `UsageError` unless these can name another workflow, and this is workflow code."""
    require_fiber("workflow.get_external_workflow_handle")
    if not isinstance(id, str) or not id:
        raise UsageError("the id of a workflow must be a text that is not empty")
    check_text(id, "the id of a workflow")
    check_text(run_id or "", "run_id")


def signal_command(
    run: LiveRun, definition: Given, call: SignalExternalWorkflowInput | SignalChildWorkflowInput
) -> SignalExternalWorkflow:
    """The command that sends a signal, as the interceptors left the call, to a child or to another workflow."""
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
"""How arguments become payloads."""


# --- signals that start -----------------------------------------------------------------------------------------------


class WithStartOptions(TypedDict, total=False):
    """How a workflow is started by a signal. All but the id are optional; they are those of a client's start."""

    id: Required[str]
    """The workflow's id."""
    task_queue: str
    """The queue whose workers run it; this workflow's own by default."""
    execution_timeout: Duration | None
    run_timeout: Duration | None
    task_timeout: Duration | None
    start_delay: Duration | None
    id_reuse_policy: IdReusePolicy
    retry_policy: RetryPolicy | None
    cron_schedule: str
    memo: Mapping[str, Any]
    search_attributes: SearchAttributes
    static_summary: str
    static_details: str
    priority_key: int
    fairness_key: str
    fairness_weight: float
    versioning_override: VersioningOverride | None


class WithStart:
    """A workflow that is started, unless it runs, by the signal that is sent to it. Made by `workflow.with_start`."""

    def __init__(self, workflow: Given, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
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
        """Start it and send a signal in one step; one that runs already gets the signal alone. Waits until that is done.

        It is done by the worker, as a step: where the worker dies before the step is recorded, the same request is sent again.
        """
        run = require_fiber("signalling with a start").run

        def send(call: SignalWithStartWorkflowInput) -> ExternalWorkflowHandle:
            definition = sending(run, self._workflow, given_message("signal", signal), call)
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
    """A workflow that the next call starts, unless it runs already: `with_start(cart, owner, id="c-1").signal(add, item)`.

    Unlike a child it outlives this workflow, and its result is not awaited.
    """
    return WithStart(given_workflow(workflow), args, options)


def with_start_call(
    workflow: Given,
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    signal: Any,
    signal_args: tuple[Any, ...],
    send: Callable[[SignalWithStartWorkflowInput], Any],
) -> SignalWithStartWorkflowInput:
    """A signal with a start as interceptors see it; its options are checked by name."""
    option_names = WithStartOptions.__annotations__
    for name in options:
        if name not in option_names:
            near = difflib.get_close_matches(name, option_names, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(option_names)}"
            raise UsageError(f"workflow {workflow.name} with a start has no option {name!r}{hint}")
    workflow_id = options.get("id")
    if not isinstance(workflow_id, str) or not workflow_id.strip():
        raise UsageError("with_start needs the id of the workflow that is to run")
    return SignalWithStartWorkflowInput(
        workflow=workflow.name,
        workflow_id=check_text(workflow_id, "id"),
        signal=given_message("signal", signal).name,
        args=list(args),
        signal_args=list(signal_args),
        options={name: value for name, value in options.items() if name != "id"},
        _proceed=send,
    )


def sending(
    run: LiveRun, workflow: Given, signal: Given, call: SignalWithStartWorkflowInput
) -> ActivityDefinition:
    """The step that sends a signal with a start, as the interceptors left the call."""
    converter = run.converter_of_workflow(call.workflow_id)
    arguments = [RawPayload(payload, converter) for payload in workflow.encode(converter, call.args)]
    signal_arguments = [
        RawPayload(payload, converter) for payload in signal.encode(converter, call.signal_args)
    ]
    options = {"task_queue": run.settings.task_queue, **call.options}
    # The same in each attempt, so that one that is repeated is known again.
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
    """What a signal with a start raises in its workflow."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type == WorkflowAlreadyStartedError.__name__:
        return WorkflowAlreadyStartedError(
            f"workflow {call.workflow_id!r} is not started: {cause.message}", workflow_id=call.workflow_id
        )
    return cause or error


# --- children ---------------------------------------------------------------------------------------------------------


class ChildOptions(TypedDict, total=False):
    """How a child workflow is started. All are optional. A duration is a `timedelta` or seconds."""

    id: str
    """The child's workflow id; a fresh one, the same on every execution, by default."""
    task_queue: str
    """The queue whose workers run it; the parent's by default."""
    execution_timeout: Duration | None
    """The longest time for all its runs together."""
    run_timeout: Duration | None
    """The longest time for one run."""
    task_timeout: Duration | None
    """How long a worker may take for one workflow task; more than 120 s counts as 120 s."""
    parent_close_policy: ParentClosePolicy
    """What happens to the child when its parent closes: by default it is terminated."""
    cancellation_type: ChildCancellationType
    """What a parent that cancels the child waits for: by default until the child has ended."""
    id_reuse_policy: IdReusePolicy
    """Whether the id of a closed workflow may be used again."""
    retry_policy: RetryPolicy | None
    """Whether and how a child that failed is run again."""
    cron_schedule: str
    """Run it again and again, at these times."""
    memo: Mapping[str, Any]
    """Notes that are kept with the child; not searchable."""
    search_attributes: SearchAttributes
    """Values by which it can be found; never encrypted."""
    static_summary: str
    """One line about it, for Temporal's UI."""
    static_details: str
    """More lines."""
    priority_key: int
    """Its priority on the queue: lower is sooner, 0 is the default."""
    fairness_key: str
    """Whose share of the queue it is counted to; the parent's by default."""
    versioning_override: VersioningOverride | None
    """Whatever its code says: stay with a version, or move to the current one."""
    fairness_weight: float
    """How large that share is beside the others': 1 is the usual one."""
    event_groups: Sequence[EventGroup] | None
    """The groups that its start belongs to."""


_OPTION_NAMES = tuple(ChildOptions.__annotations__)
_CHOICES: dict[str, Any] = {
    "parent_close_policy": ParentClosePolicy,
    "id_reuse_policy": IdReusePolicy,
    "cancellation_type": ChildCancellationType,
}
"""The fields of a `ChildWorkflowSpec`, and what each is one of."""


class ChildWorkflowHandle(ChildOperation[R], Generic[R]):
    """A child workflow that has started: a task whose result is the child's, and which can be signalled."""

    __slots__ = ()

    @property
    def first_execution_run_id(self) -> str:
        """The run id with which the child started."""
        return self.first_run_id

    @overload
    def signal(self, signal: str, /, *args: Any) -> None: ...
    @overload
    def signal(self, signal: Channel[T], value: T, /) -> None: ...
    @overload
    def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> None: ...
    def signal(self, signal: Any, /, *args: Any) -> None:  # type: ignore[misc]
        """Send the child a signal and wait until it is delivered."""
        run, definition = self.run, given_message("signal", signal)

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
    """Start a child workflow, given as its decorated object or its name, and wait until it has started.

    Raises `WorkflowAlreadyStartedError` where its id is taken. `result_type` is for workflows given by name.
    """
    run = require_fiber("starting a child workflow").run
    definition = given_workflow(workflow)
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
    """Run a child workflow and wait for its result. Raises `ChildWorkflowError` if it did not complete."""
    return start_child_workflow(workflow, *args, **options).result()


def start_defined(
    run: LiveRun,
    name: str,
    signature: Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> ChildWorkflowHandle[Any]:
    """Start a decorated workflow as a child, its arguments bound by its signature."""
    return _begin(run, name, signature.bind(args, kwargs), signature.encode, signature.return_type, options)


def check_options(options: Mapping[str, Any], where: str) -> None:
    """Refuse what is no option of a child."""
    for name in options:
        if name not in _OPTION_NAMES:
            near = difflib.get_close_matches(name, _OPTION_NAMES, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(_OPTION_NAMES)}"
            raise UsageError(f"{where} as a child has no option {name!r}{hint}")


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
    """What asks for a child, without its number; the options are checked here."""
    if run.contextual:  # its values are encoded for its id
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
        raise UsageError("the id of a child workflow must be a text that is not empty")
    return check_text(name, "the id of a child workflow")
