"""The execution of a single order in its own environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hourglass.client import WorkflowHandle
from hourglass.client._options import StartOptions
from hourglass.errors import WorkflowFailedError
from hourglass.testing._explore.arrivals import Arrival
from hourglass.testing._explore.choices import Choices, Sort
from hourglass.testing._explore.driver import OrderDriver
from hourglass.testing._explore.properties import Properties, Violation, broken_by
from hourglass.testing._explore.story import OrderStory, StoryWriter
from hourglass.testing._explore.wording import Wording
from hourglass.testing._fixture import Fixture, FixtureSettings
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
