"""Histories recorded by Temporal's Go SDK replay on the same programs as plain functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hourglass import workflow
from hourglass.errors import NondeterminismError
from hourglass.replay import History, Replayer

from ._corpus import local
from .go_twins import DELETE, RECLAIM, TWINS, reclaim

HISTORIES = Path(__file__).parent / "go"
NAMES = sorted(path.stem for path in HISTORIES.glob("*.json"))
JSON = {"delete-namespace", "reclaim-namespace", "reclaim-cancelled", "delete-executions"}
"""Histories whose arguments and results are JSON and are compared."""


def _history(name: str) -> History:
    return History.from_file(HISTORIES / f"{name}.json")


@pytest.mark.parametrize("name", NAMES)
def test_go_history_replays_on_equivalent_workflow(name: str) -> None:
    """Arguments are compared where they are JSON."""
    with Replayer(workflows=list(TWINS.values()), compare_arguments=name in JSON) as replayer:
        replayer.replay(_history(name))


def test_every_equivalent_of_a_go_workflow_has_a_recorded_history() -> None:
    assert len(NAMES) == 13
    assert {_history(name).workflow_type for name in NAMES} == set(TWINS)


@workflow.defn(name=RECLAIM)
def reclaim_without_waiting(given: dict[str, Any]) -> Any:
    if workflow.patched("namespace-refresh-dc"):
        local("GetNamespaceCacheRefreshInterval")
    return local("CountExecutionsAdvVisibilityActivity")


@workflow.defn(name=RECLAIM)
def reclaim_without_local_activities(given: dict[str, Any]) -> Any:
    workflow.sleep(4.0)
    return workflow.execute_child_workflow(DELETE, given)


@pytest.mark.parametrize("changed", [reclaim_without_waiting, reclaim_without_local_activities])
def test_replay_of_go_history_detects_changed_code(changed: Any) -> None:
    with Replayer(workflows=[changed]) as replayer:
        error = replayer.try_replay(_history("reclaim-namespace")).error
    assert isinstance(error, NondeterminismError)
    assert "in the workflow task that started with event 3" in str(error)
    assert error.file == __file__ or error.file == local.__code__.co_filename


def test_replay_of_go_history_accepts_unchanged_code() -> None:
    with Replayer(workflows=[workflow.defn(name=RECLAIM)(reclaim)]) as replayer:
        assert replayer.replay(_history("reclaim-namespace")).ok
