"""The exploration: one order after another until one breaks a property, which is shrunk and told as a story.

`Coverage` counts what was covered, and writes the line that tells of it while the exploration goes on.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import msgspec

from hourglass.client import WorkflowHandle
from hourglass.client._options import StartOptions
from hourglass.errors import ExplorationFailed, UsageError, WorkflowFailedError
from hourglass.testing._explore.choices import Choices, Sort, script_of, token_of
from hourglass.testing._explore.driver import Exploring
from hourglass.testing._explore.possible import Arrival
from hourglass.testing._explore.properties import Properties, Violation, broken_by
from hourglass.testing._explore.search import OrderSearch, Script, shrink, stripped
from hourglass.testing._explore.story import OrderStory, StoryTeller, Words
from hourglass.testing._fixture import Fixture, FixtureSettings
from hourglass.testing._guard import WorkflowHung
from hourglass.testing._registry import EnvironmentRegistry
from hourglass.workflow._references import given_workflow

# --- one order, in an environment of its own ------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ExplorationPlan:
    """What is explored, and how."""

    workflow: Any
    arguments: Sequence[Any]
    options: Mapping[str, Any]
    settings: FixtureSettings
    registry: EnvironmentRegistry
    sorts: frozenset[Sort]
    arrivals: tuple[Arrival, ...]
    properties: Properties
    prepare: Callable[[Any], object] | None
    make_environment: Callable[[FixtureSettings, Fixture], Any]
    """Makes the environment that the author's functions get."""

    @property
    def name(self) -> str:
        """The workflow's."""
        return given_workflow(self.workflow).name


def start_options(options: StartOptions | None) -> Mapping[str, Any]:
    """How each order's workflow is started: under the same id, so that nothing differs by itself."""
    return {"id": "explored", **(options or {})}


@dataclass(frozen=True)
class OrderOutcome:
    """What became of an order."""

    choices: Choices
    violation: Violation | None
    states: set[int]
    points: set[int]
    story: OrderStory | None = None


def run_order(
    plan: ExplorationPlan, choices: Choices, *, telling: bool = False, watched: bool = False
) -> OrderOutcome:
    """Run the workflow once, with these choices. `watched`: its calls are watched as the environment was told to."""
    settings = (
        plan.settings
        if watched
        else msgspec.structs.replace(plan.settings, watch="off", verify_on_demand=True)
    )
    fixture = Fixture(settings, registry=plan.registry.copy(), make_driver=Exploring)
    driver = fixture.driver
    assert isinstance(driver, Exploring)
    workflow_id = plan.options["id"]
    teller = StoryTeller(driver, Words(settings.converter), workflow_id) if telling else None
    driver.explore(choices, plan.sorts, plan.arrivals, teller)
    env = plan.make_environment(settings, fixture)
    try:
        violation = _violation(plan, fixture, driver, env)
    finally:
        fixture.close()
    return OrderOutcome(choices, violation, driver.states, driver.points, teller.story if teller else None)


def _violation(plan: ExplorationPlan, fixture: Fixture, driver: Exploring, env: Any) -> Violation | None:
    if plan.prepare is not None:
        plan.prepare(env)
    try:
        driver.registry.meet_workflow(plan.workflow)
        handle: WorkflowHandle[Any] = fixture.client.start_workflow(
            plan.workflow, *plan.arguments, **plan.options
        )
        driver.expect(lambda arrival: lambda: arrival.send(handle))
        if plan.properties.invariant is not None:
            driver.after_each = lambda: plan.properties.hold_now(env)
        result = _result(handle)
        plan.properties.hold_at_end(result, env, driver.excused)
    except Exception as error:
        violation = broken_by(error)
        if violation is None:
            raise
        return violation
    return None


def _result(handle: WorkflowHandle[Any]) -> Any:
    try:
        return handle.result()
    except WorkflowFailedError as error:
        return error


# --- coverage -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exploration:
    """What was covered: different orders, places where a choice was made, states of the workflow.

    `is_complete`: there is no other order. `deviations`: every order with fewer deviations than this was tried.
    """

    workflow: str
    orders: int
    choice_points: int
    states: int
    is_complete: bool
    deviations: int
    seed: int

    def __str__(self) -> str:
        what = "all of its" if self.is_complete else f"{self.orders:,}"
        count = f"{what} {self.orders:,} orders" if self.is_complete else f"{what} orders"
        return (
            f"{self.workflow}: {count} explored, {self.choice_points:,} choice points, {self.states:,} states "
            f"(seed {self.seed})"
        )


@dataclass
class Coverage:
    """The same while it grows; on a terminal it says so once a second."""

    workflow: str
    seed: int
    orders: set[tuple[int, ...]] = field(default_factory=set)
    points: set[int] = field(default_factory=set)
    states: set[int] = field(default_factory=set)
    _told: float = 0.0

    def __post_init__(self) -> None:
        self._told = monotonic()

    def add(self, order: tuple[int, ...], points: set[int], states: set[int]) -> None:
        """One order more."""
        self.orders.add(order)
        self.points |= points
        self.states |= states
        if monotonic() - self._told >= 1 and sys.stderr.isatty():
            self._told = monotonic()
            sys.stderr.write(f"exploring {self.so_far()}\n")

    def so_far(self, is_complete: bool = False, deviations: int = 0) -> Exploration:
        """What is covered by now."""
        return Exploration(
            workflow=self.workflow,
            orders=len(self.orders),
            choice_points=len(self.points),
            states=len(self.states),
            is_complete=is_complete,
            deviations=deviations,
            seed=self.seed,
        )


# --- one order after another ----------------------------------------------------------------------


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
