"""Each scenario has the same results, failures and histories in memory, on a file and on a server, and every history
replays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from hourglass.client import Client
from hourglass.errors import WorkflowFailedError
from hourglass.replay import History, Replayer
from hourglass.testing import DevServer

from . import (  # noqa: F401
    activities,
    attempts,
    back_off,
    cancelling,
    cancelling_commands,
    child_lifecycle,
    children,
    client_handles,
    closing_commands,
    concurrency,
    continue_as_new,
    cron,
    dynamic,
    ending,
    failing,
    info_fields,
    local_activities,
    message_timing,
    messages,
    parity,
    patches,
    queries,
    refusals,
    resets,
    run_metadata,
    schedule_actions,
    schedules,
    standalone,
    starts_and_ends,
    steps,
    synchronization,
    typed,
    unconvertible,
    unfinished_handlers,
    update_attachments,
    update_cases,
    update_handlers,
    update_starts,
    updates,
    value_limits,
    values,
    versions,
    visibility,
)
from .normal import differences, plain
from .scenario import SCENARIOS, Scenario
from .world import World, error_chain, event_counts

pytestmark = pytest.mark.server


@dataclass
class EngineResult:
    """Outcomes and histories of a scenario on one engine."""

    outcomes: list[Any]
    histories: list[History]


@pytest.fixture(scope="module")
def clients(quick_server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Client]]:
    """A client of each engine. All scenarios share one file."""
    file = tmp_path_factory.mktemp("conformance") / "runs.db"
    with (
        Client.connect("local:") as memory,
        Client.connect(f"local:{file}") as durable,
        Client.connect(quick_server.target) as server,
    ):
        yield {"memory": memory, "file": durable, "server": server}


def run_scenario(scenario: Scenario, engine: str, client: Client) -> EngineResult:
    """Run a scenario on one engine."""
    activities.reset_shared_state()
    world = World(
        engine,
        client,
        [scenario.module, activities],
        activities=[activities.SHOP, *activities.CALLABLE],
        **scenario.worker,
    )
    world.start_worker()
    try:
        scenario.drive(world)
        return EngineResult([outcome(handle) for handle in world.handles], world.histories())
    finally:
        activities.reset_shared_state()
        world.stop_worker()


def outcome(handle: Any) -> Any:
    """Return the result or the errors of a run as plain data."""
    try:
        return plain(repr(handle.result(timeout=60)))
    except WorkflowFailedError as error:
        return plain(error_chain(error.cause))


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_scenario_has_the_same_result_on_every_engine(
    name: str, clients: dict[str, Client], caplog: pytest.LogCaptureFixture
) -> None:
    scenario = SCENARIOS[name]
    server = run_scenario(scenario, "server", clients["server"])
    # A scenario whose feature the embedded engine lacks runs on the server only.
    engines = () if scenario.server_only else ("memory", "file")
    seen = {engine: run_scenario(scenario, engine, clients[engine]) for engine in engines}
    for engine, embedded in seen.items():
        assert embedded.outcomes == server.outcomes, engine
        for mine, theirs in zip(embedded.histories, server.histories, strict=True):
            if scenario.order == "exact":
                lines = differences(mine, theirs)
                assert not lines, "\n".join([engine, *lines])
            else:
                assert event_counts(mine) == event_counts(theirs), engine
    with Replayer(
        modules=[scenario.module], failure_exceptions=scenario.worker.get("failure_exceptions", ())
    ) as replayer:
        for result in (*seen.values(), server):
            for history in result.histories:
                assert replayer.replay(history).ok
                assert_flagged(history)
    # Failures of activities are logged as errors with their type; scenarios cause them on purpose.
    errors = [
        record
        for record in caplog.records
        if record.levelno >= logging.ERROR and not hasattr(record, "activity_type")
    ]
    assert scenario.loud or not errors


def assert_flagged(history: History) -> None:
    """Assert that the first completed workflow task records our flag (invariant I9)."""
    for event in history.events:
        completed = event.get("workflowTaskCompletedEventAttributes")
        if completed is not None:
            assert 1000 in completed["sdkMetadata"]["langUsedFlags"]
            return


def test_at_least_400_scenarios_are_registered() -> None:
    assert len(SCENARIOS) >= 400
