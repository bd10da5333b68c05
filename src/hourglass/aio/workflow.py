"""What `async def` workflows call, under temporalio's names: `await workflow.execute_activity(charge, order)`.

asyncio itself works as it does there: `asyncio.sleep` is a durable timer, and `gather`, `wait_for`, `timeout`, `TaskGroup`,
`Queue`, `Lock` and the others take turns in a deterministic order, the same as under temporalio. `wait` and `as_completed` here
keep the order that they are given, which asyncio's own, being made with sets, do not.

The decorators and facts are those of `hourglass.workflow`, and the two may be mixed: an `async def` handler in a plain
workflow, `hourglass.workflow.run_async` in plain code, `await hourglass.workflow.spawn(fn)` in a coroutine.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import (
    Any,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    Unpack,
    cast,
    overload,
)

import msgspec

from hourglass._engine import awaited
from hourglass._engine.awaited import ActivityHandle
from hourglass._engine.commands import SignalExternalWorkflow
from hourglass._engine.context import LiveRun, require_run
from hourglass._engine.definition import HandlerUnfinishedPolicy
from hourglass._engine.fibers import Bridge, bridged_wait, require_fiber
from hourglass._engine.interception import (
    SignalChildWorkflowInput,
    SignalExternalWorkflowInput,
    SleepInput,
    StartChildWorkflowInput,
)
from hourglass._engine.messages import ContinueAsNewError
from hourglass._engine.operations import drop_step, keep_step, start_intercepted
from hourglass._engine.options import (
    Duration,
    RetryPolicy,
    check_text,
    optional_seconds,
    seconds,
)
from hourglass._engine.specs import (
    ActivityCancellationType,
    IdReusePolicy,
    ParentClosePolicy,
)
from hourglass._engine.specs import ChildCancellationType as ChildWorkflowCancellationType
from hourglass._engine.versions import (
    ContinueAsNewVersioningBehavior,
    VersioningBehavior,
    WorkerDeploymentVersion,
)
from hourglass.activity import Activity
from hourglass.activity._options import FOREIGN_DEFAULTS, settings_with
from hourglass.aio._values import given_options, given_values
from hourglass.aio.common import Priority
from hourglass.converter import SearchAttributes
from hourglass.errors import NondeterminismError, UsageError
from hourglass.errors import ReadOnlyError as ReadOnlyContextError
from hourglass.workflow import (
    AsyncRunMethod,
    AsyncSignal,
    AsyncUpdate,
    AsyncWorkflow,
    ParentInfo,
    Query,
    RootInfo,
    RunMethod,
    Signal,
    Update,
    UpdateInfo,
    Workflow,
    all_handlers_finished,
    cancellation_reason,
    current_update_info,
    deprecate_patch,
    get_current_details,
    get_dynamic_query_handler,
    get_dynamic_signal_handler,
    get_dynamic_update_handler,
    get_query_handler,
    get_signal_handler,
    get_update_handler,
    has_last_completion_result,
    in_workflow,
    init,
    instance,
    is_failure_exception,
    is_replaying,
    logger,
    memo,
    memo_value,
    metric_meter,
    new_random,
    now,
    patched,
    payload_converter,
    query,
    random,
    random_seed,
    register_random_seed_callback,
    run,
    search_attributes,
    set_current_details,
    set_dynamic_query_handler,
    set_dynamic_signal_handler,
    set_dynamic_update_handler,
    set_query_handler,
    set_signal_handler,
    set_update_handler,
    signal,
    spawn,
    time,
    time_ns,
    update,
    upsert_memo,
    upsert_search_attributes,
    uuid4,
    uuid7,
)
from hourglass.workflow import continue_as_new as _continue_as_new
from hourglass.workflow import defn as _defn
from hourglass.workflow import last_completion_result as get_last_completion_result
from hourglass.workflow import last_failure as get_last_failure
from hourglass.workflow import unsafe as _unsafe
from hourglass.workflow._calls import StepOptions, begin_step, check_step
from hourglass.workflow._children import check_options, child_command
from hourglass.workflow._facts import BasicInfo, facts_of
from hourglass.workflow._references import given_message, given_workflow

__all__ = [
    "ActivityCancellationType",
    "ActivityConfig",
    "ActivityHandle",
    "AsyncRunMethod",
    "AsyncSignal",
    "AsyncUpdate",
    "AsyncWorkflow",
    "ChildWorkflowCancellationType",
    "ChildWorkflowConfig",
    "ChildWorkflowHandle",
    "ContinueAsNewError",
    "ContinueAsNewVersioningBehavior",
    "ExternalWorkflowHandle",
    "HandlerUnfinishedPolicy",
    "Info",
    "NondeterminismError",
    "ParentClosePolicy",
    "ParentInfo",
    "Query",
    "ReadOnlyContextError",
    "RootInfo",
    "RunMethod",
    "Signal",
    "Update",
    "UpdateInfo",
    "VersioningBehavior",
    "WorkerDeploymentVersion",
    "Workflow",
    "all_handlers_finished",
    "as_completed",
    "cancellation_reason",
    "continue_as_new",
    "current_update_info",
    "defn",
    "deprecate_patch",
    "execute_activity",
    "execute_activity_method",
    "execute_child_workflow",
    "execute_local_activity",
    "execute_local_activity_method",
    "get_current_details",
    "get_dynamic_query_handler",
    "get_dynamic_signal_handler",
    "get_dynamic_update_handler",
    "get_external_workflow_handle",
    "get_external_workflow_handle_for",
    "get_last_completion_result",
    "get_last_failure",
    "get_query_handler",
    "get_signal_handler",
    "get_update_handler",
    "has_last_completion_result",
    "in_workflow",
    "info",
    "init",
    "instance",
    "is_failure_exception",
    "logger",
    "memo",
    "memo_value",
    "metric_meter",
    "new_random",
    "now",
    "patched",
    "payload_converter",
    "query",
    "random",
    "random_seed",
    "register_random_seed_callback",
    "run",
    "search_attributes",
    "set_current_details",
    "set_dynamic_query_handler",
    "set_dynamic_signal_handler",
    "set_dynamic_update_handler",
    "set_query_handler",
    "set_signal_handler",
    "set_update_handler",
    "signal",
    "sleep",
    "spawn",
    "start_activity",
    "start_activity_method",
    "start_child_workflow",
    "start_local_activity",
    "start_local_activity_method",
    "step",
    "time",
    "time_ns",
    "unsafe",
    "update",
    "upsert_memo",
    "upsert_search_attributes",
    "uuid4",
    "uuid7",
    "wait",
    "wait_condition",
]

K = TypeVar("K", bound=type)
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound="asyncio.Future[Any]")
Ts = TypeVarTuple("Ts")


# --- definitions ------------------------------------------------------------------------------------------------------


@overload
def defn(cls: K, /) -> K: ...
@overload
def defn(
    *,
    name: str | None = None,
    sandboxed: bool = True,
    dynamic: bool = False,
    failure_exception_types: Sequence[type[BaseException]] = (),
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED,
) -> Callable[[K], K]: ...
def defn(
    cls: Any = None,
    /,
    *,
    name: str | None = None,
    sandboxed: bool = True,
    dynamic: bool = False,
    failure_exception_types: Sequence[type[BaseException]] = (),
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED,
) -> Any:
    """Make a workflow of a class with a `@workflow.run` method. `sandboxed` says nothing here: there is no sandbox."""
    decorate = _defn(
        name=name,
        dynamic=dynamic,
        failure_exceptions=failure_exception_types,
        versioning_behavior=versioning_behavior,
    )
    return decorate if cls is None else decorate(cls)


# --- activities -------------------------------------------------------------------------------------------------------


class ActivityConfig(TypedDict, total=False):
    """What can be said about one call of an activity. A duration is a `timedelta` or seconds."""

    task_queue: str | None
    schedule_to_close_timeout: Duration | None
    schedule_to_start_timeout: Duration | None
    start_to_close_timeout: Duration | None
    heartbeat_timeout: Duration | None
    local_retry_threshold: Duration | None
    retry_policy: RetryPolicy | None
    cancellation_type: ActivityCancellationType
    activity_id: str | None
    summary: str | None
    priority: Priority


class _ExecuteActivity(Protocol):
    @overload
    async def __call__(
        self,
        activity: str,
        /,
        *given: Any,
        args: Sequence[Any] = (),
        result_type: Any = Any,
        **options: Unpack[ActivityConfig],
    ) -> Any: ...
    @overload
    async def __call__(
        self, activity: Callable[[*Ts], Awaitable[R]], /, *given: *Ts, **options: Unpack[ActivityConfig]
    ) -> R: ...
    @overload
    async def __call__(
        self, activity: Callable[[*Ts], R], /, *given: *Ts, **options: Unpack[ActivityConfig]
    ) -> R: ...
    @overload
    async def __call__(
        self,
        activity: Callable[..., Awaitable[R]],
        /,
        *,
        args: Sequence[Any],
        **options: Unpack[ActivityConfig],
    ) -> R: ...
    @overload
    async def __call__(
        self, activity: Callable[..., R], /, *, args: Sequence[Any], **options: Unpack[ActivityConfig]
    ) -> R: ...


class _StartActivity(Protocol):
    @overload
    def __call__(
        self,
        activity: str,
        /,
        *given: Any,
        args: Sequence[Any] = (),
        result_type: Any = Any,
        **options: Unpack[ActivityConfig],
    ) -> ActivityHandle[Any]: ...
    @overload
    def __call__(
        self, activity: Callable[[*Ts], Awaitable[R]], /, *given: *Ts, **options: Unpack[ActivityConfig]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: Callable[[*Ts], R], /, *given: *Ts, **options: Unpack[ActivityConfig]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self,
        activity: Callable[..., Awaitable[R]],
        /,
        *,
        args: Sequence[Any],
        **options: Unpack[ActivityConfig],
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: Callable[..., R], /, *, args: Sequence[Any], **options: Unpack[ActivityConfig]
    ) -> ActivityHandle[R]: ...


class _StartMethod(Protocol):
    """A method of a class whose instance the worker has: `Billing.charge`, its `self` left out."""

    @overload
    def __call__(
        self, activity: Callable[[Any, *Ts], Awaitable[R]], /, *given: *Ts, **options: Unpack[ActivityConfig]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: Callable[[Any, *Ts], R], /, *given: *Ts, **options: Unpack[ActivityConfig]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self,
        activity: Callable[..., Awaitable[R]],
        /,
        *,
        args: Sequence[Any],
        **options: Unpack[ActivityConfig],
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: Callable[..., R], /, *, args: Sequence[Any], **options: Unpack[ActivityConfig]
    ) -> ActivityHandle[R]: ...


class _ExecuteMethod(Protocol):
    @overload
    async def __call__(
        self, activity: Callable[[Any, *Ts], Awaitable[R]], /, *given: *Ts, **options: Unpack[ActivityConfig]
    ) -> R: ...
    @overload
    async def __call__(
        self, activity: Callable[[Any, *Ts], R], /, *given: *Ts, **options: Unpack[ActivityConfig]
    ) -> R: ...
    @overload
    async def __call__(
        self,
        activity: Callable[..., Awaitable[R]],
        /,
        *,
        args: Sequence[Any],
        **options: Unpack[ActivityConfig],
    ) -> R: ...
    @overload
    async def __call__(
        self, activity: Callable[..., R], /, *, args: Sequence[Any], **options: Unpack[ActivityConfig]
    ) -> R: ...


def _begin(
    activity: Any, given: tuple[Any, ...], options: dict[str, Any], *, local: bool
) -> ActivityHandle[Any]:
    values = given_values(given, options.pop("args", ()))
    said = given_options(options)
    if isinstance(activity, Activity):
        chosen = activity.options(**said) if said else activity
        run = require_fiber("starting activity", activity.name).run
        return cast(
            ActivityHandle[Any], chosen._start(run, values, {}, local=local, start=awaited.start_activity)
        )
    if not isinstance(activity, str):
        raise UsageError(
            f"an activity is given by its name or as a function decorated with @activity.defn, not {activity!r}"
        )
    run = require_fiber("starting activity", activity).run
    result_type = said.pop("result_type", Any)
    settings = settings_with(FOREIGN_DEFAULTS, said, f"activity {activity}")
    if run.outbound is None:
        payloads = run.converter.encode_all(values)
        return awaited.start_activity(activity, payloads, settings, result_type, local=local)
    return cast(
        ActivityHandle[Any],
        start_intercepted(
            run.outbound,
            activity,
            list(values),
            settings,
            result_type,
            run.converter.encode_all,
            local=local,
            start=awaited.start_activity,
        ),
    )


def _start_activity(activity: Any, /, *given: Any, **options: Any) -> ActivityHandle[Any]:
    """Begin an activity; the handle is a task of asyncio's."""
    return _begin(activity, given, options, local=False)


async def _execute_activity(activity: Any, /, *given: Any, **options: Any) -> Any:
    """Run an activity and wait for its result."""
    return await _begin(activity, given, options, local=False)


def _start_local_activity(activity: Any, /, *given: Any, **options: Any) -> ActivityHandle[Any]:
    """Begin a short activity on this very worker; the handle is a task of asyncio's."""
    return _begin(activity, given, options, local=True)


async def _execute_local_activity(activity: Any, /, *given: Any, **options: Any) -> Any:
    """Run a short activity on this very worker, within the workflow task, and wait for its result."""
    return await _begin(activity, given, options, local=True)


start_activity = cast(_StartActivity, _start_activity)
execute_activity = cast(_ExecuteActivity, _execute_activity)
start_local_activity = cast(_StartActivity, _start_local_activity)
execute_local_activity = cast(_ExecuteActivity, _execute_local_activity)
start_activity_method = cast(_StartMethod, _start_activity)
execute_activity_method = cast(_ExecuteMethod, _execute_activity)
start_local_activity_method = cast(_StartMethod, _start_local_activity)
execute_local_activity_method = cast(_ExecuteMethod, _execute_local_activity)


@overload
async def step(
    fn: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, name: str | None = None, **options: Unpack[StepOptions]
) -> R: ...
@overload
async def step(
    fn: Callable[[*Ts], R], /, *args: *Ts, name: str | None = None, **options: Unpack[StepOptions]
) -> R: ...
async def step(fn: Any, /, *args: Any, name: str | None = None, **options: Any) -> Any:  # type: ignore[misc]
    """Run any function durably, without a declaration, as `hourglass.workflow.step` does. Not in temporalio."""
    run = require_fiber("workflow.step").run
    if isinstance(fn, Activity):
        check_step(options, fn, name)
        return await _begin(fn, args, options, local=True)
    kept = ""

    def start(definition: Any, type: str, arguments: Any, settings: Any, *rest: Any, **more: Any) -> Any:
        nonlocal kept
        kept = keep_step(run, definition, settings)
        said = msgspec.structs.replace(settings, activity_id=kept)
        return awaited.start_activity(type, arguments, said, *rest, **{**more, "local": True})

    try:
        result = await begin_step(run, fn, args, name, options, start)
    except Exception:
        drop_step(run, kept)
        raise
    # Not in a `finally`: a coroutine that is dropped from the cache still wants the step's result.
    drop_step(run, kept)
    return result


# --- children ---------------------------------------------------------------------------------------------------------


class ChildWorkflowConfig(TypedDict, total=False):
    """How a child workflow is started. A duration is a `timedelta` or seconds."""

    id: str | None
    task_queue: str | None
    cancellation_type: ChildWorkflowCancellationType
    parent_close_policy: ParentClosePolicy
    execution_timeout: Duration | None
    run_timeout: Duration | None
    task_timeout: Duration | None
    id_reuse_policy: IdReusePolicy
    retry_policy: RetryPolicy | None
    cron_schedule: str
    memo: Mapping[str, Any] | None
    search_attributes: SearchAttributes | None
    static_summary: str | None
    static_details: str | None
    priority: Priority


class ChildWorkflowHandle(awaited.ChildHandle[R], Generic[R]):
    """A child workflow that has started: a task of asyncio's whose result is the child's, and which can be signalled."""

    @overload
    async def signal(self, signal: str, /, *given: Any, args: Sequence[Any] = ()) -> None: ...
    @overload
    async def signal(self, signal: Callable[[*Ts], Any], /, *given: *Ts) -> None: ...
    @overload
    async def signal(self, signal: Callable[..., Any], /, *, args: Sequence[Any]) -> None: ...
    async def signal(self, signal: Any, /, *given: Any, args: Sequence[Any] = ()) -> None:  # type: ignore[misc]
        """Send the child a signal and wait until it is delivered."""
        run, message = self._run, given_message("signal", signal)

        async def send(call: SignalChildWorkflowInput) -> None:
            await awaited.signal_external(
                SignalExternalWorkflow(
                    seq=0,
                    workflow_id=call.child_workflow_id,
                    signal_name=call.signal,
                    is_child=True,
                    arguments=message.encode(run.converter, call.args),
                    headers=call.headers,
                )
            )

        call = SignalChildWorkflowInput(
            signal=message.name,
            child_workflow_id=self.id,
            args=list(given_values(given, args)),
            _proceed=_bridging(send),
        )
        await _outward(run, send, call, "signal_child_workflow")

    def __repr__(self) -> str:
        return f"<child workflow {self._command.workflow_type} {self.id}>"


@overload
async def start_child_workflow(
    workflow: str,
    /,
    *given: Any,
    args: Sequence[Any] = (),
    result_type: Any = None,
    **options: Unpack[ChildWorkflowConfig],
) -> ChildWorkflowHandle[Any]: ...
@overload
async def start_child_workflow(
    workflow: Callable[[*Ts], R], /, *given: *Ts, **options: Unpack[ChildWorkflowConfig]
) -> ChildWorkflowHandle[R]: ...
@overload
async def start_child_workflow(
    workflow: Callable[..., R], /, *, args: Sequence[Any], **options: Unpack[ChildWorkflowConfig]
) -> ChildWorkflowHandle[R]: ...
async def start_child_workflow(  # type: ignore[misc]
    workflow: Any, /, *given: Any, args: Sequence[Any] = (), result_type: Any = None, **options: Any
) -> Any:
    """Start a child workflow, given as its run method or its name, and wait until it has started.

    Raises `WorkflowAlreadyStartedError` where its id is taken. `result_type` is for workflows given by name.
    """
    live = require_fiber("starting a child workflow").run
    target = given_workflow(workflow)
    return_type = target.return_type if result_type is None else result_type
    said = given_options(options)
    check_options(said, f"workflow {target.name}")

    async def start(call: StartChildWorkflowInput) -> Any:
        payloads = target.encode(live.converter, call.args)
        command = child_command(live, call.workflow, payloads, call.options, call.headers)
        return await awaited.start_child(command, return_type, ChildWorkflowHandle)

    call = StartChildWorkflowInput(
        workflow=target.name, args=list(given_values(given, args)), options=said, _proceed=_bridging(start)
    )
    return await _outward(live, start, call, "start_child_workflow")


@overload
async def execute_child_workflow(
    workflow: str,
    /,
    *given: Any,
    args: Sequence[Any] = (),
    result_type: Any = None,
    **options: Unpack[ChildWorkflowConfig],
) -> Any: ...
@overload
async def execute_child_workflow(
    workflow: Callable[[*Ts], R], /, *given: *Ts, **options: Unpack[ChildWorkflowConfig]
) -> R: ...
@overload
async def execute_child_workflow(
    workflow: Callable[..., R], /, *, args: Sequence[Any], **options: Unpack[ChildWorkflowConfig]
) -> R: ...
async def execute_child_workflow(workflow: Any, /, *given: Any, **options: Any) -> Any:  # type: ignore[misc]
    """Run a child workflow and wait for its result. Raises `ChildWorkflowError` if it did not complete."""
    return await (await start_child_workflow(workflow, *given, **options))


# --- other workflows --------------------------------------------------------------------------------------------------


class ExternalWorkflowHandle(Generic[T]):
    """A workflow that is not a child of this one. Made by `get_external_workflow_handle`."""

    def __init__(self, id: str, run_id: str | None) -> None:
        self.id = id
        self.run_id = run_id

    @overload
    async def signal(self, signal: str, /, *given: Any, args: Sequence[Any] = ()) -> None: ...
    @overload
    async def signal(self, signal: Callable[[*Ts], Any], /, *given: *Ts) -> None: ...
    @overload
    async def signal(self, signal: Callable[..., Any], /, *, args: Sequence[Any]) -> None: ...
    async def signal(self, signal: Any, /, *given: Any, args: Sequence[Any] = ()) -> None:  # type: ignore[misc]
        """Send a signal and wait until it is delivered. Raises `ApplicationError` where there is no such workflow."""
        run = require_fiber("signalling another workflow").run
        message = given_message("signal", signal)

        async def send(call: SignalExternalWorkflowInput) -> None:
            await awaited.signal_external(
                SignalExternalWorkflow(
                    seq=0,
                    workflow_id=call.workflow_id,
                    run_id=call.workflow_run_id or "",
                    signal_name=call.signal,
                    arguments=message.encode(run.converter, call.args),
                    headers=call.headers,
                )
            )

        call = SignalExternalWorkflowInput(
            signal=message.name,
            workflow_id=self.id,
            workflow_run_id=self.run_id,
            args=list(given_values(given, args)),
            _proceed=_bridging(send),
        )
        await _outward(run, send, call, "signal_external_workflow")

    async def cancel(self, reason: str = "") -> None:
        """Ask the workflow to cancel and wait until the request is delivered, not until it has cancelled."""
        await awaited.cancel_external(self.id, self.run_id or "", check_text(reason, "reason"))

    def __repr__(self) -> str:
        return f"<external workflow {self.id}>"


def get_external_workflow_handle(
    workflow_id: str, *, run_id: str | None = None
) -> ExternalWorkflowHandle[Any]:
    """A handle to another workflow, or with `run_id` to that run alone. Does not ask whether it exists."""
    require_fiber("workflow.get_external_workflow_handle")
    if not isinstance(workflow_id, str) or not workflow_id:
        raise UsageError("the id of a workflow must be a text that is not empty")
    check_text(workflow_id, "the id of a workflow")
    check_text(run_id or "", "run_id")
    return ExternalWorkflowHandle(workflow_id, run_id)


def get_external_workflow_handle_for(
    workflow: Callable[..., Any], workflow_id: str, *, run_id: str | None = None
) -> ExternalWorkflowHandle[Any]:
    """The same; `workflow` is for readers alone."""
    return get_external_workflow_handle(workflow_id, run_id=run_id)


def _bridging(send: Callable[[Any], Coroutine[Any, Any, T]]) -> Callable[[Any], T]:
    """The end of a chain of interceptors, which are plain, where the call itself is a coroutine."""
    return lambda call: cast(T, bridged_wait(send(call)))


async def _outward(run: LiveRun, send: Callable[[Any], Coroutine[Any, Any, T]], call: Any, method: str) -> T:
    """A call that goes out, through the interceptors where there are any; without a turn of its own."""
    if run.outbound is None:
        return await send(call)
    chain = functools.partial(getattr(run.outbound, method), call)
    return cast(T, await Bridge(run.loop.fiber, chain).drive())


# --- the next run -----------------------------------------------------------------------------------------------------


def continue_as_new(
    *given: Any,
    args: Sequence[Any] = (),
    workflow: Any = None,
    task_queue: str | None = None,
    run_timeout: Duration | None = None,
    task_timeout: Duration | None = None,
    retry_policy: RetryPolicy | None = None,
    memo: Mapping[str, Any] | None = None,
    search_attributes: SearchAttributes | None = None,
    initial_versioning_behavior: ContinueAsNewVersioningBehavior = ContinueAsNewVersioningBehavior.UNSPECIFIED,
    backoff_start_interval: Duration | None = None,
) -> NoReturn:
    """End this run and begin a new one with these arguments and an empty history."""
    _continue_as_new(
        *given_values(given, args),
        workflow=workflow,
        task_queue=task_queue or "",
        run_timeout=run_timeout,
        task_timeout=task_timeout,
        retry_policy=retry_policy,
        memo=memo,
        search_attributes=search_attributes,
        initial_versioning_behavior=initial_versioning_behavior,
        backoff_start_interval=backoff_start_interval,
    )


# --- waiting ----------------------------------------------------------------------------------------------------------


async def sleep(duration: Duration, *, summary: str | None = None) -> None:
    """Wait, for seconds or for months: a durable timer, as `asyncio.sleep` is one. `summary` is shown with it."""
    length = seconds(duration, "the duration of a sleep")
    run = require_fiber("sleeping").run

    async def wait_so_long(call: SleepInput) -> None:
        await awaited.sleep(call.duration, call.summary)

    call = SleepInput(duration=length, summary=summary or "", _proceed=_bridging(wait_so_long))
    await _outward(run, wait_so_long, call, "sleep")


async def wait_condition(
    fn: Callable[[], object], *, timeout: Duration | None = None, timeout_summary: str | None = None
) -> None:
    """Wait until a function returns something true; after `timeout` raise `TimeoutError`.

    The function is called again and again while the workflow runs: it must only look, quickly, and change nothing.
    """
    if not callable(fn):
        raise UsageError(
            f"workflow.wait_condition takes a function, such as `lambda: ready`, not {type(fn).__name__}"
        )
    limit = optional_seconds(timeout, "the timeout of workflow.wait_condition")
    await awaited.wait_condition(fn, limit, timeout_summary or "")


async def wait(
    fs: Iterable[F],
    *,
    timeout: Duration | None = None,
    return_when: str = asyncio.ALL_COMPLETED,
) -> tuple[list[F], list[F]]:
    """As `asyncio.wait`, with lists in the place of sets: what is done and what is not, each in the given order."""
    futures = list(fs)
    done, _ = await asyncio.wait(
        futures, timeout=optional_seconds(timeout, "the timeout of workflow.wait"), return_when=return_when
    )
    return [each for each in futures if each in done], [each for each in futures if each not in done]


def as_completed(
    fs: Iterable[Awaitable[T]], *, timeout: Duration | None = None
) -> Iterator[Coroutine[Any, Any, T]]:
    """As `asyncio.as_completed`; coroutines begin in the given order, and not in that of a set."""
    loop = require_fiber("workflow.as_completed").run.loop
    tasks: list[asyncio.Future[T]] = [asyncio.ensure_future(each, loop=loop) for each in fs]
    limit = optional_seconds(timeout, "the timeout of workflow.as_completed")
    ended: asyncio.Queue[asyncio.Future[T] | None] = asyncio.Queue()
    open_tasks = list(tasks)

    def expire() -> None:
        for task in open_tasks:
            task.remove_done_callback(on_done)
            ended.put_nowait(None)
        open_tasks.clear()

    def on_done(task: asyncio.Future[T]) -> None:
        if open_tasks:
            open_tasks.remove(task)
            ended.put_nowait(task)
            if not open_tasks and timer is not None:
                timer.cancel()

    async def next_one() -> T:
        task = await ended.get()
        if task is None:
            raise TimeoutError
        return task.result()

    for task in tasks:
        task.add_done_callback(on_done)
    timer = None if limit is None or not tasks else loop.call_later(limit, expire)
    for _ in tasks:
        yield next_one()


# --- facts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Info(BasicInfo):
    """Who a workflow is, and where it stands. What changes while it runs is asked for by methods, as of the current task."""

    def is_continue_as_new_suggested(self) -> bool:
        """Whether the history has grown so long that the workflow should continue as new."""
        return require_run("workflow.info").facts.continue_as_new_suggested

    def is_target_worker_deployment_version_changed(self) -> bool:
        """Whether this run, which is pinned, would go to another version were it begun now."""
        return require_run("workflow.info").facts.target_version_changed

    def get_current_history_length(self) -> int:
        """How many events the history has."""
        return require_run("workflow.info").facts.history_length

    def get_current_history_size(self) -> int:
        """How many bytes the history has."""
        return require_run("workflow.info").facts.history_size

    def get_current_deployment_version(self) -> WorkerDeploymentVersion | None:
        """The version of the worker that handles the current workflow task; None where it has none."""
        return require_run("workflow.info").facts.deployment_version

    @property
    def priority(self) -> Priority:
        """The workflow's priority."""
        return Priority(self.priority_key or None)


def info() -> Info:
    """Who this workflow is, and where it stands."""
    return Info(**facts_of(require_run("workflow.info")))


class unsafe:
    """What temporalio keeps under this name. There is no sandbox here: most of it does nothing."""

    @staticmethod
    def is_replaying() -> bool:
        """Whether the code is catching up with its history right now."""
        return is_replaying()

    @staticmethod
    def is_replaying_history_events() -> bool:
        """The same: queries are no part of it."""
        return is_replaying()

    @staticmethod
    def is_read_only() -> bool:
        """Whether this is a query, a validator or a condition, which must only look."""
        return bool(require_run("workflow.unsafe.is_read_only").read_only)

    @staticmethod
    def in_sandbox() -> Literal[False]:
        """Never: there is none."""
        return False

    @staticmethod
    @contextmanager
    def imports_passed_through() -> Iterator[None]:
        """Nothing to do: modules are imported once, for all runs."""
        yield

    @staticmethod
    def sandbox_unrestricted() -> AbstractContextManager[None]:
        """Allow what the call watcher reports; you vouch that it changes nothing."""
        return _unsafe()
