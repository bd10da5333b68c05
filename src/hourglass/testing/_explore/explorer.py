"""The exploration: one order after another until one breaks a property, which is shrunk and reported with its story."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager

from hourglass.errors import ExplorationFailed, UsageError
from hourglass.testing._explore.choices import Choices
from hourglass.testing._explore.coverage import Coverage, Exploration
from hourglass.testing._explore.orders import ExplorationPlan, OrderOutcome, run_order
from hourglass.testing._explore.search import OrderSearch
from hourglass.testing._explore.shrinking import Script, shrink, stripped
from hourglass.testing._explore.tokens import script_of, token_of
from hourglass.testing._guard import WorkflowHung

_SILENT = logging.CRITICAL + 1


def explore(plan: ExplorationPlan, runs: int, seed: int | None) -> Exploration:
    """Try so many orders; raise `ExplorationFailed`, with its story, for the smallest that breaks a property."""
    if not isinstance(runs, int) or runs < 1:
        raise UsageError(f"runs= is how many orders are tried at most, at least 1, not {runs!r:.80}")
    if seed is not None and not isinstance(seed, int):
        raise UsageError(f"seed= is a whole number, not {seed!r:.80}")
    search, coverage = OrderSearch(runs, seed or 0), Coverage(plan.name, seed or 0)
    try:
        found = _found(plan, search, coverage)
        if found is None:
            return coverage.so_far(search.is_complete, search.deviations)
        with _quiet_logs():
            script = _shrunk(plan, found, search.usual, coverage.orders)
    except KeyboardInterrupt:
        sys.stderr.write(f"\ninterrupted; {coverage.so_far()}\n")
        raise
    raise _failed(plan, script, coverage.so_far())


def replay(plan: ExplorationPlan, token: str) -> Exploration:
    """Run the order that a token names, and no other."""
    script, coverage = script_of(token), Coverage(plan.name, 0)
    outcome = run_order(plan, Choices(script), watched=True)
    coverage.add(script, outcome.points, outcome.states)
    if outcome.violation is not None:
        raise _failed(plan, script, coverage.so_far())
    return coverage.so_far()


def _found(plan: ExplorationPlan, search: OrderSearch, coverage: Coverage) -> OrderOutcome | None:
    """The first order that breaks a property. The usual one is watched and logs as ever: once is enough for that."""
    outcome = _try_next(plan, search, coverage, watched=True)
    with _quiet_logs():
        while outcome is not None and outcome.violation is None:
            outcome = _try_next(plan, search, coverage)
    return outcome


def _try_next(
    plan: ExplorationPlan, search: OrderSearch, coverage: Coverage, *, watched: bool = False
) -> OrderOutcome | None:
    """Run the next order; None at the end."""
    choices = search.next()
    if choices is None:
        return None
    outcome = run_order(plan, choices, watched=watched)
    search.tried(choices)
    coverage.add(stripped(choices.taken), outcome.points, outcome.states)
    return outcome


def _shrunk(plan: ExplorationPlan, found: OrderOutcome, usual: Sequence[int], tried: Set[Script]) -> Script:
    assert found.violation is not None
    if not any(found.choices.taken):
        return ()
    if isinstance(found.violation.error, WorkflowHung):
        return stripped(found.choices.taken)  # each further try would hang, too
    key, itself = found.violation.key, stripped(found.choices.taken)

    def fails(script: Script) -> list[int] | None:
        if script in tried and script != itself:
            return None  # it has held before
        outcome = run_order(plan, Choices(script))
        same = outcome.violation is not None and outcome.violation.key == key
        return outcome.choices.taken if same else None

    return shrink(found.choices.taken, fails, usual)


def _failed(plan: ExplorationPlan, script: Script, covered: Exploration) -> ExplorationFailed:
    outcome = run_order(plan, Choices(script), telling=True)
    story, violation, token = outcome.story, outcome.violation, token_of(script)
    assert story is not None
    if violation is None:
        return ExplorationFailed(
            f"an order of {plan.name} failed, and did not when it was run again: something but the order decides, such as "
            f"state that fakes keep from one order to the next; make it anew in prepare=. The order was {token!r}",
            token=token,
        )
    error = ExplorationFailed(
        f"{plan.name}: {violation.short}\n\n{story}\n\n"
        f"broken: {violation}\n"
        f"again:  the same call with story={token!r}\n"
        f"tried:  {covered}",
        token=token,
        story=tuple(line.text for line in story),
        broken=violation.broken,
    )
    error.__cause__ = violation.error
    return error


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Logs are off while hundreds of orders run: a story tells of the order that matters."""
    logger = logging.getLogger("hourglass")
    level = logger.level
    logger.setLevel(_SILENT)
    try:
        yield
    finally:
        logger.setLevel(level)
