"""An owner that is stopped (SIGSTOP) keeps its lock: its peers, `hourglass doctor` and the guardian report it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import until

from hourglass import Client

from . import work
from .children import Child, ready_worker


def logged(child: Child, text: str) -> bool:
    return text in "".join(child.log)


def run_doctor(path: Path) -> str:
    command = [sys.executable, "-m", "hourglass", "doctor", "--target", f"local:{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    return done.stdout


def test_stopped_owner_is_reported_and_continues_when_resumed(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    with ready_worker(path) as owner, ready_worker(path) as second:
        os.kill(owner.pid, signal.SIGSTOP)
        until(lambda: logged(second, f"process {owner.pid} owns"), "the peer reports nothing")
        assert second.ask("standing") == f"working for process {owner.pid}, which does not respond"
        assert second.ask("ready").startswith(f"False process {owner.pid}, the owner of")
        assert f"process {owner.pid}, which holds the file, is suspended" in run_doctor(path)
        os.kill(owner.pid, signal.SIGCONT)
        until(lambda: logged(second, "responds again"), "the peer does not notice")
        assert second.ask("ready") == "True"
        with Client.connect(f"local:{path}") as client:
            assert client.start_workflow(work.twice, 1, id="after").result(timeout=60) == 3
        assert [owner.ask("standing"), second.ask("standing")] == [
            "owner",
            f"working for process {owner.pid}",
        ]


def test_client_stopped_in_its_transaction_is_reported(tmp_path: Path) -> None:
    """A worker that starts meanwhile names the process, and works once that has ended."""
    path = tmp_path / "shared.db"
    with Child("lock", path) as holder:
        assert holder.line() == "held"
        os.kill(holder.pid, signal.SIGSTOP)
        with Child("worker", path) as worker:
            until(
                lambda: logged(worker, f"lock of {path} is held by process {holder.pid}"),
                "the worker reports nothing",
            )
            assert worker.line() == "ready"
            until(lambda: worker.ask("ready").startswith("False"), "it is ready")
            holder.kill()
            until(lambda: worker.ask("standing") == "owner", "the worker does not take the file")
            until(lambda: worker.ask("ready") == "True", "it is not ready")


def test_doctor_reports_an_owner_that_does_not_respond(tmp_path: Path) -> None:
    """A process in a frozen container is not stopped by a signal; others see only that it does not respond."""
    path = tmp_path / "shared.db"
    with ready_worker(path) as worker:
        worker.ask("leave")
        worker.ended()
    with Child("lock", path) as holder:
        assert holder.line() == "held"
        assert f"process {holder.pid}, which holds the file, does not respond" in run_doctor(path)


def test_guardian_replaces_a_stopped_process(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    command = [
        *(sys.executable, "-m", "hourglass", "worker", "tests.embedded.multiprocess.work"),
        *("--target", f"local:{path}"),
    ]
    guardian = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    try:
        with Client.connect(f"local:{path}") as client:
            assert client.start_workflow(work.twice, 1, id="before").result(timeout=60) == 3
            stopped = json.loads(Path(f"{path}-lock").read_text())["pid"]
            os.kill(stopped, signal.SIGSTOP)
            assert client.start_workflow(work.twice, 1, id="after").result(timeout=60) == 3
        until(lambda: not Path(f"/proc/{stopped}").exists(), "the stopped process has not ended")
    finally:
        guardian.kill()
        _, log = guardian.communicate()
    assert "was suspended by a signal for 10 s and was killed" in log
