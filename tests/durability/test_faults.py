"""Disks, files and clocks that fail under a client and a worker: clear errors, nothing lost, no restart where none is needed.

Each fault is met by a program of `faults`, in a process of its own.
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
    "mended",
    "clock_forward",
    "clock_back",
    "clock_moment",
    "torn_log",
)
ROOT = Path(__file__).resolve().parents[2]


def held(name: str, path: Path, before: Sequence[str | Path] = ()) -> str:
    """Run a program; what it said before it said that all held."""
    command = [*before, sys.executable, "-m", "tests.durability.faults", name, path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=180, check=False)
    *said, last = done.stdout.splitlines() or [""]
    assert (last, done.returncode) == ("held", 0), done.stdout + done.stderr
    return "\n".join(said)


def mounted(folder: Path, *commands: str) -> list[str | Path]:
    """What runs a command with a file system of its own at a folder; it is gone with the command."""
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


def make(path: Path) -> None:
    """A good file with a run in it."""
    with Client.connect(f"local:{path}") as client:
        client.start_workflow(faults.Basket.run, id="basket")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[str]]]:
    """Most of their time these programs wait for a look that is taken once a second: so they run side by side."""
    with ThreadPoolExecutor(4) as pool:
        yield {
            name: pool.submit(held, name, tmp_path_factory.mktemp(name) / "orders.db") for name in PROGRAMS
        }


@pytest.mark.parametrize("name", PROGRAMS)
def test_durability_program_passes(name: str, outcomes: dict[str, Future[str]]) -> None:
    """The program's own docstring says what holds."""
    outcomes[name].result()


def test_full_disk(path: Path) -> None:
    """A disk that fills up refuses new work, holds the rest, and everything goes on when room returns."""
    held("full_disk", path, mounted(path.parent, 'mount -t tmpfs -o size=64m none "$1"'))


def test_disk_full_while_opening(path: Path) -> None:
    """A disk that is full when a file is opened is told as full; what the file has can still be looked at."""
    held("full_at_opening", path, mounted(path.parent, 'mount -t tmpfs -o size=64m none "$1"'))


def test_read_only_disk_is_rejected(path: Path) -> None:
    """A file on a disk that is read-only is refused in words that say so."""
    make(path)
    read_only = mounted(path.parent, 'mount --bind "$1" "$1"', 'mount -o remount,bind,ro "$1"')
    said = held("refused_both", path, read_only)
    assert "Read-only file system" in said


def newer(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


def without_header(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[:100] = bytes(100)
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def scribbled(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xee" * (len(data) - 4096)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (newer, "has format 99, and this version of Hourglass knows formats up to"),
        (without_header, "is not a database"),
        (cut_short, "is corrupt: restore a backup"),
        (scribbled, "is corrupt: restore a backup"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_invalid_files_are_rejected_unchanged(path: Path, harm: Callable[[Path], None], words: str) -> None:
    """A file of a newer version, a corrupt one and one that is no database are refused, and stay as they were."""
    make(path)
    harm(path)
    assert words in held("refused_both", path)
