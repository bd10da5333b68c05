"""Functions for `async def` workflows, with temporalio's names: `await workflow.execute_activity(charge, order)`.

asyncio itself works as with temporalio: `asyncio.sleep` is a durable timer, and `gather`, `wait_for`, `timeout`,
`TaskGroup`, `Queue`, `Lock` and others run in a deterministic order. `wait` and `as_completed` in this module keep the order
of their arguments, unlike asyncio's versions, which use sets.

The decorators and functions are those of `hourglass.workflow`. Both styles can be combined: an `async def` handler in a
plain workflow, `hourglass.workflow.run_async` in plain code, `await hourglass.workflow.spawn(fn)` in a coroutine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import (
    Any,
    Literal,
    NoReturn,
    TypeVar,
    TypeVarTuple,
    overload,
)

from hourglass._evaluator import awaited
from hourglass._evaluator.awaited import ActivityHandle
from hourglass._evaluator.context import require_run
from hourglass._evaluator.definition import HandlerUnfinishedPolicy
from hourglass._evaluator.event_groups import block_of, check_groups
from hourglass._evaluator.fibers import require_fiber
from hourglass._evaluator.interception import (
    SleepInput,
)
from hourglass._evaluator.messages import (
    ContinueAsNewError,
    UnfinishedSignalHandlersWarning,
    UnfinishedUpdateHandlersWarning,
)
from hourglass._evaluator.options import (
    Duration,
    RetryPolicy,
    optional_seconds,
    seconds,
)
from hourglass._evaluator.specs import (
    ActivityCancellationType,
    ContinueAsNewVersioningBehavior,
    ParentClosePolicy,
    VersioningBehavior,
    WorkerDeploymentVersion,
)
from hourglass._evaluator.specs import ChildCancellationType as ChildWorkflowCancellationType
from hourglass.aio._activities import (
    ActivityConfig,
    LocalActivityConfig,
    execute_activity,
    execute_activity_class,
    execute_activity_method,
    execute_local_activity,
    execute_local_activity_class,
    execute_local_activity_method,
    start_activity,
    start_activity_class,
    start_activity_method,
    start_local_activity,
    start_local_activity_class,
    start_local_activity_method,
    start_step,
    step,
)
from hourglass.aio._children import (
    ChildWorkflowConfig,
    ChildWorkflowHandle,
    ExternalWorkflowHandle,
    bridging,
    execute_child_workflow,
    get_external_workflow_handle,
    get_external_workflow_handle_for,
    outward,
    signal_with_start_workflow,
    start_child_workflow,
)
from hourglass.aio._facts import (
    deprecate_patch,
    get_last_completion_result,
    is_failure_exception,
    memo_value,
    patched,
    set_current_details,
    upsert_memo,
    upsert_search_attributes,
)
from hourglass.aio._values import UNSET, PayloadConverter, positional_values, reject_intent
from hourglass.aio.common import Priority
from hourglass.converter import SearchAttributes
from hourglass.errors import NondeterminismError, UsageError
from hourglass.errors import ReadOnlyError as ReadOnlyContextError
from hourglass.workflow import (
    AsyncRunMethod,
    AsyncSignal,
    AsyncUpdate,
    AsyncWorkflow,
    EventGroup,
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
    create_event_group,
    current_update_info,
    dynamic_config,
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
    is_replaying,
    logger,
    memo,
    metric_meter,
    new_random,
    now,
    query,
    random,
    random_seed,
    register_random_seed_callback,
    run,
    search_attributes,
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
    uuid4,
    uuid7,
)
from hourglass.workflow import DynamicWorkflowConfig as _DynamicWorkflowConfig
from hourglass.workflow import continue_as_new as _continue_as_new
from hourglass.workflow import defn as _defn
from hourglass.workflow import last_failure as get_last_failure
from hourglass.workflow import payload_converter as _payload_converter
from hourglass.workflow import unsafe as _unsafe
from hourglass.workflow._info import BasicInfo, facts_of

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
    "DynamicWorkflowConfig",
    "EventGroup",
    "ExternalWorkflowHandle",
    "HandlerUnfinishedPolicy",
    "Info",
    "LocalActivityConfig",
    "NondeterminismError",
    "ParentClosePolicy",
    "ParentInfo",
    "Query",
    "ReadOnlyContextError",
    "RootInfo",
    "RunMethod",
    "Signal",
    "UnfinishedSignalHandlersWarning",
    "UnfinishedUpdateHandlersWarning",
    "Update",
    "UpdateInfo",
    "VersioningBehavior",
    "WorkerDeploymentVersion",
    "Workflow",
    "all_handlers_finished",
    "as_completed",
    "cancellation_reason",
    "continue_as_new",
    "create_event_group",
    "current_update_info",
    "defn",
    "deprecate_patch",
    "dynamic_config",
    "execute_activity",
    "execute_activity_class",
    "execute_activity_method",
    "execute_child_workflow",
    "execute_local_activity",
    "execute_local_activity_class",
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
    "signal_with_start_workflow",
    "sleep",
    "spawn",
    "start_activity",
    "start_activity_class",
    "start_activity_method",
    "start_child_workflow",
    "start_local_activity",
    "start_local_activity_class",
    "start_local_activity_method",
    "start_step",
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
    *,
    name: str | None = None,
    sandboxed: bool = True,
    dynamic: bool = False,
    failure_exception_types: Sequence[type[BaseException]] = (),
    versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED,
) -> Any:
    """Make a class with a `@workflow.run` method a workflow. `sandboxed` has no effect, because there is no sandbox."""
    decorate = _defn(
        name=name,
        dynamic=dynamic,
        failure_exceptions=failure_exception_types,
        versioning_behavior=versioning_behavior,
    )
    return decorate if cls is None else decorate(cls)


class DynamicWorkflowConfig(_DynamicWorkflowConfig):
    """The options that a dynamic workflow returns for a single run. They replace the options of its decorator."""

    def __init__(
        self,
        failure_exception_types: Sequence[type[BaseException]] | None = None,
        versioning_behavior: VersioningBehavior = VersioningBehavior.UNSPECIFIED,
    ) -> None:
        super().__init__(failure_exceptions=failure_exception_types, versioning_behavior=versioning_behavior)


def continue_as_new(
    arg: Any = UNSET,
    *positional: Any,
    args: Sequence[Any] = (),
    workflow: Any = None,
    task_queue: str | None = None,
    run_timeout: Duration | None = None,
    task_timeout: Duration | None = None,
    retry_policy: RetryPolicy | None = None,
    memo: Mapping[str, Any] | None = None,
    search_attributes: SearchAttributes | None = None,
    versioning_intent: None = None,
    initial_versioning_behavior: ContinueAsNewVersioningBehavior | None = None,
    backoff_start_interval: Duration | None = None,
    event_groups: Sequence[EventGroup] | None = None,
) -> NoReturn:
    """End this run and start a new one with these arguments and an empty history."""
    reject_intent(versioning_intent)
    _continue_as_new(
        *positional_values(arg, positional, args),
        workflow=workflow,
        task_queue=task_queue or "",
        run_timeout=run_timeout,
        task_timeout=task_timeout,
        retry_policy=retry_policy,
        memo=memo,
        search_attributes=search_attributes,
        initial_versioning_behavior=initial_versioning_behavior
        or ContinueAsNewVersioningBehavior.UNSPECIFIED,
        backoff_start_interval=backoff_start_interval,
        event_groups=event_groups,
    )


async def sleep(
    duration: Duration, *, summary: str | None = None, event_groups: Sequence[EventGroup] | None = None
) -> None:
    """Wait for a duration, from seconds to months, with a durable timer, like `asyncio.sleep`. `summary` describes the
    timer.
    """
    if event_groups is not None:
        with block_of(check_groups(event_groups)):
            await sleep(duration, summary=summary)
        return
    length = seconds(duration, "the duration of a sleep")
    run = require_fiber("sleeping").run

    async def wait_so_long(call: SleepInput) -> None:
        await awaited.sleep(call.duration, call.summary)

    call = SleepInput(duration=length, summary=summary or "", _proceed=bridging(wait_so_long))
    await outward(run, wait_so_long, call, "sleep")


async def wait_condition(
    fn: Callable[[], object],
    *,
    timeout: Duration | None = None,
    timeout_summary: str | None = None,
    event_groups: Sequence[EventGroup] | None = None,
) -> None:
    """Wait until a function returns a true value. Raise `TimeoutError` after `timeout`.

    The function is called repeatedly while the workflow runs, so it must be fast and must not have side effects.
    """
    if event_groups is not None:
        with block_of(check_groups(event_groups)):
            await wait_condition(fn, timeout=timeout, timeout_summary=timeout_summary)
        return
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
    """Like `asyncio.wait`, but return lists instead of sets: done and pending, both in the order of the arguments."""
    futures = list(fs)
    done, _ = await asyncio.wait(
        futures, timeout=optional_seconds(timeout, "the timeout of workflow.wait"), return_when=return_when
    )
    return [future for future in futures if future in done], [
        future for future in futures if future not in done
    ]


def as_completed(
    fs: Iterable[Awaitable[T]], *, timeout: Duration | None = None
) -> Iterator[Coroutine[Any, Any, T]]:
    """Like `asyncio.as_completed`, but start coroutines in the order of the arguments instead of the order of a set."""
    loop = require_fiber("workflow.as_completed").run.loop
    tasks: list[asyncio.Future[T]] = [asyncio.ensure_future(awaitable, loop=loop) for awaitable in fs]
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


@dataclass(frozen=True, kw_only=True)
class Info(BasicInfo):
    """The identity and state of a workflow. Methods return values that change during the run, as of the current workflow
    task.
    """

    def is_continue_as_new_suggested(self) -> bool:
        """Return whether the workflow should continue as new, because its history is long."""
        return require_run("workflow.info").facts.continue_as_new_suggested

    def is_target_worker_deployment_version_changed(self) -> bool:
        """Return whether this pinned run would be assigned to another version if it started now."""
        return require_run("workflow.info").facts.target_version_changed

    def get_current_history_length(self) -> int:
        """Return the number of events in the history."""
        return require_run("workflow.info").facts.history_length

    def get_current_history_size(self) -> int:
        """Return the size of the history in bytes."""
        return require_run("workflow.info").facts.history_size

    def get_current_deployment_version(self) -> WorkerDeploymentVersion | None:
        """Return the version of the worker that executes the current workflow task; None if the worker is unversioned."""
        return require_run("workflow.info").facts.deployment_version

    @property
    def priority(self) -> Priority:
        """The workflow's priority."""
        return Priority(self.priority_key or None, self.fairness_key or None, self.fairness_weight or None)


def info() -> Info:
    """Return the identity and state of this workflow."""
    return Info(**facts_of(require_run("workflow.info")))


def payload_converter() -> PayloadConverter:
    """Return the payload converter of this run."""
    return PayloadConverter(_payload_converter())


class unsafe:
    """The functions of temporalio's `workflow.unsafe`. Most of them have no effect, because there is no sandbox."""

    @staticmethod
    def is_replaying() -> bool:
        """Return whether the code is currently being replayed."""
        return is_replaying()

    @staticmethod
    def is_replaying_history_events() -> bool:
        """Return whether the code is currently being replayed. A query does not count as a replay."""
        return is_replaying()

    @staticmethod
    def is_read_only() -> bool:
        """Return whether the current code must not change the state of the run: in a query, a validator or a condition."""
        return bool(require_run("workflow.unsafe.is_read_only").read_only)

    @staticmethod
    def in_sandbox() -> Literal[False]:
        """Return False, because there is no sandbox."""
        return False

    @staticmethod
    @contextmanager
    def imports_passed_through() -> Iterator[None]:
        """Do nothing, because modules are imported once for all runs."""
        yield

    @staticmethod
    def sandbox_unrestricted() -> AbstractContextManager[None]:
        """Permit calls that the call watcher would report. You are responsible for their determinism."""
        return _unsafe()
