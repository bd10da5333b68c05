"""The execution of one order, in an environment of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from hourglass.client import WorkflowHandle
from hourglass.client._options import StartOptions
from hourglass.errors import WorkflowFailedError
from hourglass.testing._explore.arrivals import Arrival
from hourglass.testing._explore.choices import Choices
from hourglass.testing._explore.driver import Exploring
from hourglass.testing._explore.options import Sort
from hourglass.testing._explore.properties import Properties, Violation, broken_by
from hourglass.testing._explore.story import OrderStory, StoryTeller
from hourglass.testing._explore.wording import Words
from hourglass.testing._fixture import Fixture, FixtureSettings
from hourglass.testing._registry import EnvironmentRegistry
from hourglass.workflow._references import given_workflow


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
