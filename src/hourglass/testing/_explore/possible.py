"""The options of the next choice, read from the engine without changing it. The default option is first.

By default, workflow tasks come first, then attempts, then arrivals, and time passes when no other step is left. Faults come
last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from hourglass._embedded.engine import Engine
from hourglass.testing._explore.arrivals import ArrivalState
from hourglass.testing._explore.options import Option, Sort
from hourglass.testing._faults import AllowedFaults

_USUAL = AllowedFaults()


def possible(
    engine: Engine,
    allowed_faults: Mapping[str, AllowedFaults],
    sorts: frozenset[Sort],
    *,
    idle: Set[str],
    late: Set[str],
    steps: int,
    arrivals: Sequence[ArrivalState],
    may_pass: bool,
) -> list[Option]:
    """Return the options. The worker has cached the `idle` runs; the completions of the `late` runs will arrive late."""
    tasks = [run_id for run_id in engine.queues.waiting_tasks() if run_id not in late]
    attempts = engine.queues.waiting_attempts()
    options = [Option("task", run_id) for run_id in tasks]
    options += [Option("attempt", run_id, event_id) for run_id, event_id in attempts]
    options += [Option("step", place=place) for place in range(steps)]
    options += [Option("arrival", place=place) for place, state in enumerate(arrivals) if state != "early"]
    if may_pass and "due" not in arrivals:
        options.append(Option("time"))
    for run_id in tasks:
        options += _task_mishaps(run_id, sorts, is_cached=run_id in idle)
    for run_id, event_id in attempts:
        options += _attempt_faults(engine, allowed_faults, sorts, run_id, event_id)
    return options


def _task_mishaps(run_id: str, sorts: frozenset[Sort], *, is_cached: bool) -> list[Option]:
    options: list[Option] = []
    if "crashes" in sorts:
        if is_cached:  # otherwise the worker has no state of the run to lose
            options.append(Option("crash", run_id))
        options.append(Option("die", run_id))
    if "redeliveries" in sorts:
        options.append(Option("late", run_id))
    return options


def _attempt_faults(
    engine: Engine,
    allowed_faults: Mapping[str, AllowedFaults],
    sorts: frozenset[Sort],
    run_id: str,
    event_id: int,
) -> list[Option]:
    record = engine.record(run_id)
    assert record is not None
    activity = record.run.activities[event_id]
    own = allowed_faults.get(activity.scheduled.activity_type, _USUAL)
    options: list[Option] = []
    if "failures" in sorts:
        options += [Option("fail", run_id, event_id, error=error) for error in own.errors_of(activity)]
    if own.may_be_lost(activity):
        if "timeouts" in sorts:
            options.append(Option("silent", run_id, event_id))
        if "redeliveries" in sorts:
            options.append(Option("unheard", run_id, event_id))
    return options
