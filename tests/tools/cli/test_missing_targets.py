"""Commands for missing files, workflows and workers: they create no file and suggest what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import main
from hourglass import Client, Worker, limits, workflow
from hourglass.errors import WorkflowFailedError

from .command import LIMIT, run_command

Capture = pytest.CaptureFixture[str]

COMMANDS = [
    ["list"],
    ["list", "--parked"],
    ["list", "--count"],
    ["show", "order-1"],
    ["why", "order-1"],
    ["describe", "order-1"],
    ["signal", "decision", "order-1", "true"],
    ["query", "state", "order-1"],
    ["update", "deposit", "order-1"],
    ["cancel", "order-1"],
    ["terminate", "order-1"],
    ["reset", "order-1"],
    ["doctor"],
]


@workflow.defn
def returns_yes() -> str:
    return "yes"


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no target in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOURGLASS_TARGET", raising=False)
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    return tmp_path


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_commands_on_a_missing_default_file_create_nothing(
    arguments: list[str], empty_folder: Path, capsys: Capture
) -> None:
    code = main(arguments)
    message = "".join(capsys.readouterr())
    assert list(empty_folder.iterdir()) == []
    if arguments == ["doctor"]:
        assert (code, "does not exist yet" in message) == (0, True)
    else:
        assert code == 1
        assert "hourglass.db does not exist: no workflow has been started there yet" in message


def test_command_names_the_missing_file_of_its_target(empty_folder: Path, capsys: Capture) -> None:
    assert main(["list", "--target", "local:orders.db"]) == 1
    assert capsys.readouterr().err == (
        f"error: file {empty_folder / 'orders.db'} does not exist: no workflow has been started there yet\n"
    )


def test_commands_with_unknown_id_suggest_a_similar_id(empty_folder: Path, capsys: Capture) -> None:
    with Client.connect("local:shop.db") as client, Worker(client, workflows=[returns_yes]):
        client.execute_workflow(returns_yes, id="order-17")
        for command in (["show", "order-7"], ["describe", "order-7"], ["cancel", "order-7"]):
            assert main([*command, "--target", "local:shop.db"]) == 1
            err = capsys.readouterr().err
            assert (
                err == "error: workflow 'order-7' does not exist on local:shop.db\n  did you mean order-17?\n"
            )


def test_signal_to_a_closed_workflow_fails_and_cancel_succeeds(empty_folder: Path, capsys: Capture) -> None:
    with Client.connect("local:shop.db") as client, Worker(client, workflows=[returns_yes]):
        client.execute_workflow(returns_yes, id="order-17")
        assert main(["signal", "go", "order-17", "--target", "local:shop.db"]) == 1
        assert "order-17 is closed (completed): " in capsys.readouterr().err
        assert main(["cancel", "order-17", "--target", "local:shop.db"]) == 0
        assert capsys.readouterr().out == "order-17 is already closed (completed)\n"


def test_pending_debounced_calls_are_cancelled_by_name(empty_folder: Path, capsys: Capture) -> None:
    """They have no run that could be described."""
    cancel_command = ["cancel", "hourglass.debounce:page-7", "--target", "local:shop.db"]
    with Client.connect("local:shop.db") as client, Worker(client, workflows=[returns_yes]):
        call = limits.debounce(client, returns_yes, key="page-7", wait=3600)
        assert main(cancel_command) == 0
        assert capsys.readouterr().out == "requested cancellation of hourglass.debounce:page-7\n"
        with pytest.raises(WorkflowFailedError, match="not run"):
            call.started(timeout=LIMIT)
        assert main(cancel_command) == 1
        assert "workflow 'hourglass.debounce:page-7' does not exist" in capsys.readouterr().err


def test_query_without_a_worker_times_out_and_names_the_command(empty_folder: Path, capsys: Capture) -> None:
    with Client.connect("local:shop.db") as client:
        client.start_workflow(returns_yes, id="order-17", task_queue="rush")
        assert main(["query", "state", "order-17", "--timeout", "0.2", "--target", "local:shop.db"]) == 1
    err = capsys.readouterr().err
    assert "the query was not answered within 0.2 s: no worker polls task queue 'rush'" in err
    assert "start one: hourglass worker FILE --task-queue rush" in err


def test_waiting_command_without_a_worker_suggests_starting_one(empty_folder: Path) -> None:
    with Client.connect("local:shop.db") as client:
        client.start_workflow(returns_yes, id="order-17")
    process = run_command(
        "query", "state", "order-17", "--timeout", "4", "--target", "local:shop.db", cwd=empty_folder
    )
    assert process.returncode == 1
    assert "no worker is running on " in process.stderr
    assert "start one in another terminal: hourglass worker FILE --target local:shop.db" in process.stderr
    assert "Worker(" not in process.stderr


def test_closed_output_pipe_ends_the_command_with_141(empty_folder: Path) -> None:
    with Client.connect("local:shop.db") as client:
        for number in range(300):
            client.start_workflow(returns_yes, id=f"order-{number}")
    reading, writing = os.pipe()
    listing = [sys.executable, "-m", "hourglass", "list", "--json", "-n", "300", "--target", "local:shop.db"]
    with subprocess.Popen(listing, stdout=writing, stderr=subprocess.PIPE, text=True) as process:
        os.close(writing)
        os.read(reading, 10)
        os.close(reading)
        _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (141, "")


def test_import_from_the_wrong_module_names_the_right_one(empty_folder: Path, capsys: Capture) -> None:
    (empty_folder / "lost.py").write_text("from hourglass import Channel\n")
    assert main(["run", "lost.py"]) == 2
    assert "it is in hourglass.workflow: from hourglass.workflow import Channel" in capsys.readouterr().err


def test_doctor_detects_a_damaged_database_page(empty_folder: Path, capsys: Capture) -> None:
    """Such a file may open and list without errors."""
    with Client.connect("local:orders.db") as client, Worker(client, workflows=[returns_yes]):
        for number in range(20):
            assert client.execute_workflow(returns_yes, id=f"order-{number}") == "yes"
    assert main(["doctor", "--target", "local:orders.db"]) == 0
    assert "ok    pages              not damaged" in capsys.readouterr().out
    path = empty_folder / "orders.db"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xff" * 8192)
    assert main(["doctor", "--target", "local:orders.db"]) == 1
    assert "WRONG pages              damaged: " in capsys.readouterr().out


def test_doctor_does_not_report_a_hard_linked_file_in_use_as_damaged(
    empty_folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its latest pages are in the WAL of the other name."""
    monkeypatch.setenv("HOURGLASS_ALLOW_HARD_LINKS", "1")
    with Client.connect("local:orders.db") as client, Worker(client, workflows=[returns_yes]):
        assert client.execute_workflow(returns_yes, id="order-1") == "yes"
        os.link("orders.db", "link.db")
        assert main(["doctor", "--target", "local:link.db"]) == 1
    printed = capsys.readouterr().out
    assert "pages              could not be read: the file" in printed
    assert "damaged" not in printed
