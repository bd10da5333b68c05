"""What can happen next in an order, the usual thing first: read off the engine, changing nothing.

A healthy world lets workflows go on first, then runs attempts, then lets something come from outside, and lets time
pass when nothing else is left. Mishaps come last.

Arrivals come to an explored workflow from outside, at any time, or within a window of virtual time:

    sometime().signal(decisions, "yes")
    sometime(after=timedelta(days=1), before=timedelta(days=3)).cancel()

They are data: the driver of the order sends them. Each comes once, unless the workflow has closed before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, TypeVarTuple, overload

from hourglass._embedded.clock import to_ns
from hourglass._embedded.engine import Engine
from hourglass._evaluator.options import Duration, optional_seconds, seconds
from hourglass.client import WorkflowHandle
from hourglass.errors import ServiceError, UpdateFailedError, UsageError
from hourglass.testing._explore.choices import Option, Sort
from hourglass.testing._mishaps import Mishaps
from hourglass.workflow import Channel

# --- arrivals: what comes from outside ------------------------------------------------------------


Standing: TypeAlias = Literal["early", "ready", "due"]
"""It cannot come yet; it may come; it must come before time goes on."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True)
class Arrival:
    """Something that comes from outside. Times are nanoseconds since the workflow was started."""

    name: str
    send: Callable[[WorkflowHandle[Any]], object]
    after_ns: int = 0
    before_ns: int | None = None

    def standing(self, passed_ns: int) -> Standing:
        """Whether it may come, so long after the start."""
        if passed_ns < self.after_ns:
            return "early"
        return "due" if self.before_ns is not None and self.before_ns <= passed_ns else "ready"

    def __repr__(self) -> str:
        return f"<{self.name}, sometime>"


@dataclass(frozen=True)
class Sometime:
    """A window of virtual time, in which something comes."""

    after_ns: int
    before_ns: int | None

    @overload
    def signal(self, signal: str, /, *args: Any) -> Arrival: ...
    @overload
    def signal(self, signal: Channel[T], value: T, /) -> Arrival: ...
    @overload
    def signal(self, signal: Callable[[*Ts], None], /, *args: *Ts) -> Arrival: ...
    def signal(self, signal: Any, /, *args: Any) -> Arrival:  # type: ignore[misc]
        """A signal."""
        given = ", ".join(repr(each) for each in args)
        return self._arrival(f"signal {_name(signal)}({given})", lambda handle: handle.signal(signal, *args))

    @overload
    def update(self, update: str, /, *args: Any) -> Arrival: ...
    @overload
    def update(self, update: Callable[[*Ts], Any], /, *args: *Ts) -> Arrival: ...
    def update(self, update: Any, /, *args: Any) -> Arrival:  # type: ignore[misc]
        """An update, whose sender waits for the answer; one that is refused is no matter of the exploration's."""
        given = ", ".join(repr(each) for each in args)

        def send(handle: WorkflowHandle[Any]) -> None:
            with suppress(UpdateFailedError, ServiceError):
                handle.execute_update(update, *args)

        return self._arrival(f"update {_name(update)}({given})", send)

    def cancel(self, reason: str = "") -> Arrival:
        """A request to cancel the workflow."""
        return self._arrival("a request to cancel", lambda handle: handle.cancel(reason))

    def terminate(self, reason: str = "") -> Arrival:
        """The end of the workflow, from outside."""
        return self._arrival("a termination", lambda handle: handle.terminate(reason))

    def call(self, function: Callable[[WorkflowHandle[Any]], object], /) -> Arrival:
        """Anything else: a function that gets the workflow's handle."""
        return self._arrival(f"call of {_name(function)}", function)

    def _arrival(self, name: str, send: Callable[[WorkflowHandle[Any]], object]) -> Arrival:
        return Arrival(name, send, self.after_ns, self.before_ns)


def sometime(*, after: Duration = 0, before: Duration | None = None) -> Sometime:
    """At any time, or not before and not after so long from the workflow's start: `sometime().signal(approve)`."""
    least, most = to_ns(seconds(after, "after")), optional_seconds(before, "before")
    if most is not None and to_ns(most) < least:
        raise UsageError("sometime(after=…, before=…): the window ends before it begins")
    return Sometime(least, None if most is None else to_ns(most))


def checked_arrivals(given: Sequence[object]) -> tuple[Arrival, ...]:
    """What an author lists as arrivals."""
    for each in given:
        if not isinstance(each, Arrival):
            raise UsageError(f"arrivals= takes what sometime().signal(…) and the like make, not {each!r:.80}")
    return tuple(each for each in given if isinstance(each, Arrival))


def _name(given: object) -> str:
    name = (
        given if isinstance(given, str) else getattr(given, "name", None) or getattr(given, "__name__", None)
    )
    return str(name or type(given).__name__)


_USUAL = Mishaps()


def possible(
    engine: Engine,
    mishaps: Mapping[str, Mishaps],
    sorts: frozenset[Sort],
    *,
    idle: Set[str],
    late: Set[str],
    steps: int,
    arrivals: Sequence[Standing],
    may_pass: bool,
) -> list[Option]:
    """The options. `idle` runs are known to the worker, `late` ones have an answer on its way."""
    tasks = [run_id for run_id in engine.queues.waiting_tasks() if run_id not in late]
    attempts = engine.queues.waiting_attempts()
    options = [Option("task", run_id) for run_id in tasks]
    options += [Option("attempt", run_id, event_id) for run_id, event_id in attempts]
    options += [Option("step", place=place) for place in range(steps)]
    options += [Option("arrival", place=place) for place, each in enumerate(arrivals) if each != "early"]
    if may_pass and "due" not in arrivals:
        options.append(Option("time"))
    for run_id in tasks:
        options += _task_mishaps(run_id, sorts, known=run_id in idle)
    for run_id, event_id in attempts:
        options += _attempt_mishaps(engine, mishaps, sorts, run_id, event_id)
    return options


def _task_mishaps(run_id: str, sorts: frozenset[Sort], *, known: bool) -> list[Option]:
    options: list[Option] = []
    if "crashes" in sorts:
        if known:  # else there is nothing to lose
            options.append(Option("crash", run_id))
        options.append(Option("die", run_id))
    if "redeliveries" in sorts:
        options.append(Option("late", run_id))
    return options


def _attempt_mishaps(
    engine: Engine, mishaps: Mapping[str, Mishaps], sorts: frozenset[Sort], run_id: str, event_id: int
) -> list[Option]:
    record = engine.record(run_id)
    assert record is not None
    activity = record.run.activities[event_id]
    own = mishaps.get(activity.scheduled.activity_type, _USUAL)
    options: list[Option] = []
    if "failures" in sorts:
        options += [Option("fail", run_id, event_id, error=error) for error in own.errors_of(activity)]
    if own.may_be_lost(activity):
        if "timeouts" in sorts:
            options.append(Option("silent", run_id, event_id))
        if "redeliveries" in sorts:
            options.append(Option("unheard", run_id, event_id))
    return options
