"""`hourglass list --watch` where a program reads: a line for each run that is new, or has changed."""

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
    """Its code has a bug."""
    return {}["missing"]


@pytest.fixture
def watched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """Watches two runs, one of which is terminated after the first look; Ctrl-C after the third."""
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


def test_watch_prints_json_for_programs(watched: Callable[..., list[str]]) -> None:
    """Each is a JSON document, and what has not changed is not said again."""
    found = [json.loads(line) for line in watched("--json")]
    assert [(each["id"], each["status"]) for each in found] == [
        ("first", "RUNNING"),
        ("second", "RUNNING"),
        ("first", "TERMINATED"),
    ]


def test_watch_prints_rows_in_a_pipe(watched: Callable[..., list[str]]) -> None:
    """In a pipe nothing is drawn over: the same, as rows."""
    rows = [" ".join(line.split()) for line in watched()]
    expected = ("first running, no worker", "second running, no worker", "first terminated")
    assert len(rows) == len(expected)
    assert all(row.startswith(text) for row, text in zip(rows, expected, strict=True))


def test_watch_reports_a_parked_run_as_a_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that continues running, but no further, is told of again."""
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
