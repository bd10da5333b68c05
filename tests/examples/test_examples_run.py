"""The checkout demo as a program: in memory, interrupted and continued on a file, and on a server."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import EXAMPLES, TARGETS, Program

CHECKOUT = str(EXAMPLES / "checkout.py")


def _run_until(text: str, end: signal.Signals, *arguments: str) -> tuple[int, str]:
    """Run an example until a line contains the text, then send it a signal. Return exit status and output."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", *arguments],
        env={key: value for key, value in os.environ.items() if key not in TARGETS},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if text in line:
                process.send_signal(end)
                break
        output += process.stdout.read()
        return process.wait(60), output


def _in_order(text: str, *pieces: str) -> bool:
    """Return whether the pieces occur in the text in this order."""
    return re.search(".*".join(re.escape(piece) for piece in pieces), text, re.DOTALL) is not None


def test_checkout_example_runs_in_memory(run_program: Program) -> None:
    assert "approved_by='Ann'" in run_program(CHECKOUT, "--pace", "0", HOURGLASS_TARGET="local:")


def test_checkout_example_continues_after_kill_and_charges_once(run_program: Program, tmp_path: Path) -> None:
    """First killed by SIGKILL, then interrupted by Ctrl-C."""
    folder = tmp_path / "place"
    paced = (CHECKOUT, "--folder", str(folder), "--pace", "0.05")
    status, first = _run_until("the bank does not answer", signal.SIGKILL, *paced)
    assert status == -signal.SIGKILL
    assert "is started: from now on it is durable" in first
    status, second = _run_until("approved by Ann", signal.SIGINT, *paced)
    assert status == 130
    assert _in_order(
        second, "was interrupted and goes on", "✓ reserve × 3", "the bank takes 129.00", "interrupted"
    )
    assert "reserve the" not in second
    third = run_program(*paced)
    assert _in_order(
        third,
        "was interrupted and goes on",
        "✓ reserve × 3",
        "✓ charge",
        "✓ ask_for_approval",
        "the workflow returned Receipt(",
        "approved_by='Ann', parcels=['parcel-lamp', 'parcel-chair', 'parcel-rug'])",
        "charged once",
        "are a Temporal history, and replay on this code",
    ), third
    assert "Ann approves" not in third
    order = re.search(r"order-\w+", first)
    assert order
    assert (folder / "bank.txt").read_text() == f"{order[0]} 129.00\n"
    assert order[0] not in run_program(*paced), "the next run is another order"


@pytest.mark.server
def test_checkout_example_runs_on_a_server_and_stops_it(run_program: Program) -> None:
    output = run_program(CHECKOUT, "--temporal", "--pace", "0")
    assert _in_order(
        output,
        "Temporal listens on",
        "is started",
        "everything is reserved",
        "the bank does not answer",
        "attempt 2; the bank takes 129.00",
        "Ann approves",
        "(a timer)",
        "the workflow returned Receipt(",
        "approved_by='Ann', parcels=['parcel-lamp', 'parcel-chair', 'parcel-rug'])",
        "replay on this code",
        "stopped",
    ), output
    assert _in_order(output, "takes 129.00", "wait for a signal", "(a timer)"), (
        output
    )  # Ann may be the quicker
    for item in ("lamp", "chair", "rug"):
        assert _in_order(output, f"reserve the {item}", f"ship the {item}")
    port = re.search(r"listens on 127\.0\.0\.1:(\d+)", output)
    assert port
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", int(port[1]))) != 0
