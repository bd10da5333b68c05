"""Activities and steps for `async def` workflows, with temporalio's names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, Protocol, TypedDict, TypeVar, TypeVarTuple, Unpack, cast, overload

import msgspec

from hourglass._evaluator import awaited
from hourglass._evaluator.awaited import ActivityHandle
from hourglass._evaluator.context import LiveRun
from hourglass._evaluator.event_groups import EventGroup
from hourglass._evaluator.fibers import require_fiber
from hourglass._evaluator.operations import drop_step, keep_step
from hourglass._evaluator.options import Duration, RetryPolicy
from hourglass._evaluator.specs import ActivityCancellationType
from hourglass.activity import Activity
from hourglass.activity._definition import activity_of
from hourglass.aio._values import (
    UNSET,
    Listed,
    Named,
    NamedAs,
    Single,
    chosen_options,
    positional_values,
    takes,
)
from hourglass.aio.common import Priority
from hourglass.errors import UsageError
from hourglass.workflow._calls import StepOptions, begin_named, begin_step, check_step

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ActivityConfig(TypedDict, total=False):
    """Options for a single activity call. A duration is a `timedelta` or seconds."""

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
    event_groups: Sequence[EventGroup] | None
    priority: Priority
    versioning_intent: None


class _NamedCall(ActivityConfig, Named, total=False): ...


class _NamedAsCall(ActivityConfig, NamedAs[R], Generic[R]): ...


class _ListedCall(ActivityConfig, Listed): ...


class _SingleCall(ActivityConfig, Single[T], Generic[T]): ...


LocalActivityConfig = ActivityConfig
"""Options for a single local activity call."""


class _ExecuteActivity(Protocol):
    @overload
    async def __call__(self, activity: str, *positional: Any, **options: Unpack[_NamedAsCall[R]]) -> R: ...
    @overload
    async def __call__(self, activity: str, *positional: Any, **options: Unpack[_NamedCall]) -> Any: ...
    @overload
    async def __call__(
        self, activity: Callable[[*Ts], Awaitable[R]], *positional: *Ts, **options: Unpack[ActivityConfig]
    ) -> R: ...
    @overload
    async def __call__(
        self, activity: Callable[[*Ts], R], *positional: *Ts, **options: Unpack[ActivityConfig]
    ) -> R: ...
    @overload
    async def __call__(self, activity: Callable[..., Awaitable[R]], **options: Unpack[_ListedCall]) -> R: ...
    @overload
    async def __call__(
        self, activity: Callable[[T], Awaitable[R]], **options: Unpack[_SingleCall[T]]
    ) -> R: ...
    @overload
    async def __call__(self, activity: Callable[..., R], **options: Unpack[_ListedCall]) -> R: ...
    @overload
    async def __call__(self, activity: Callable[[T], R], **options: Unpack[_SingleCall[T]]) -> R: ...


class _StartActivity(Protocol):
    @overload
    def __call__(
        self, activity: str, *positional: Any, **options: Unpack[_NamedAsCall[R]]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: str, *positional: Any, **options: Unpack[_NamedCall]
    ) -> ActivityHandle[Any]: ...
    @overload
    def __call__(
        self, activity: Callable[[*Ts], Awaitable[R]], *positional: *Ts, **options: Unpack[ActivityConfig]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: Callable[[*Ts], R], *positional: *Ts, **options: Unpack[ActivityConfig]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: Callable[..., Awaitable[R]], **options: Unpack[_ListedCall]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: Callable[[T], Awaitable[R]], **options: Unpack[_SingleCall[T]]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(self, activity: Callable[..., R], **options: Unpack[_ListedCall]) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: Callable[[T], R], **options: Unpack[_SingleCall[T]]
    ) -> ActivityHandle[R]: ...


class _StartMethod(Protocol):
    """The overloads for a method of a class of which the worker has an instance: `Billing.charge`, without `self`."""

    @overload
    def __call__(
        self,
        activity: Callable[[Any, *Ts], Awaitable[R]],
        *positional: *Ts,
        **options: Unpack[ActivityConfig],
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: Callable[[Any, *Ts], R], *positional: *Ts, **options: Unpack[ActivityConfig]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: Callable[..., Awaitable[R]], **options: Unpack[_ListedCall]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: Callable[[Any, T], Awaitable[R]], **options: Unpack[_SingleCall[T]]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(self, activity: Callable[..., R], **options: Unpack[_ListedCall]) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: Callable[[Any, T], R], **options: Unpack[_SingleCall[T]]
    ) -> ActivityHandle[R]: ...


class _ExecuteMethod(Protocol):
    @overload
    async def __call__(
        self,
        activity: Callable[[Any, *Ts], Awaitable[R]],
        *positional: *Ts,
        **options: Unpack[ActivityConfig],
    ) -> R: ...
    @overload
    async def __call__(
        self, activity: Callable[[Any, *Ts], R], *positional: *Ts, **options: Unpack[ActivityConfig]
    ) -> R: ...
    @overload
    async def __call__(self, activity: Callable[..., Awaitable[R]], **options: Unpack[_ListedCall]) -> R: ...
    @overload
    async def __call__(
        self, activity: Callable[[Any, T], Awaitable[R]], **options: Unpack[_SingleCall[T]]
    ) -> R: ...
    @overload
    async def __call__(self, activity: Callable[..., R], **options: Unpack[_ListedCall]) -> R: ...
    @overload
    async def __call__(self, activity: Callable[[Any, T], R], **options: Unpack[_SingleCall[T]]) -> R: ...


class _StartClass(Protocol):
    """The overloads for a callable class of which the worker has an instance: `Billing`, with the parameters of its
    `__call__`.
    """

    @overload
    def __call__(
        self, activity: type[Awaits[*Ts, R]], *positional: *Ts, **options: Unpack[ActivityConfig]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: type[Calls[*Ts, R]], *positional: *Ts, **options: Unpack[ActivityConfig]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(self, activity: type, **options: Unpack[_ListedCall]) -> ActivityHandle[Any]: ...
    @overload
    def __call__(
        self, activity: type[Awaits[T, R]], **options: Unpack[_SingleCall[T]]
    ) -> ActivityHandle[R]: ...
    @overload
    def __call__(
        self, activity: type[Calls[T, R]], **options: Unpack[_SingleCall[T]]
    ) -> ActivityHandle[R]: ...


class _ExecuteClass(Protocol):
    @overload
    async def __call__(
        self, activity: type[Awaits[*Ts, R]], *positional: *Ts, **options: Unpack[ActivityConfig]
    ) -> R: ...
    @overload
    async def __call__(
        self, activity: type[Calls[*Ts, R]], *positional: *Ts, **options: Unpack[ActivityConfig]
    ) -> R: ...
    @overload
    async def __call__(self, activity: type, **options: Unpack[_ListedCall]) -> Any: ...
    @overload
    async def __call__(self, activity: type[Awaits[T, R]], **options: Unpack[_SingleCall[T]]) -> R: ...
    @overload
    async def __call__(self, activity: type[Calls[T, R]], **options: Unpack[_SingleCall[T]]) -> R: ...


class Calls(Protocol[*Ts, R_co]):
    """A class with a `__call__` method."""

    def __call__(self, *positional: *Ts) -> R_co: ...


class Awaits(Protocol[*Ts, R_co]):
    """A class with an `async def __call__` method."""

    async def __call__(self, *positional: *Ts) -> R_co: ...


def _begin(
    activity: Any,
    arg: Any,
    positional: tuple[Any, ...],
    options: dict[str, Any],
    *,
    local: bool,
    start: Callable[..., ActivityHandle[Any]] = awaited.start_activity,
) -> ActivityHandle[Any]:
    values = positional_values(arg, positional, options.pop("args", ()))
    chosen = chosen_options(options)
    definition = None if isinstance(activity, str) else activity_of(activity)
    if definition is not None:
        configured = definition.options(**chosen) if chosen else definition
        run = require_fiber("starting activity", definition.name).run
        return cast(ActivityHandle[Any], configured._start(run, values, {}, local=local, start=start))
    if not isinstance(activity, str):
        raise UsageError(
            f"an activity must be a name or a function decorated with @activity.defn, not {activity!r}"
        )
    run = require_fiber("starting activity", activity).run
    return begin_named(run, activity, values, chosen, local=local, start=start)


@takes(_NamedCall)
def _start_activity(activity: Any, arg: Any = UNSET, *positional: Any, **options: Any) -> ActivityHandle[Any]:
    """Start an activity. The handle is an asyncio task."""
    return _begin(activity, arg, positional, options, local=False)


@takes(_NamedCall)
async def _execute_activity(activity: Any, arg: Any = UNSET, *positional: Any, **options: Any) -> Any:
    """Run an activity and wait for its result."""
    return await _begin(activity, arg, positional, options, local=False)


@takes(_NamedCall)
def _start_local_activity(
    activity: Any, arg: Any = UNSET, *positional: Any, **options: Any
) -> ActivityHandle[Any]:
    """Start a short activity on this worker. The handle is an asyncio task."""
    return _begin(activity, arg, positional, options, local=True, start=awaited.start_local_activity)


@takes(_NamedCall)
async def _execute_local_activity(activity: Any, arg: Any = UNSET, *positional: Any, **options: Any) -> Any:
    """Run a short activity on this worker, within the workflow task, and wait for its result."""
    return await _begin(activity, arg, positional, options, local=True, start=awaited.start_local_activity)


start_activity = cast(_StartActivity, _start_activity)
execute_activity = cast(_ExecuteActivity, _execute_activity)
start_local_activity = cast(_StartActivity, _start_local_activity)
execute_local_activity = cast(_ExecuteActivity, _execute_local_activity)
start_activity_method = cast(_StartMethod, _start_activity)
execute_activity_method = cast(_ExecuteMethod, _execute_activity)
start_local_activity_method = cast(_StartMethod, _start_local_activity)
execute_local_activity_method = cast(_ExecuteMethod, _execute_local_activity)
start_activity_class = cast(_StartClass, _start_activity)
execute_activity_class = cast(_ExecuteClass, _execute_activity)
start_local_activity_class = cast(_StartClass, _start_local_activity)
execute_local_activity_class = cast(_ExecuteClass, _execute_local_activity)


@overload
async def step(
    fn: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, name: str | None = None, **options: Unpack[StepOptions]
) -> R: ...
@overload
async def step(
    fn: Callable[[*Ts], R], /, *args: *Ts, name: str | None = None, **options: Unpack[StepOptions]
) -> R: ...
async def step(fn: Any, /, *args: Any, name: str | None = None, **options: Any) -> Any:  # type: ignore[misc]
    """Run any function durably without declaring it, like `hourglass.workflow.step`. Not part of temporalio."""
    run, handle, key = _begin_step(fn, args, name, options)
    try:
        result = await handle
    except Exception:
        drop_step(run, key)
        raise
    # Not in a `finally`, because a coroutine that was dropped from the cache still needs the step's result.
    drop_step(run, key)
    return result


@overload
def start_step(
    fn: Callable[[*Ts], Awaitable[R]], /, *args: *Ts, name: str | None = None, **options: Unpack[StepOptions]
) -> ActivityHandle[R]: ...
@overload
def start_step(
    fn: Callable[[*Ts], R], /, *args: *Ts, name: str | None = None, **options: Unpack[StepOptions]
) -> ActivityHandle[R]: ...
def start_step(fn: Any, /, *args: Any, name: str | None = None, **options: Any) -> ActivityHandle[Any]:  # type: ignore[misc]
    """Start a step. The handle is an asyncio task. Not part of temporalio."""
    run, handle, key = _begin_step(fn, args, name, options)
    # Called when the result is available, but not when the run is dropped from the cache, because the step is then still
    # needed.
    handle.add_done_callback(lambda _: drop_step(run, key))
    return handle


def _begin_step(
    fn: Any, args: tuple[Any, ...], name: str | None, options: dict[str, Any]
) -> tuple[LiveRun, ActivityHandle[Any], str]:
    """Start a step. Return the run, the step's handle, and its key."""
    run = require_fiber("workflow.step").run
    if isinstance(fn, Activity):
        check_step(options, fn, name)
        return run, _begin(fn, UNSET, (), {**options, "args": args}, local=True), ""
    key = ""

    def start(
        definition: Any, type: str, arguments: Any, settings: Any, *positional: Any, **more: Any
    ) -> Any:
        nonlocal key
        key = keep_step(run, definition, settings)
        with_id = msgspec.structs.replace(settings, activity_id=key)
        return awaited.start_activity(type, arguments, with_id, *positional, **{**more, "local": True})

    handle: ActivityHandle[Any] = begin_step(run, fn, args, name, options, start)
    return run, handle, key
