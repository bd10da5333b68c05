"""The dev server: found, started, killed, restarted, and never left behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from hourglass._contract import workflows as wf
from hourglass.errors import ConnectionFailedError, UsageError
from hourglass.testing import DevServer, _dev_server, dev_server
from hourglass.testing._dev_server import CLI, find_cli, free_port

from . import live


def listens(target: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 0.5).close()
    except OSError:
        return False
    return True


@pytest.mark.server
def test_dev_server_runs_inside_its_block(tmp_path: Path) -> None:
    """A server with a namespace, a database file and the web UI serves inside the block, and is gone after it."""
    with dev_server(namespace="mine", db_filename=tmp_path / "t.db", ui=True) as server:
        assert server.pid is not None
        assert server.ui_url is not None
        with urllib.request.urlopen(server.ui_url, timeout=10) as page:
            assert page.status == 200

        async def test() -> None:
            async with live.connected(server.target, namespace="mine") as connection:
                assert (await connection.call(wf.CountWorkflows())).count == 0

        live.run(test)
        assert "mine" in repr(server)
    assert "stopped" in repr(server)
    assert not listens(server.target)
    server.stop()
    server.kill()


@pytest.mark.server
def test_dev_server_on_a_file_survives_a_restart(tmp_path: Path) -> None:
    """A server on a file that is killed and started again has the same address and forgets nothing."""
    with dev_server(db_filename=tmp_path / "t.db") as server:

        async def begin() -> None:
            async with live.connected(server.target) as connection:
                await connection.call(live.start("q", "kept"))

        live.run(begin)
        before, first = server.target, server.pid
        server.restart()
        assert server.target == before
        assert server.pid != first

        async def look() -> None:
            async with live.connected(server.target) as connection:
                described = await connection.call(wf.DescribeWorkflow(workflow_id="kept"))
                assert described.summary.status is wf.WorkflowStatus.RUNNING

        live.run(look)
        with pytest.raises(UsageError, match="is already running"):
            server.start()
        server.kill()
        assert not listens(server.target)


@pytest.mark.server
def test_dev_server_ends_with_its_parent() -> None:
    """A server whose owner is killed without a chance to say goodbye ends too."""
    program = (
        "import sys, time\n"
        "from hourglass.testing._dev_server import dev_server\n"
        "with dev_server() as server:\n"
        "    print(server.target, flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        target = owner.stdout.readline().strip()
        assert listens(target)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    deadline = time.monotonic() + live.LIMIT
    while listens(target) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not listens(target)


@pytest.mark.server
def test_used_port_is_rejected(server: DevServer) -> None:
    """A port where another process already listens is refused: that one would answer in our server's place."""
    port = int(server.target.rpartition(":")[2])
    with pytest.raises(UsageError, match="another process already listens"), dev_server(port=port):
        pass


def test_dev_server_retries_another_port(tmp_path: Path) -> None:
    """A server that finds one of the ports it chose taken is started again; what else it dies of is told at once."""
    log = tmp_path / "starts"
    program = (
        f"log = open({str(log)!r}, 'a+'); log.write('.'); log.flush(); log.seek(0)\n"
        "print('bind: address already in use' if len(log.read()) < 2 else 'no such thing')\n"
        "raise SystemExit(1)\n"
    )
    server = DevServer([sys.executable, "-c", program], port=free_port(), ui_port=None, namespace="default")
    with pytest.raises(ConnectionFailedError, match="no such thing"):
        server.start()
    assert log.read_text() == ".."


@pytest.mark.server
def test_failing_dev_server_shows_its_output() -> None:
    """A server that cannot start is an error that shows its last words."""
    with (
        pytest.raises(ConnectionFailedError, match=r"(?s)before it was ready.*last output:.*no-such-flag"),
        dev_server(extra_args=["--no-such-flag"]),
    ):
        pass


def test_silent_failure_shows_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that ends at once and is silent is reported with its status."""
    monkeypatch.setenv(CLI, "/bin/false")
    with (
        pytest.raises(ConnectionFailedError, match="status 1 before it was ready, without any output"),
        dev_server(),
    ):
        pass


def test_dev_server_command_is_located(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command comes from its variable, then from the PATH, then from the wheel; else the error says how to get it."""
    program = tmp_path / "temporal"
    program.write_text("#!/bin/sh\n")
    monkeypatch.setenv(CLI, str(program))
    with pytest.raises(UsageError, match="not an executable file"):
        find_cli()
    program.chmod(0o755)
    assert find_cli() == str(program)
    monkeypatch.delenv(CLI)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_cli() == str(program)
    monkeypatch.setenv("PATH", "")
    assert Path(find_cli()).name == "temporal"
    monkeypatch.setattr(_dev_server, "_from_wheel", lambda: None)
    with pytest.raises(UsageError, match="pip install"):
        find_cli()


def test_free_port_can_be_bound() -> None:
    """A free port can be bound."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))
