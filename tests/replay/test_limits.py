"""Replay of code that uses limits: the limit and the rate may change in a deploy, the key may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hourglass import Client, History, Replayer, Worker, activity, limits, workflow
from hourglass.errors import NondeterminismError
from hourglass.testing import DevServer


@activity.defn
def act() -> None:
    """An activity."""


def programs(key: str = "k", limit: int = 1, rate: int = 2, per: float = 0.2, *, smooth: bool = False) -> Any:
    """Return workflows that use slots and throttles, some of them in several tasks."""

    def slot() -> None:
        with limits.slot(key, limit=limit):  # slot here
            act()
        with limits.slot(key, limit=limit):
            act()

    def slots() -> None:
        def inside() -> None:
            with limits.slot(key, limit=limit):  # slots here
                act()

        for task in [workflow.spawn(inside) for _ in range(4)]:
            task.result()

    def throttle() -> None:
        limits.throttle(key, rate, per=per, smooth=smooth)  # throttle here
        act()
        limits.throttle(key, rate, per=per, smooth=smooth)

    return [workflow.defn(name=each.__name__)(each) for each in (slot, slots, throttle)]


@pytest.fixture(scope="module", params=["embedded", pytest.param("temporal", marks=pytest.mark.server)])
def histories(request: pytest.FixtureRequest) -> list[History]:
    """Histories of the unchanged workflows."""
    target = "local:"
    if request.param == "temporal":
        server: DevServer = request.getfixturevalue("quick_server")
        target = server.target
    queue = f"replayed-limits-{request.param}"
    with Client.connect(target) as client:
        with Worker(client, workflows=programs(), activities=[act], task_queue=queue):
            runs = [client.start_workflow(program, task_queue=queue) for program in programs()]
            for run in runs:
                run.result()
        return [run.history() for run in runs]


@pytest.mark.parametrize("change", [{"limit": 3}, {"rate": 7}, {"per": 2.0}, {"smooth": True}], ids=str)
def test_replay_accepts_changed_limit_or_rate(histories: list[History], change: dict[str, Any]) -> None:
    with Replayer(workflows=programs(**change)) as replayer:
        assert [str(result.error) for result in replayer.replay_all(histories) if not result.ok] == []


def test_replay_reports_changed_limit_key_with_its_line(histories: list[History]) -> None:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    with Replayer(workflows=programs(key="other")) as replayer:
        for result in replayer.replay_all(histories):
            error = result.error
            assert isinstance(error, NondeterminismError)
            what = "turn" if result.history.workflow_type == "throttle" else "slot"
            assert f"request of a {what} of 'k'" in error.expected
            assert error.produced == f"request of a {what} of 'other'"
            assert error.file == __file__
            assert lines[error.line - 1].endswith(f"# {result.history.workflow_type} here")
