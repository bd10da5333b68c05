"""The child spec: immutable data, validated before any child starts.

This module only defines and validates data: it starts and stops no process, and makes no restart decision. A
validation message names the child, the field, the actual value and the expected value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from hourglass._supervision.exits import SpecError

if TYPE_CHECKING:
    from hourglass._supervision.process import Context

RestartKind: TypeAlias = Literal["permanent", "transient", "temporary"]
ChildType: TypeAlias = Literal["worker", "supervisor"]
Strategy: TypeAlias = Literal["one_for_one", "one_for_all", "rest_for_one"]
Shutdown: TypeAlias = float | Literal["brutal", "infinity"]
StartLimit: TypeAlias = float | Literal["infinity"]
Start: TypeAlias = "Callable[[Context], Coroutine[Any, Any, object]]"

_WORKER_SHUTDOWN = 5.0
_WORKER_START_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """The spec of a child: its id, and how it is started, restarted and shut down.

    `start(ctx)` is the body of the process. The body calls `await ctx.started(value)` when it is ready.
    `restart` is permanent (always), transient (only after a crash or a kill) or temporary (never). `shutdown`
    is the timeout of an ordered stop, after which the child is killed; `"brutal"` kills the child immediately,
    and `"infinity"` means no timeout. The default is 5 s for a worker and no timeout for a supervisor.
    `start_timeout` is the timeout of the start. The default is 30 s for a worker.

    With `backoff=(first, maximum)`, restarts are delayed. The first delay is `first` seconds, and each further
    delay is twice as long, up to `maximum`. After the child has run for `maximum` seconds, the delay is reset
    to `first`. These restarts do not count towards the supervisor's intensity, because the delays prevent a
    restart storm of a child that waits for a server.
    """

    id: str
    start: Start
    restart: RestartKind = "permanent"
    shutdown: Shutdown | None = None
    type: ChildType = "worker"
    start_timeout: StartLimit | None = None
    backoff: tuple[float, float] | None = None

    @property
    def shutdown_limit(self) -> Shutdown:
        """The timeout of an ordered stop, with defaults applied."""
        if self.shutdown is not None:
            return self.shutdown
        return "infinity" if self.type == "supervisor" else _WORKER_SHUTDOWN

    @property
    def start_limit(self) -> StartLimit:
        """The timeout of a start, with defaults applied."""
        if self.start_timeout is not None:
            return self.start_timeout
        return "infinity" if self.type == "supervisor" else _WORKER_START_TIMEOUT


def check_spec(spec: ChildSpec) -> ChildSpec:
    """Return the spec if it is valid. Raise `SpecError` otherwise."""
    if not isinstance(spec, ChildSpec):
        raise SpecError(f"a child must be a ChildSpec, not {type(spec).__name__}")
    check_id(spec.id)
    who = f"child {spec.id!r}"
    if not callable(spec.start):
        raise SpecError(
            f"{who}: start must be a callable that takes a context, not {type(spec.start).__name__}"
        )
    _check_choice(who, "restart", spec.restart, get_args(RestartKind))
    _check_choice(who, "type", spec.type, get_args(ChildType))
    if spec.shutdown is not None and spec.shutdown not in ("brutal", "infinity"):
        _check_seconds(who, "shutdown", spec.shutdown, "seconds, 'brutal' or 'infinity'")
    if spec.start_timeout is not None and spec.start_timeout != "infinity":
        _check_seconds(who, "start_timeout", spec.start_timeout, "seconds or 'infinity'")
    if spec.backoff is not None:
        _check_backoff(who, spec.backoff)
    return spec


def check_children(specs: Sequence[ChildSpec]) -> tuple[ChildSpec, ...]:
    """Return the specs if each is valid and no id is used twice. Raise `SpecError` otherwise."""
    seen: dict[str, int] = {}
    for index, spec in enumerate(specs):
        check_spec(spec)
        if spec.id in seen:
            raise SpecError(f"duplicate child id {spec.id!r} (children {seen[spec.id]} and {index})")
        seen[spec.id] = index
    return tuple(specs)


def check_strategy(strategy: Strategy) -> Strategy:
    """Return the strategy if it exists. Raise `SpecError` otherwise."""
    _check_choice("supervisor", "strategy", strategy, get_args(Strategy))
    return strategy


def check_id(id: str) -> None:
    """Raise `SpecError` for an id that cannot be a segment of a path."""
    if not isinstance(id, str):
        raise SpecError(f"a child's id must be a str, not {type(id).__name__}")
    if not id or "/" in id:
        raise SpecError(f"a child's id must be a non-empty str without '/', not {id!r}")


def _check_choice(who: str, field: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise SpecError(f"{who}: {field} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def _check_seconds(who: str, field: str, value: Any, expected: str) -> None:
    if not _is_number(value) or value < 0:
        raise SpecError(f"{who}: {field} must be {expected}, not {value!r}")


def _check_backoff(who: str, backoff: Any) -> None:
    match backoff:
        case (first, maximum) if _is_number(first) and _is_number(maximum) and 0 < first <= maximum:
            return
    raise SpecError(
        f"{who}: backoff must be (first, maximum) in seconds with 0 < first <= maximum, not {backoff!r}"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
