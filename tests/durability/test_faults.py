"""Failing disks, files and clocks under a client and a worker: clear errors, no loss, no unnecessary restart.

Each fault is a program of `faults`, in a process of its own.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from hourglass import Client

from . import faults

PROGRAMS = (
    "file_moved",
    "folder_moved",
    "file_deleted",
    "invalid_file_replaced",
    "clock_forward",
    "clock_back",
    "clock_briefly_ahead",
    "torn_log_of_dead_worker",
)
ROOT = Path(__file__).resolve().parents[2]


def run_program(name: str, path: Path, before: Sequence[str | Path] = ()) -> str:
    command = [*before, sys.executable, "-m", "tests.durability.faults", name, path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=180, check=False)
    *output, last = done.stdout.splitlines() or [""]
    assert (last, done.returncode) == ("held", 0), done.stdout + done.stderr
    return "\n".join(output)


def mount_command(folder: Path, *commands: str) -> list[str | Path]:
    if sys.platform != "linux" or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("mounting is not permitted here")
    folder.mkdir(exist_ok=True)
    script = " && ".join([*commands, 'shift && exec "$@"'])
    return ["unshare", "-m", "sh", "-c", script, "sh", folder]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "place"
    folder.mkdir()
    return folder / "orders.db"


def start_basket(path: Path) -> None:
    with Client.connect(f"local:{path}") as client:
        client.start_workflow(faults.Basket.run, id="basket")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[str]]]:
    """Most of their time these programs wait for a look that is taken once a second: so they run side by side."""
    with ThreadPoolExecutor(4) as pool:
        yield {
            name: pool.submit(run_program, name, tmp_path_factory.mktemp(name) / "orders.db")
            for name in PROGRAMS
        }


@pytest.mark.parametrize("name", PROGRAMS)
def test_guarantee_holds_under_file_or_clock_fault(name: str, outcomes: dict[str, Future[str]]) -> None:
    outcomes[name].result()


def test_engine_recovers_from_a_full_disk(path: Path) -> None:
    run_program("full_disk", path, mount_command(path.parent, 'mount -t tmpfs -o size=64m none "$1"'))


def test_file_on_a_full_disk_can_be_opened_for_reading(path: Path) -> None:
    run_program(
        "full_disk_at_opening", path, mount_command(path.parent, 'mount -t tmpfs -o size=64m none "$1"')
    )


def test_file_on_a_read_only_disk_is_rejected(path: Path) -> None:
    start_basket(path)
    read_only = mount_command(path.parent, 'mount --bind "$1" "$1"', 'mount -o remount,bind,ro "$1"')
    output = run_program("unusable_file_rejected", path, read_only)
    assert "Read-only file system" in output


def set_newer_format(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def erase_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[:100] = bytes(100)
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def overwrite_pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xee" * (len(data) - 4096)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (set_newer_format, "has format 99, but this version of Hourglass supports only formats up to"),
        (erase_header, "is not a database"),
        (truncate, "is corrupt: restore a backup"),
        (overwrite_pages, "is corrupt: restore a backup"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_invalid_file_is_rejected_and_stays_unchanged(
    path: Path, harm: Callable[[Path], None], words: str
) -> None:
    start_basket(path)
    harm(path)
    assert words in run_program("unusable_file_rejected", path)
