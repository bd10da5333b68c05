"""Each scenario on three engines (in memory, on a file, a server): the same results, failures and histories, and every
history replays.
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
    acts,
    attempts,
    back_off,
    cancelling,
    cancelling_more,
    carried_on,
    changing_code,
    children,
    concurrency,
    cron,
    dynamic,
    ending,
    facts,
    failing,
    families,
    finding,
    handlers_at_the_end,
    last_words,
    lives,
    local_activities,
    looking,
    messages,
    notes,
    parity,
    questions,
    refusals,
    resets,
    schedule_actions,
    schedules,
    shapes,
    standalone,
    steps,
    taking_turns,
    talks,
    typed,
    unconvertible,
    update_attachments,
    update_cases,
    update_handlers,
    update_starts,
    updates,
    values,
    versions,
)
from .normal import differences, plain
from .scenario import SCENARIOS, Scenario
from .world import World, counts, described

pytestmark = pytest.mark.server


@dataclass
class Seen:
    """What one engine made of a scenario."""

    outcomes: list[Any]
    histories: list[History]


@pytest.fixture(scope="module")
def clients(quick_server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Client]]:
    """A client of each engine; the file is one file for all scenarios."""
    file = tmp_path_factory.mktemp("conformance") / "runs.db"
    with (
        Client.connect("local:") as memory,
        Client.connect(f"local:{file}") as durable,
        Client.connect(quick_server.target) as server,
    ):
        yield {"memory": memory, "file": durable, "server": server}


def play(scenario: Scenario, engine: str, client: Client) -> Seen:
    """Play a scenario on one engine."""
    acts.fresh_place()
    world = World(
        engine, client, [scenario.module, acts], activities=[acts.SHOP, *acts.CALLABLE], **scenario.worker
    )
    world.start_worker()
    try:
        scenario.drive(world)
        return Seen([outcome(handle) for handle in world.handles], world.histories())
    finally:
        acts.fresh_place()
        world.stop_worker()


def outcome(handle: Any) -> Any:
    """How a run ended, as data."""
    try:
        return plain(repr(handle.result(timeout=60)))
    except WorkflowFailedError as error:
        return plain(described(error.cause))


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_scenario_has_the_same_result_on_every_engine(
    name: str, clients: dict[str, Client], caplog: pytest.LogCaptureFixture
) -> None:
    """Both embedded engines agree with the server on the scenario, and all histories replay on its code."""
    scenario = SCENARIOS[name]
    server = play(scenario, "server", clients["server"])
    # What the embedded engine lacks is said by the scenario; on the server, and in replay, it is played.
    engines = () if scenario.server_only else ("memory", "file")
    seen = {engine: play(scenario, engine, clients[engine]) for engine in engines}
    for engine, embedded in seen.items():
        assert embedded.outcomes == server.outcomes, engine
        for mine, theirs in zip(embedded.histories, server.histories, strict=True):
            if scenario.order == "exact":
                found = differences(mine, theirs)
                assert not found, "\n".join([engine, *found])
            else:
                assert counts(mine) == counts(theirs), engine
    with Replayer(
        modules=[scenario.module], failure_exceptions=scenario.worker.get("failure_exceptions", ())
    ) as replayer:
        for each in (*seen.values(), server):
            for history in each.histories:
                assert replayer.replay(history).ok
                assert_flagged(history)
    # Activities that failed for good are told as errors, with their type: scenarios want them to.
    errors = [
        each
        for each in caplog.records
        if each.levelno >= logging.ERROR and not hasattr(each, "activity_type")
    ]
    assert scenario.loud or not errors


def assert_flagged(history: History) -> None:
    """The first workflow task that completed records our flag (I9)."""
    for event in history.events:
        completed = event.get("workflowTaskCompletedEventAttributes")
        if completed is not None:
            assert 1000 in completed["sdkMetadata"]["langUsedFlags"]
            return


def test_there_are_enough_scenarios() -> None:
    """Conformance on ten happy paths would be a toy."""
    assert len(SCENARIOS) >= 400
