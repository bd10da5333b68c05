"""Commands that look where nothing is: they make no file, and say what is there instead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import main
from hourglass import Client, Worker, limits, workflow
from hourglass.errors import WorkflowFailedError

from .command import LIMIT, run

LOOKING = [
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
def nods() -> str:
    return "yes"


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the working directory, and no target in the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOURGLASS_TARGET", raising=False)
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    return tmp_path


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_read_commands_create_no_file(
    arguments: list[str], empty: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty folder stays empty; what is missing is named, and how it comes to be."""
    code = main(arguments)
    said = "".join(capsys.readouterr())
    assert list(empty.iterdir()) == []
    if arguments == ["doctor"]:
        assert (code, "does not exist yet" in said) == (0, True)
    else:
        assert code == 1
        assert "hourglass.db does not exist: no workflow has been started there yet" in said


def test_missing_named_file_is_reported(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who names a file is told about that one, not about defaults."""
    assert main(["list", "--target", "local:orders.db"]) == 1
    assert capsys.readouterr().err == (
        f"error: file {empty / 'orders.db'} does not exist: no workflow has been started there yet\n"
    )


def test_similar_ids_are_suggested(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not there is told with what may have been meant."""
    with Client.connect("local:shop.db") as client, Worker(client, workflows=[nods]):
        client.execute_workflow(nods, id="order-17")
        for command in (["show", "order-7"], ["describe", "order-7"], ["cancel", "order-7"]):
            assert main([*command, "--target", "local:shop.db"]) == 1
            err = capsys.readouterr().err
            assert (
                err == "error: workflow 'order-7' does not exist on local:shop.db\n  did you mean order-17?\n"
            )


def test_signal_to_a_closed_workflow_is_rejected(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A signal to a closed one is refused with its end; asking it to cancel is harmless, and said to be."""
    with Client.connect("local:shop.db") as client, Worker(client, workflows=[nods]):
        client.execute_workflow(nods, id="order-17")
        assert main(["signal", "go", "order-17", "--target", "local:shop.db"]) == 1
        assert "order-17 is closed (completed): " in capsys.readouterr().err
        assert main(["cancel", "order-17", "--target", "local:shop.db"]) == 0
        assert capsys.readouterr().out == "order-17 is already closed (completed)\n"


def test_collected_calls_are_cancelled_by_name(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A burst of calls that waits in a file has no run to describe, and is cancelled by its name all the same, once."""
    drop = ["cancel", "hourglass.debounce:page-7", "--target", "local:shop.db"]
    with Client.connect("local:shop.db") as client, Worker(client, workflows=[nods]):
        call = limits.debounce(client, nods, key="page-7", wait=3600)
        assert main(drop) == 0
        assert capsys.readouterr().out == "requested cancellation of hourglass.debounce:page-7\n"
        with pytest.raises(WorkflowFailedError, match="not run"):
            call.started(timeout=LIMIT)
        assert main(drop) == 1
        assert "workflow 'hourglass.debounce:page-7' does not exist" in capsys.readouterr().err


def test_query_without_a_worker_times_out(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It does not hang: after its limit it says that no worker polls the queue, and how to start one."""
    with Client.connect("local:shop.db") as client:
        client.start_workflow(nods, id="order-17", task_queue="rush")
        assert main(["query", "state", "order-17", "--timeout", "0.2", "--target", "local:shop.db"]) == 1
    err = capsys.readouterr().err
    assert "the query was not answered within 0.2 s: no worker polls task queue 'rush'" in err
    assert "start one: hourglass worker FILE --task-queue rush" in err


def test_waiting_without_a_worker_suggests_the_command(empty: Path) -> None:
    """A command that waits says for whom, and the command that starts one; no line of Python."""
    with Client.connect("local:shop.db") as client:
        client.start_workflow(nods, id="order-17")
    done = run("query", "state", "order-17", "--timeout", "4", "--target", "local:shop.db", cwd=empty)
    assert done.returncode == 1
    assert "no worker is running on " in done.stderr
    assert "start one in another terminal: hourglass worker FILE --target local:shop.db" in done.stderr
    assert "Worker(" not in done.stderr


def test_closed_reader_ends_the_command_silently(empty: Path) -> None:
    """A reader that goes away ends the command silently, as the shell knows it."""
    with Client.connect("local:shop.db") as client:
        for number in range(300):
            client.start_workflow(nods, id=f"order-{number}")
    reading, writing = os.pipe()
    listing = [sys.executable, "-m", "hourglass", "list", "--json", "-n", "300", "--target", "local:shop.db"]
    with subprocess.Popen(listing, stdout=writing, stderr=subprocess.PIPE, text=True) as process:
        os.close(writing)
        os.read(reading, 10)
        os.close(reading)
        _, err = process.communicate(timeout=LIMIT)
    assert (process.returncode, err) == (141, "")


def test_misplaced_import_names_the_module(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Most names are in `workflow` and `activity`: who looks for one in the package itself is shown where it is."""
    (empty / "lost.py").write_text("from hourglass import Channel\n")
    assert main(["run", "lost.py"]) == 2
    assert "it is in hourglass.workflow: from hourglass.workflow import Channel" in capsys.readouterr().err


def test_doctor_finds_a_damaged_page(empty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file may open and list well although a part of it is broken: SQLite reads all of it, and says where."""
    with Client.connect("local:orders.db") as client, Worker(client, workflows=[nods]):
        for number in range(20):
            assert client.execute_workflow(nods, id=f"order-{number}") == "yes"
    assert main(["doctor", "--target", "local:orders.db"]) == 0
    assert "ok    pages              not damaged" in capsys.readouterr().out
    path = empty / "orders.db"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xff" * 8192)
    assert main(["doctor", "--target", "local:orders.db"]) == 1
    assert "WRONG pages              damaged: " in capsys.readouterr().out


def test_doctor_does_not_take_a_file_in_use_under_another_name_for_damaged(
    empty: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest pages are in the log beside the first name: the pages of the file alone are no finding."""
    monkeypatch.setenv("HOURGLASS_ALLOW_HARD_LINKS", "1")
    with Client.connect("local:orders.db") as client, Worker(client, workflows=[nods]):
        assert client.execute_workflow(nods, id="order-1") == "yes"
        os.link("orders.db", "link.db")
        assert main(["doctor", "--target", "local:link.db"]) == 1
    printed = capsys.readouterr().out
    assert "pages              could not be read: the file" in printed
    assert "damaged" not in printed
