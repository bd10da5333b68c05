"""`hourglass list --watch` without a terminal: one line for each new or changed run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.waiting import until

from command_line import main
from hourglass import Client, Worker, workflow


@workflow.defn
def broken() -> str:
    return {}["missing"]


@pytest.fixture
def watch_two_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """Watch two runs. The first is terminated after the first refresh, and Ctrl-C follows the third."""
    target = f"local:{tmp_path / 'watch.db'}"

    def watch(*options: str) -> list[str]:
        with Client.connect(target) as client:
            first = client.start_workflow("anything", id="first")
            client.start_workflow("anything", id="second")
            rounds = iter([first.terminate, lambda: None])

            def pause(seconds: float) -> None:
                next_ = next(rounds, None)
                if next_ is None:
                    raise KeyboardInterrupt
                next_()

            monkeypatch.setattr("hourglass._tools.cli.listing.sleep", pause)
            assert main(["list", "--watch", "--target", target, *options]) == 130
        return capsys.readouterr().out.splitlines()

    return watch


def test_list_watch_json_prints_new_and_changed_runs_only(watch_two_runs: Callable[..., list[str]]) -> None:
    found = [json.loads(line) for line in watch_two_runs("--json")]
    assert [(each["id"], each["status"]) for each in found] == [
        ("first", "RUNNING"),
        ("second", "RUNNING"),
        ("first", "TERMINATED"),
    ]


def test_list_watch_in_a_pipe_prints_rows(watch_two_runs: Callable[..., list[str]]) -> None:
    rows = [" ".join(line.split()) for line in watch_two_runs()]
    expected = ("first running, no worker", "second running, no worker", "first terminated")
    assert len(rows) == len(expected)
    assert all(row.startswith(text) for row, text in zip(rows, expected, strict=True))


def test_list_watch_prints_a_run_that_becomes_parked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = f"local:{tmp_path / 'watch.db'}"
    with Client.connect(target) as client:
        handle = client.start_workflow(broken, id="bug")
        rounds = iter([True, False])

        def pause(seconds: float) -> None:
            if not next(rounds):
                raise KeyboardInterrupt
            with Worker(client, workflows=[broken]):
                until(lambda: handle.describe().reported_problems)

        monkeypatch.setattr("hourglass._tools.cli.listing.sleep", pause)
        assert main(["list", "--watch", "--target", target]) == 130
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[:5] == ["bug", "running,", "no", "worker", "broken"]
    assert second.split()[:4] == ["bug", "running,", "parked", "broken"]
