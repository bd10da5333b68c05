"""`hourglass show` on history files and on runs of a target."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import main
from hourglass.client import Client
from hourglass.worker import Worker

from . import flows
from .histories import order_history


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "order.json"
    path.write_text(order_history().text)
    return path


def test_show_draws_an_exported_history_without_payloads(
    history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(history), "--width", "100"]) == 0
    out = capsys.readouterr().out
    assert "charge_card (3 attempts)" in out
    assert "secret" not in out
    assert "\x1b" not in out


def test_show_includes_payloads_only_with_the_option(
    history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(history), "--json"]) == 0
    assert "secret" not in capsys.readouterr().out
    assert main(["show", str(history), "--json", "--payloads"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["spans"][1]["values"]["input"] == '"secret"'


def test_show_writes_html_and_svg_files(
    history: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, picture = tmp_path / "o.html", tmp_path / "o.svg"
    assert main(["show", str(history), "--html", str(page), "--svg", str(picture)]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert picture.read_text(encoding="utf-8").startswith("<svg")
    message = capsys.readouterr()
    assert message.out == ""
    assert "o.html" in message.err


@pytest.mark.parametrize(
    ("content", "arguments", "code", "message"),
    [
        ("{}", (), 1, "list of events"),
        (None, (), 2, "cannot be read"),
        ("{}", ("--follow",), 2, "--follow"),
    ],
)
def test_show_reports_invalid_missing_and_unfollowable_files(
    content: str | None,
    arguments: tuple[str, ...],
    code: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "some.json"
    if content is not None:
        path.write_text(content)
    assert main(["show", str(path), *arguments]) == code
    assert message in " ".join(capsys.readouterr().err.split())


def test_show_follow_ends_with_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"local:{tmp_path / 'trips.db'}"
    with Client.connect(target) as client:
        client.start_workflow(flows.trip, "there", id="trip-1")
        assert main(["show", "trip-1", "--target", target]) == 0
        assert "running" in capsys.readouterr().out
        with Worker(client, workflows=[flows.trip], activities=[flows.flaky]):
            assert main(["show", "trip-1", "--target", target, "--follow", "--width", "120"]) == 0
        out = capsys.readouterr().out
        assert "completed" in out
        assert "flaky (2 attempts)" in out
        assert main(["show", "trip-2", "--target", target]) == 1
        assert "trip-2" in capsys.readouterr().err
