"""A workflow's calls of activities by name, of steps and Nexus operations, and `continue_as_new`. For child and other
workflows see `_children`.

Usually a workflow calls an activity's decorated function. This module adds calls by name, and options for a single call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import IntEnum
from typing import Any, Generic, NoReturn, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._evaluator.commands import ContinueAsNew, ScheduleNexusOperation
from hourglass._evaluator.context import LiveRun
from hourglass._evaluator.event_groups import EventGroup, check_groups, in_groups
from hourglass._evaluator.fibers import Task, require_fiber
from hourglass._evaluator.interception import ContinueAsNewInput, StartNexusOperationInput, start_intercepted
from hourglass._evaluator.messages import ContinueAsNewError
from hourglass._evaluator.operations import NexusOperation, start_nexus
from hourglass._evaluator.operations import start_activity as _start_activity
from hourglass._evaluator.operations import start_step as _start_step
from hourglass._evaluator.options import (
    Duration,
    RetryPolicy,
    check_text,
    choice,
    named_values,
    optional_seconds,
    retry_rule,
)
from hourglass._evaluator.specs import ContinueAsNewVersioningBehavior, StartSpec
from hourglass.activity import Activity, ActivityOptions
from hourglass.activity._definition import activity_of, step_definition
from hourglass.activity._options import FOREIGN_DEFAULTS, settings_with
from hourglass.converter import (
    Converter,
    NexusSerializationContext,
    SearchAttributes,
    default_converter,
    encode_search_attributes,
    in_context,
)
from hourglass.errors import UsageError
from hourglass.nexus import Operation, Service
from hourglass.workflow._references import ResolvedReference, resolve_workflow

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


@overload
def execute_activity(
    activity: str, /, *args: Any, result_type: type[R], **options: Unpack[ActivityOptions]
) -> R: ...
@overload
def execute_activity(
    activity: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ActivityOptions]
) -> Any: ...
@overload
def execute_activity(
    activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ActivityOptions]
) -> R: ...
def execute_activity(activity: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
    """Run an activity and wait for its result: `execute_activity("charge", order,
    start_to_close_timeout=30)`.

    Identify an activity of another program or language by its name; the result is then decoded as `result_type`.
    """
    return _begin_activity(activity, args, options, local=False).result()


@overload
def start_activity(
    activity: str, /, *args: Any, result_type: type[R], **options: Unpack[ActivityOptions]
) -> Task[R]: ...
@overload
def start_activity(
    activity: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ActivityOptions]
) -> Task[Any]: ...
@overload
def start_activity(
    activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ActivityOptions]
) -> Task[R]: ...
def start_activity(activity: Any, /, *args: Any, **options: Any) -> Task[Any]:  # type: ignore[misc]
    """Start an activity without waiting for it."""
    return _begin_activity(activity, args, options, local=False)


@overload
def execute_local_activity(
    activity: str, /, *args: Any, result_type: type[R], **options: Unpack[ActivityOptions]
) -> R: ...
@overload
def execute_local_activity(
    activity: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ActivityOptions]
) -> Any: ...
@overload
def execute_local_activity(
    activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ActivityOptions]
) -> R: ...
def execute_local_activity(activity: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
    """Run a short activity on the worker that runs this workflow task, within the task, and wait for its
    result.
    """
    return _begin_activity(activity, args, options, local=True).result()


@overload
def start_local_activity(
    activity: str, /, *args: Any, result_type: type[R], **options: Unpack[ActivityOptions]
) -> Task[R]: ...
@overload
def start_local_activity(
    activity: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ActivityOptions]
) -> Task[Any]: ...
@overload
def start_local_activity(
    activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ActivityOptions]
) -> Task[R]: ...
def start_local_activity(activity: Any, /, *args: Any, **options: Any) -> Task[Any]:  # type: ignore[misc]
    """Start a short activity on the worker that runs this workflow task, without waiting for it."""
    return _begin_activity(activity, args, options, local=True)


def _begin_activity(
    activity: Any, args: tuple[Any, ...], options: dict[str, Any], *, local: bool
) -> Task[Any]:
    if not isinstance(activity, str) and (definition := activity_of(activity)) is not None:
        configured = definition.options(**options) if options else definition
        return configured.start_local(*args) if local else configured.start(*args)
    if not isinstance(activity, str):
        raise UsageError(
            f"an activity must be a name or a function decorated with @activity.defn, not {activity!r}"
        )
    run = require_fiber(f"activity {activity}").run
    return begin_named(run, activity, args, options, local=local, start=_start_activity)


def begin_named(
    run: LiveRun,
    activity: str,
    args: Sequence[Any],
    options: dict[str, Any],
    *,
    local: bool,
    start: Callable[..., R],
) -> R:
    """Start an activity by its name. `start` is the function that schedules the activity."""
    result_type = options.pop("result_type", Any)
    settings = settings_with(FOREIGN_DEFAULTS, options, f"activity {activity}")
    encode = run.converter.encode_all
    if run.contextual:
        queue = settings.spec.task_queue
        encode = run.converter_of_activity(activity, settings.activity_id, queue, local=local).encode_all
    if run.outbound is None:
        return start(activity, encode(args), settings, result_type, local=local)
    return start_intercepted(
        run.outbound, activity, list(args), settings, result_type, encode, local=local, start=start
    )


class StepOptions(TypedDict, total=False):
    """The options of a step. A duration is a `timedelta` or a number of seconds."""

    start_to_close_timeout: Duration | None
    """The timeout of one attempt; ten minutes by default."""
    schedule_to_close_timeout: Duration | None
    """The timeout of all attempts together."""
    retry_policy: RetryPolicy | None
    """The retry policy; Temporal's default by default."""
    local_retry_threshold: Duration | None
    """The retry delay from which the workflow waits on a timer instead of within its workflow task."""
    activity_id: str
    """The step's id in the history; a sequence number by default."""
    summary: str
    """A one-line summary for the history."""
    event_groups: Sequence[EventGroup] | None
    """The event groups that the step belongs to."""


@overload
def step(
    fn: Callable[[*Ts], Coroutine[Any, Any, R]],
    /,
    *args: *Ts,
    name: str | None = None,
    **options: Unpack[StepOptions],
) -> R: ...
@overload
def step(
    fn: Callable[[*Ts], R], /, *args: *Ts, name: str | None = None, **options: Unpack[StepOptions]
) -> R: ...
def step(fn: Any, /, *args: Any, name: str | None = None, **options: Any) -> Any:  # type: ignore[misc]
    """Run any function durably, without declaring it as an activity, and wait for its result:
    `workflow.step(fetch, url)`.

    The worker that runs this workflow calls the function as a local activity. The result is recorded when the workflow task
    ends; after that the function is not called again. An attempt that fails, or is lost with its worker, is retried. So a
    step suits short work that may be repeated. The step's name in the history is the function's name or `name`, which is
    required for a lambda. Renaming a step is a nondeterministic change for runs that have already passed it. Arguments and
    result are encoded like an activity's. Do not change the workflow's variables in the function: it may be called in
    another thread, repeatedly, or not at all.
    """
    return _begin_step(fn, args, name, options).result()


@overload
def start_step(
    fn: Callable[[*Ts], Coroutine[Any, Any, R]],
    /,
    *args: *Ts,
    name: str | None = None,
    **options: Unpack[StepOptions],
) -> Task[R]: ...
@overload
def start_step(
    fn: Callable[[*Ts], R], /, *args: *Ts, name: str | None = None, **options: Unpack[StepOptions]
) -> Task[R]: ...
def start_step(  # type: ignore[misc]
    fn: Any, /, *args: Any, name: str | None = None, **options: Any
) -> Task[Any]:
    """Start a step without waiting for it."""
    return _begin_step(fn, args, name, options)


def _begin_step(fn: Any, args: tuple[Any, ...], name: str | None, options: dict[str, Any]) -> Task[Any]:
    run = require_fiber("workflow.step").run
    if isinstance(fn, Activity):
        check_step(options, fn, name)
        return _begin_activity(fn, args, options, local=True)
    task: Task[Any] = begin_step(run, fn, args, name, options, _start_step)
    return task


def begin_step(
    run: LiveRun,
    fn: Any,
    args: tuple[Any, ...],
    name: str | None,
    options: dict[str, Any],
    start: Callable[..., Any],
) -> Any:
    """Start a step. `start` receives the step's definition and the arguments for starting an activity."""
    check_step(options, fn, name)
    definition = step_definition(fn, name, options)
    signature, begin = definition.signature, functools.partial(start, definition)
    converter = run.converter
    if run.contextual:
        settings = definition.settings
        converter = run.converter_of_activity(definition.name, settings.activity_id, "", local=True)
    if run.outbound is not None:
        return start_intercepted(
            run.outbound,
            definition.name,
            signature.bind(args, {}),
            definition.settings,
            signature.return_type,
            functools.partial(signature.encode, converter),
            local=True,
            start=begin,
        )
    payloads = signature.encode(converter, args)
    return begin(definition.name, payloads, definition.settings, signature.return_type)


def check_step(options: Mapping[str, Any], fn: Any, name: str | None) -> None:
    """Raise `UsageError` for an unknown option of a step, or for a name if the function is an activity."""
    for option in options:
        if option not in StepOptions.__annotations__:
            raise UsageError(
                f"a step has no option {option!r} (known options: {', '.join(StepOptions.__annotations__)}); pass arguments "
                "of the function by position"
            )
    if isinstance(fn, Activity) and name is not None:
        raise UsageError(f"name= is not supported for activity {fn.name}, which already has a name")


_INHERITED = ContinueAsNewVersioningBehavior.UNSPECIFIED


class ContinueOptions(TypedDict, total=False):
    """The options of the next run. Omitted options are inherited from this run."""

    task_queue: str
    run_timeout: Duration | None
    task_timeout: Duration | None
    retry_policy: RetryPolicy | None
    memo: Mapping[str, Any] | None
    search_attributes: SearchAttributes | None
    initial_versioning_behavior: ContinueAsNewVersioningBehavior
    backoff_start_interval: Duration | None
    """The delay before the next run's first task. The run is created immediately and can receive signals during the
    delay."""
    event_groups: Sequence[EventGroup] | None
    """The event groups that the command ending this run belongs to."""


@overload
def continue_as_new(
    *args: Any, workflow: str | type | None = None, **options: Unpack[ContinueOptions]
) -> NoReturn: ...
@overload
def continue_as_new(
    *args: *Ts, workflow: Callable[[*Ts], Any], **options: Unpack[ContinueOptions]
) -> NoReturn: ...
def continue_as_new(  # type: ignore[misc]
    *args: Any,
    workflow: object = None,
    task_queue: str = "",
    run_timeout: Duration | None = None,
    task_timeout: Duration | None = None,
    retry_policy: RetryPolicy | None = None,
    memo: Mapping[str, Any] | None = None,
    search_attributes: SearchAttributes | None = None,
    initial_versioning_behavior: ContinueAsNewVersioningBehavior = _INHERITED,
    backoff_start_interval: Duration | None = None,
    event_groups: Sequence[EventGroup] | None = None,
) -> NoReturn:
    """End this run and start a new one with these arguments and an empty history.

    The function raises `ContinueAsNewError`, which ends the body or the handler, and thereby the run.

    The new run has this run's workflow type unless `workflow` names another one, as a decorated object or a name. The
    arguments are checked against that workflow's signature before this run ends. Omitted options are inherited. If this run
    is pinned to a worker version, the new run is too, unless `initial_versioning_behavior` is `AUTO_UPGRADE`.
    """
    live = require_fiber("workflow.continue_as_new").run
    if workflow is None:
        signature = None if live.definition.dynamic else live.definition.signature
        definition = ResolvedReference("the workflow", live.state.workflow_type, signature)
    else:
        definition = resolve_workflow(workflow)
    call = ContinueAsNewInput(
        workflow=definition.name,
        args=list(args),
        options={
            "task_queue": task_queue,
            "run_timeout": run_timeout,
            "task_timeout": task_timeout,
            "retry_policy": retry_policy,
            "memo": memo,
            "search_attributes": search_attributes,
            "initial_versioning_behavior": initial_versioning_behavior,
            "backoff_start_interval": backoff_start_interval,
            "event_groups": event_groups,
        },
        _proceed=functools.partial(_continue, live.converter, definition),
    )
    if live.outbound is None:
        _continue(live.converter, definition, call)
    live.outbound.continue_as_new(call)
    raise UsageError(
        "an interceptor of continue_as_new returned: it must call the next interceptor, which ends the run"
    )


def _continue(converter: Converter, definition: ResolvedReference, call: ContinueAsNewInput) -> NoReturn:
    options = call.options
    memo = named_values(options["memo"] or {}, "memo")
    command = ContinueAsNew(
        workflow_type=call.workflow,
        arguments=definition.encode(converter, call.args),
        headers=call.headers,
        spec=StartSpec(
            task_queue=check_text(options["task_queue"], "task_queue"),
            run_timeout=optional_seconds(options["run_timeout"], "run_timeout") or 0.0,
            task_timeout=optional_seconds(options["task_timeout"], "task_timeout") or 0.0,
            retry_policy=retry_rule(options["retry_policy"]),
            memo={key: converter.encode(value) for key, value in memo.items()},
            search_attributes=encode_search_attributes(options["search_attributes"] or {}),
        ),
        versioning=ContinueAsNewVersioningBehavior(options["initial_versioning_behavior"]),
        backoff=optional_seconds(options["backoff_start_interval"], "backoff_start_interval") or 0.0,
        event_groups=check_groups(options["event_groups"]),
    )
    # apply the groups here, because the error leaves the `with` block before the command is issued
    raise ContinueAsNewError(in_groups(command))


# Nexus operations called from a workflow: a client for a service behind an endpoint, and handles of
# operations.
#
# On a Temporal server only: the embedded engine rejects the command.


class NexusOperationCancellationType(IntEnum):
    """The effect of cancelling a Nexus operation."""

    WAIT_COMPLETED = 0
    """Send the request, and wait until the operation is closed, whatever its handler does with the request."""
    ABANDON = 1
    """Neither wait nor send the request to the handler."""
    TRY_CANCEL = 2
    """Send the request without waiting."""
    WAIT_REQUESTED = 3
    """Send the request, and wait until the handler has received it."""


class NexusOperationHandle(Generic[R]):
    """A Nexus operation that has started."""

    def __init__(self, operation: NexusOperation[R]) -> None:
        self._operation = operation

    @property
    def operation_token(self) -> str | None:
        """The token by which the service identifies the operation; None if the service returned the result immediately."""
        return self._operation.token or None

    def result(self) -> R:
        """Wait for the operation's result and return it. Raise `NexusOperationError` if the operation does not complete."""
        return self._operation.result()

    def cancel(self) -> bool:
        """Request cancellation of the operation. Return False if the operation is already closed."""
        return self._operation.cancel()

    def __repr__(self) -> str:
        command = self._operation.command
        return f"<Nexus operation {command.service}.{command.operation} at {command.endpoint}>"


class NexusOptions(TypedDict, total=False):
    """The options of a Nexus operation call. A duration is a `timedelta` or a number of seconds."""

    schedule_to_close_timeout: Duration | None
    """The timeout of the operation, including all attempts to start it."""
    schedule_to_start_timeout: Duration | None
    """The timeout until the handler has started the operation."""
    start_to_close_timeout: Duration | None
    """The timeout from the operation's start to its completion."""
    cancellation_type: NexusOperationCancellationType
    """The effect of cancelling the operation."""
    headers: Mapping[str, str]
    """Headers for the service. They must not contain secrets."""
    summary: str
    """A one-line summary for Temporal's web UI."""
    event_groups: Sequence[EventGroup] | None
    """The event groups that the operation belongs to."""


class NexusClient:
    """A client for the operations of one service behind one endpoint. Create it with
    `workflow.create_nexus_client`.
    """

    def __init__(self, service: str, endpoint: str) -> None:
        self.service = service
        self.endpoint = endpoint

    @overload
    def start_operation(
        self, operation: Operation[..., R, Any], /, *args: Any, **options: Unpack[NexusOptions]
    ) -> NexusOperationHandle[R]: ...
    @overload
    def start_operation(
        self, operation: str, /, *args: Any, result_type: type[R], **options: Unpack[NexusOptions]
    ) -> NexusOperationHandle[R]: ...
    @overload
    def start_operation(
        self, operation: str, /, *args: Any, result_type: Any = None, **options: Unpack[NexusOptions]
    ) -> NexusOperationHandle[Any]: ...
    def start_operation(self, operation: Any, /, *args: Any, result_type: Any = None, **options: Any) -> Any:
        """Call an operation, identified by its object or its name, and wait until it has started.

        See `NexusOptions` for the options. Raise `NexusOperationError` if the operation cannot be started.
        """
        run = require_fiber("calling Nexus operation", str(operation)).run
        name, kind = self._resolve(operation, args, result_type)
        if unknown := options.keys() - NexusOptions.__annotations__.keys():
            raise UsageError(f"the call of a Nexus operation has no option {min(unknown)!r}")
        headers = {
            check_text(name, "a header").lower(): check_text(text, name)
            for name, text in options.pop("headers", {}).items()
        }

        def send(call: StartNexusOperationInput) -> NexusOperationHandle[Any]:
            return NexusOperationHandle(start_nexus(_command(run, call), kind))

        call = StartNexusOperationInput(
            endpoint=self.endpoint,
            service=self.service,
            operation=name,
            args=list(args),
            nexus_headers=headers,
            options=options,
            _proceed=send,
        )
        return send(call) if run.outbound is None else run.outbound.start_nexus_operation(call)

    @overload
    def execute_operation(
        self, operation: Operation[..., R, Any], /, *args: Any, **options: Unpack[NexusOptions]
    ) -> R: ...
    @overload
    def execute_operation(
        self, operation: str, /, *args: Any, result_type: type[R], **options: Unpack[NexusOptions]
    ) -> R: ...
    @overload
    def execute_operation(
        self, operation: str, /, *args: Any, result_type: Any = None, **options: Unpack[NexusOptions]
    ) -> Any: ...
    def execute_operation(self, operation: Any, /, *args: Any, **options: Any) -> Any:
        """Call an operation and wait for its result. Raise `NexusOperationError` if the operation fails."""
        return self.start_operation(operation, *args, **options).result()

    def _resolve(self, operation: Any, args: tuple[Any, ...], result_type: Any) -> tuple[str, Any]:
        """Return the operation's name and its result type."""
        if isinstance(operation, Operation):
            if operation.service != self.service:
                raise UsageError(f"{operation!r} does not belong to the service {self.service!r}")
            # This makes an error name the wrong argument.
            operation.signature.encode(default_converter, args)
            return operation.name, operation.result_type
        if not isinstance(operation, str) or not operation:
            raise UsageError("a Nexus operation must be an Operation or its name")
        if len(args) > 1:
            raise UsageError(f"a Nexus operation takes at most one argument, not {len(args)}")
        return operation, Any if result_type is None else result_type


def _command(run: LiveRun, call: StartNexusOperationInput) -> ScheduleNexusOperation:
    """Return the command for a call, after interceptors have changed it."""
    options, converter = call.options, run.converter
    if run.contextual:
        context = NexusSerializationContext(call.endpoint, call.service, call.operation)
        converter = in_context(run.settings.converter, context)
    cancels = options.get("cancellation_type", NexusOperationCancellationType.WAIT_COMPLETED)
    timeouts = ("schedule_to_close_timeout", "schedule_to_start_timeout", "start_to_close_timeout")
    return ScheduleNexusOperation(
        seq=0,
        endpoint=call.endpoint,
        service=call.service,
        operation=call.operation,
        argument=converter.encode(call.args[0] if call.args else None),
        headers=call.nexus_headers,
        cancellation_type=int(choice(NexusOperationCancellationType, cancels, "cancellation_type")),
        summary=run.converter.encode(check_text(options["summary"], "summary"))
        if options.get("summary")
        else None,
        event_groups=check_groups(options.get("event_groups")),
        **{name: optional_seconds(options.get(name), name) for name in timeouts},
    )


def create_nexus_client(service: Service | str, *, endpoint: str) -> NexusClient:
    """Return a client for a Nexus service behind an endpoint of the server. `service` is a service object or its name."""
    name = service.name if isinstance(service, Service) else service
    if not isinstance(name, str) or not name or not isinstance(endpoint, str) or not endpoint:
        raise UsageError("a Nexus client needs a service or its name, and the name of an endpoint")
    return NexusClient(name, endpoint)
