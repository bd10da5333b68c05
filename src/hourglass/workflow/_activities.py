"""Activities by name, or with options of their own for one call. The usual way is to call the activity itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple, Unpack, overload

from hourglass._engine.fibers import Task, require_fiber
from hourglass._engine.operations import start_activity as _start
from hourglass._engine.operations import start_intercepted
from hourglass.activity import Activity, ActivityOptions
from hourglass.activity._options import FOREIGN_DEFAULTS, settings_with
from hourglass.errors import UsageError

R = TypeVar("R")
Ts = TypeVarTuple("Ts")


@overload
def execute_activity(
    activity: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ActivityOptions]
) -> Any: ...
@overload
def execute_activity(
    activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ActivityOptions]
) -> R: ...
def execute_activity(activity: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
    """Run an activity and wait for its result: `execute_activity("charge", order, start_to_close_timeout=30)`.

    An activity of another program, or another language, is given by its name; its result is then decoded as `result_type`.
    """
    return _begin(activity, args, options, local=False).result()


@overload
def start_activity(
    activity: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ActivityOptions]
) -> Task[Any]: ...
@overload
def start_activity(
    activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ActivityOptions]
) -> Task[R]: ...
def start_activity(activity: Any, /, *args: Any, **options: Any) -> Task[Any]:  # type: ignore[misc]
    """Begin an activity without waiting for it."""
    return _begin(activity, args, options, local=False)


@overload
def execute_local_activity(
    activity: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ActivityOptions]
) -> Any: ...
@overload
def execute_local_activity(
    activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ActivityOptions]
) -> R: ...
def execute_local_activity(activity: Any, /, *args: Any, **options: Any) -> Any:  # type: ignore[misc]
    """Run a short activity on this very worker, within the workflow task, and wait for its result."""
    return _begin(activity, args, options, local=True).result()


@overload
def start_local_activity(
    activity: str, /, *args: Any, result_type: Any = Any, **options: Unpack[ActivityOptions]
) -> Task[Any]: ...
@overload
def start_local_activity(
    activity: Callable[[*Ts], R], /, *args: *Ts, **options: Unpack[ActivityOptions]
) -> Task[R]: ...
def start_local_activity(activity: Any, /, *args: Any, **options: Any) -> Task[Any]:  # type: ignore[misc]
    """Begin a short activity on this very worker without waiting for it."""
    return _begin(activity, args, options, local=True)


def _begin(activity: Any, args: tuple[Any, ...], options: dict[str, Any], *, local: bool) -> Task[Any]:
    if isinstance(activity, Activity):
        chosen = activity.options(**options) if options else activity
        return chosen.start_local(*args) if local else chosen.start(*args)
    if not isinstance(activity, str):
        raise UsageError(
            f"an activity is given by its name or as a function decorated with @activity.defn, not {activity!r}"
        )
    fiber = require_fiber(f"activity {activity}")
    result_type = options.pop("result_type", Any)
    settings = settings_with(FOREIGN_DEFAULTS, options, f"activity {activity}")
    run = fiber.run
    if run.outbound is not None:
        return start_intercepted(
            run.outbound, activity, list(args), settings, result_type, run.converter.encode_all, local=local
        )
    return _start(activity, run.converter.encode_all(args), settings, result_type, local=local)
