"""Processes killed at any instant: everything reported as durable is in the file, in order.

`HOURGLASS_STORE_KILLS=500` selects a long run.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from tests.embedded.stores import open_sqlite

from hourglass._history import events as h

from .run_changes import load, rows_of_sound_file

ROOT = Path(__file__).resolve().parents[3]
KILLS = int(os.environ.get("HOURGLASS_STORE_KILLS", "15"))
FEW = 40


def write_and_kill(path: Path, first: int, lines: int, extra_bytes: int, *more: int) -> list[int]:
    """Start the program, read some of its output, and kill it. Return all numbers that it printed."""
    command = [
        sys.executable,
        "-m",
        "tests.embedded.store.append_program",
        path,
        str(first),
        *map(str, more),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        output = b"".join(process.stdout.readline() for _ in range(lines))
        output += process.stdout.read1(extra_bytes) if extra_bytes else b""  # type: ignore[attr-defined]
        process.kill()
        output += process.stdout.read()
        process.wait()
    complete, _, _ = output.rpartition(b"\n")
    return [int(line) for line in complete.split()]


def numbers_in(path: Path) -> list[int]:
    """Return the numbers in the histories of all runs of the file, which must be consistent."""
    run_ids = rows_of_sound_file(path)
    store = open_sqlite(path)
    found: list[int] = []
    for run_id in run_ids:
        stored = load(store, run_id)
        names = [
            e.attributes.signal_name
            for e in stored.events
            if isinstance(e.attributes, h.WorkflowExecutionSignaled)
        ]
        requests = [
            store.find_request(stored.run.started.workflow_id, f"{run_id}-request-{place + 1}")
            for place in range(len(names) + 1)
        ]
        assert all(requests)
        found += map(int, names)
    store.close()
    return sorted(found)


def test_kill_at_any_time_loses_no_commit(path: Path) -> None:
    chance = random.Random(4)
    first = 0
    for _ in range(KILLS):
        printed = write_and_kill(path, first, chance.randrange(FEW), chance.choice((0, 1, 100)))
        found = numbers_in(path)
        assert found == list(range(len(found)))
        assert not printed or printed[-1] < len(found)
        assert printed == list(range(first, first + len(printed)))
        first = len(found)
    assert first > KILLS


def test_truncated_wal_keeps_earlier_commits(tmp_path: Path) -> None:
    chance = random.Random(5)
    written = tmp_path / "written.db"
    # No checkpoint, however late the kill comes: what has been moved into the file is never torn off the log.
    write_and_kill(written, 0, 50, 0, 1_000_000_000)
    main = written.read_bytes()
    log = written.with_name("written.db-wal").read_bytes()
    complete = len(numbers_in(copy(tmp_path / "whole.db", main, log)))
    assert complete >= 50
    counts = []
    for place in range(20):
        cut = chance.randrange(len(log))
        end = b"" if place % 2 else bytes(chance.randbytes(len(log) - cut))
        found = numbers_in(copy(tmp_path / f"torn-{place}.db", main, log[:cut] + end))
        assert found == list(range(len(found)))
        assert len(found) <= complete
        counts.append((cut, len(found)))
    in_order = [count for _, count in sorted(counts)]
    assert in_order == sorted(in_order), "a longer log has fewer numbers"
    assert len(set(in_order)) > 3


def test_kill_during_creation_leaves_no_incomplete_file(tmp_path: Path) -> None:
    for place, file_count in enumerate((1, 1, 2, 2, 3)):
        folder = tmp_path / str(place)
        folder.mkdir()
        command = [sys.executable, "-m", "tests.embedded.store.append_program", folder / "runs.db", "0"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT) as process:
            while len(os.listdir(folder)) < file_count and process.poll() is None:
                pass
            process.kill()
        found = numbers_in(folder / "runs.db") if (folder / "runs.db").exists() else []
        assert found == list(range(len(found)))
        open_sqlite(folder / "runs.db").close()


def copy(path: Path, main: bytes, log: bytes) -> Path:
    path.write_bytes(main)
    path.with_name(f"{path.name}-wal").write_bytes(log)
    return path
