"""Commands that run until they are stopped: SIGTERM ends them with exit code 0."""

from __future__ import annotations

import signal
import socket
import time
from pathlib import Path

from .command import LIMIT, Command


def _port() -> str:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def _wait_until_it_listens(port: str) -> None:
    end = time.monotonic() + LIMIT
    while True:
        try:
            socket.create_connection(("127.0.0.1", int(port)), 1).close()
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)  # it is retried until it listens
        else:
            return


def test_web_ui_and_codec_server_stop_on_sigterm(tmp_path: Path) -> None:
    """Without a handler, process 1 of a container would ignore the signal."""
    (tmp_path / "sealing.py").write_text(
        "class Codec:\n    def encode(self, payloads): return payloads\n    decode = encode\n\n\ncodec = Codec()\n"
    )
    ports = (_port(), _port())
    ui_command = ("ui", "--target", f"local:{tmp_path / 'a.db'}", "--port", ports[0], "--no-open")
    codec_command = ("codec-server", "--codec", "sealing:codec", "--port", ports[1])
    with Command("start", "x", "--target", f"local:{tmp_path / 'a.db'}", cwd=tmp_path) as start:
        assert start.wait_end() == 0
    with Command(*ui_command, cwd=tmp_path) as first, Command(*codec_command, cwd=tmp_path) as second:
        for each, port in zip((first, second), ports, strict=True):
            _wait_until_it_listens(port)
            each.signal(signal.SIGTERM)
            assert each.wait_end() == 0, each.text
