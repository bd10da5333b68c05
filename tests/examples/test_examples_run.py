"""The examples do what they say, as programs of their own."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TARGETS = ("HOURGLASS_TARGET", "TEMPORAL_ADDRESS")


def _run(name: str, **environment: str) -> str:
    """Run an example, with no target but the one that is given; its output, and nothing on the error stream."""
    clean = {key: value for key, value in os.environ.items() if key not in TARGETS}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name)],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def _in_order(text: str, *pieces: str) -> bool:
    """Whether the pieces stand in the text, one after another."""
    return re.search(".*".join(re.escape(piece) for piece in pieces), text, re.DOTALL) is not None


def test_hello() -> None:
    """The smallest example greets, in memory, and says nothing else."""
    assert _run("hello.py") == "Hello, world!\n"


def test_checkout_in_memory() -> None:
    """The demo also runs against a target that the environment names; here the engine in memory."""
    assert "approved_by='Ann'" in _run("checkout.py", HOURGLASS_TARGET="local:")


@pytest.mark.server
def test_checkout_on_temporal() -> None:
    """The demo fails once, retries, waits for its signal and its timer, returns, replays, and stops its server."""
    output = _run("checkout.py")
    assert _in_order(
        output,
        "Temporal listens on",
        "is started",
        "everything is reserved",
        "attempt 1 fails",
        "attempt 2 takes 129.00",
        "wait for the signal",
        "Ann approves",
        "a timer of one second",
        "the workflow returned Receipt(",
        "approved_by='Ann', parcels=['parcel-lamp', 'parcel-chair', 'parcel-rug'])",
        "replay on this code",
        "everything is stopped",
    ), output
    for item in ("lamp", "chair", "rug"):
        assert _in_order(output, f"reserve {item}", f"ship {item}")
    port = re.search(r"listens on 127\.0\.0\.1:(\d+)", output)
    assert port
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port[1]))) != 0
