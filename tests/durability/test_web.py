"""Web processes forked after connecting, workers killed under them, and web processes that execute work themselves."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from . import work
from .fork_server import ROOT
from .web import PROCESSES, ask_while_owners_die


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_web_requests_survive_kills_of_the_owner_process(tmp_path: Path) -> None:
    results = ask_while_owners_die(tmp_path, kills=3, life=0.1)
    assert not results.errors, [*results.errors[:5], (tmp_path / "log").read_text()[-3000:]]
    assert len(results.takeovers) == 3
    assert 1 <= len(results.served_by) <= PROCESSES


def test_every_uvicorn_process_executes_activities(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    log = tmp_path / "log"
    with log.open("wb") as errors:
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "uvicorn",
                "--workers",
                "3",
                "--port",
                str(port),
                "tests.durability.asgi_app:app",
            ],
            cwd=ROOT,
            env={**os.environ, work.FILE: str(tmp_path / "web.db")},
            stdout=errors,
            stderr=errors,
        )
    try:
        deadline = time.monotonic() + 60
        while log.read_text().count("startup complete") < 3:
            assert time.monotonic() < deadline, log.read_text()
            assert server.poll() is None, log.read_text()
            time.sleep(0.05)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/30", timeout=60) as answer:
            done = answer.read().decode().split()
        assert (len(done), len(set(done))) == (30, 3), log.read_text()
    finally:
        server.terminate()
        server.wait(60)
