"""The exploration: runs one order after another, each in its own environment, until an order violates a property. That order
is shrunk and reported as a story.
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
from hourglass.testing._explore.arrivals import Arrival
from hourglass.testing._explore.choices import Choices, Sort, script_of, token_of
from hourglass.testing._explore.driver import OrderDriver
from hourglass.testing._explore.properties import Properties, Violation, broken_by
from hourglass.testing._explore.search import OrderSearch, Script, shrink, stripped
from hourglass.testing._explore.story import OrderStory, StoryWriter, Wording
from hourglass.testing._fixture import Fixture, FixtureSettings
from hourglass.testing._guard import WorkflowHung
from hourglass.testing._registry import EnvironmentRegistry
from hourglass.workflow._references import resolve_workflow


@dataclass(frozen=True, kw_only=True)
class ExplorationPlan:
    """The workflow to explore, and the options of the exploration."""

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
    """Creates the environment that is passed to the functions of the test."""

    @property
    def name(self) -> str:
        """The name of the workflow."""
        return resolve_workflow(self.workflow).name


def start_options(options: StartOptions | None) -> Mapping[str, Any]:
    """Return the options for starting the workflow of each order. The workflow id is the same in all orders, so that no
    order depends on it.
    """
    return {"id": "explored", **(options or {})}


@dataclass(frozen=True)
class OrderOutcome:
    """The outcome of an order that was run."""

    choices: Choices
    violation: Violation | None
    states: set[int]
    points: set[int]
    story: OrderStory | None = None


def run_order(
    plan: ExplorationPlan, choices: Choices, *, with_story: bool = False, is_watched: bool = False
) -> OrderOutcome:
    """Run the workflow once with these choices. With `is_watched`, forbidden calls are reported according to the
    environment's options.
    """
    settings = (
        plan.settings
        if is_watched
        else msgspec.structs.replace(plan.settings, watch="off", verify_on_demand=True)
    )
    fixture = Fixture(settings, registry=plan.registry.copy(), make_driver=OrderDriver)
    driver = fixture.driver
    assert isinstance(driver, OrderDriver)
    workflow_id = plan.options["id"]
    writer = StoryWriter(driver, Wording(settings.converter), workflow_id) if with_story else None
    driver.explore(choices, plan.sorts, plan.arrivals, writer)
    env = plan.make_environment(settings, fixture)
    try:
        violation = _run(plan, fixture, driver, env)
    finally:
        fixture.close()
    return OrderOutcome(choices, violation, driver.states, driver.points, writer.story if writer else None)


def _run(plan: ExplorationPlan, fixture: Fixture, driver: OrderDriver, env: Any) -> Violation | None:
    if plan.prepare is not None:
        plan.prepare(env)
    try:
        driver.registry.register_workflow(plan.workflow)
        handle: WorkflowHandle[Any] = fixture.client.start_workflow(
            plan.workflow, *plan.arguments, **plan.options
        )
        driver.expect(lambda arrival: lambda: arrival.send(handle))
        if plan.properties.invariant is not None:
            driver.after_each = lambda: plan.properties.check_invariant(env)
        result = _result(handle)
        plan.properties.check_end(result, env, driver.excused)
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


_SILENT = logging.CRITICAL + 1


@dataclass(frozen=True)
class Exploration:
    """The coverage of an exploration: the numbers of different orders, choice points, and states of the workflow.

    `is_complete`: every possible order was tried. `deviations`: every order with fewer deviations than this was tried.
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
    """The coverage of a running exploration. Writes a progress line every second if standard error is a terminal."""

    workflow: str
    seed: int
    orders: set[tuple[int, ...]] = field(default_factory=set)
    points: set[int] = field(default_factory=set)
    states: set[int] = field(default_factory=set)
    _shown_at: float = 0.0

    def __post_init__(self) -> None:
        self._shown_at = monotonic()

    def add(self, order: tuple[int, ...], points: set[int], states: set[int]) -> None:
        """Add an order that was run."""
        self.orders.add(order)
        self.points |= points
        self.states |= states
        if monotonic() - self._shown_at >= 1 and sys.stderr.isatty():
            self._shown_at = monotonic()
            sys.stderr.write(f"exploring {self.exploration()}\n")

    def exploration(self, is_complete: bool = False, deviations: int = 0) -> Exploration:
        """Return the coverage so far."""
        return Exploration(
            workflow=self.workflow,
            orders=len(self.orders),
            choice_points=len(self.points),
            states=len(self.states),
            is_complete=is_complete,
            deviations=deviations,
            seed=self.seed,
        )


def explore(plan: ExplorationPlan, runs: int, seed: int | None) -> Exploration:
    """Try up to `runs` orders. Raise `ExplorationFailed`, with the story of the smallest order that violates a property."""
    if not isinstance(runs, int) or runs < 1:
        raise UsageError(
            f"runs= must be the maximum number of orders, an int of at least 1, not {runs!r:.80}"
        )
    if seed is not None and not isinstance(seed, int):
        raise UsageError(f"seed= must be an int, not {seed!r:.80}")
    search, coverage = OrderSearch(runs, seed or 0), Coverage(plan.name, seed or 0)
    try:
        failing = _first_failing(plan, search, coverage)
        if failing is None:
            return coverage.exploration(search.is_complete, search.deviations)
        with _quiet_logs():
            script = _smallest(plan, failing, search.usual, coverage.orders)
    except KeyboardInterrupt:
        sys.stderr.write(f"\ninterrupted; {coverage.exploration()}\n")
        raise
    raise _failed(plan, script, coverage.exploration())


def replay(plan: ExplorationPlan, token: str) -> Exploration:
    """Run the order that a token describes. Raise `ExplorationFailed` if it violates a property."""
    script, coverage = script_of(token), Coverage(plan.name, 0)
    outcome = run_order(plan, Choices(script), is_watched=True)
    coverage.add(script, outcome.points, outcome.states)
    if outcome.violation is not None:
        raise _failed(plan, script, coverage.exploration())
    return coverage.exploration()


def _first_failing(plan: ExplorationPlan, search: OrderSearch, coverage: Coverage) -> OrderOutcome | None:
    """Return the first order that violates a property, or None. Only the default order is watched and logged, because once
    is enough.
    """
    outcome = _try_next(plan, search, coverage, is_watched=True)
    with _quiet_logs():
        while outcome is not None and outcome.violation is None:
            outcome = _try_next(plan, search, coverage)
    return outcome


def _try_next(
    plan: ExplorationPlan, search: OrderSearch, coverage: Coverage, *, is_watched: bool = False
) -> OrderOutcome | None:
    """Run the next order and return its result, or None after the last one."""
    choices = search.next()
    if choices is None:
        return None
    outcome = run_order(plan, choices, is_watched=is_watched)
    search.tried(choices)
    coverage.add(stripped(choices.taken), outcome.points, outcome.states)
    return outcome


def _smallest(
    plan: ExplorationPlan, failing: OrderOutcome, usual: Sequence[int], tried: Set[Script]
) -> Script:
    assert failing.violation is not None
    if not any(failing.choices.taken):
        return ()
    if isinstance(failing.violation.error, WorkflowHung):
        return stripped(failing.choices.taken)  # every further run would also hang
    key, itself = failing.violation.key, stripped(failing.choices.taken)

    def fails(script: Script) -> list[int] | None:
        if script in tried and script != itself:
            return None  # already run without a violation
        outcome = run_order(plan, Choices(script))
        same = outcome.violation is not None and outcome.violation.key == key
        return outcome.choices.taken if same else None

    return shrink(failing.choices.taken, fails, usual)


def _failed(plan: ExplorationPlan, script: Script, exploration: Exploration) -> ExplorationFailed:
    outcome = run_order(plan, Choices(script), with_story=True)
    story, violation, token = outcome.story, outcome.violation, token_of(script)
    assert story is not None
    if violation is None:
        return ExplorationFailed(
            f"an order of {plan.name} failed, and succeeded when it was run again. So its result depends on more than the order, "
            f"such as state that fakes keep between orders: create that state in prepare=. The order was {token!r}",
            token=token,
        )
    error = ExplorationFailed(
        f"{plan.name}: {violation.short}\n\n{story}\n\n"
        f"broken: {violation}\n"
        f"repeat: the same call with story={token!r}\n"
        f"tried:  {exploration}",
        token=token,
        story=tuple(line.text for line in story),
        broken=violation.broken,
    )
    error.__cause__ = violation.error
    return error


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Disable logging while hundreds of orders run. The failing order is reported as a story."""
    logger = logging.getLogger("hourglass")
    level = logger.level
    logger.setLevel(_SILENT)
    try:
        yield
    finally:
        logger.setLevel(level)
