"""Each scenario on both engines: the same results, failures and histories, and every history replays."""

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
    cancelling,
    children,
    concurrency,
    ending,
    failing,
    messages,
    notes,
    steps,
    updates,
    values,
)
from .scenario import SCENARIOS, Scenario
from .world import World, counts, described, kinds

pytestmark = pytest.mark.server


@dataclass
class Seen:
    """What one engine made of a scenario."""

    outcomes: list[Any]
    histories: list[History]


@pytest.fixture(scope="module")
def clients(quick_server: DevServer) -> Iterator[dict[str, Client]]:
    """A client of each engine."""
    with Client.connect("local:") as local, Client.connect(quick_server.target) as server:
        yield {"local": local, "server": server}


def play(scenario: Scenario, engine: str, client: Client) -> Seen:
    """Play a scenario on one engine."""
    acts.fresh_place()
    world = World(engine, client, [scenario.module, acts], activities=[acts.SHOP], **scenario.worker)
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
        return type(handle.result(timeout=20)).__name__
    except WorkflowFailedError as error:
        return described(error.cause)


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_scenario(name: str, clients: dict[str, Client], caplog: pytest.LogCaptureFixture) -> None:
    """Embedded and server agree on the scenario, and both histories replay on its code."""
    scenario = SCENARIOS[name]
    server = play(scenario, "server", clients["server"])
    # Where the in-memory engine lacks something the scenario says so; on the server, and in replay, it is played.
    local = server if scenario.server_only else play(scenario, "local", clients["local"])
    assert local.outcomes == server.outcomes
    for mine, theirs in zip(local.histories, server.histories, strict=True):
        if scenario.order == "exact":
            assert kinds(mine) == kinds(theirs)
        else:
            assert counts(mine) == counts(theirs)
    with Replayer(
        modules=[scenario.module], failure_exceptions=scenario.worker.get("failure_exceptions", ())
    ) as replayer:
        for history in (*local.histories, *server.histories):
            assert replayer.replay(history).ok
            assert_flagged(history)
    errors = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert scenario.loud or not errors


def assert_flagged(history: History) -> None:
    """The first workflow task that completed records our flag (I9)."""
    for event in history.events:
        completed = event.get("workflowTaskCompletedEventAttributes")
        if completed is not None:
            assert completed["sdkMetadata"]["langUsedFlags"] == [1000]
            return


def test_there_are_enough() -> None:
    """Conformance on ten happy paths would be a toy."""
    assert len(SCENARIOS) >= 60
