"""The dev server: located, started, killed, restarted, and always stopped."""

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


def is_listening(target: str) -> bool:
    """Whether a process accepts connections at this address."""
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 0.5).close()
    except OSError:
        return False
    return True


@pytest.mark.server
def test_dev_server_runs_only_inside_its_with_block(tmp_path: Path) -> None:
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
    assert not is_listening(server.target)
    server.stop()
    server.kill()


@pytest.mark.server
def test_dev_server_on_a_file_keeps_its_address_and_workflows_after_a_restart(tmp_path: Path) -> None:
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
        assert not is_listening(server.target)


@pytest.mark.server
def test_dev_server_exits_when_its_parent_is_killed() -> None:
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
        assert is_listening(target)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    deadline = time.monotonic() + live.LIMIT
    while is_listening(target) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_listening(target)


@pytest.mark.server
def test_dev_server_on_a_used_port_is_rejected(server: DevServer) -> None:
    port = int(server.target.rpartition(":")[2])
    with pytest.raises(UsageError, match="another process already listens"), dev_server(port=port):
        pass


def test_dev_server_retries_with_another_port_if_its_port_is_taken(tmp_path: Path) -> None:
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
def test_dev_server_start_error_shows_the_output_of_the_process() -> None:
    with (
        pytest.raises(ConnectionFailedError, match=r"(?s)before it was ready.*last output:.*no-such-flag"),
        dev_server(extra_args=["--no-such-flag"]),
    ):
        pass


def test_dev_server_start_error_without_output_shows_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CLI, "/bin/false")
    with (
        pytest.raises(ConnectionFailedError, match="status 1 before it was ready, without any output"),
        dev_server(),
    ):
        pass


def test_dev_server_command_is_found_by_variable_path_or_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", free_port()))
