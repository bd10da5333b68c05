"""Forked children leave the file alone: inherited connections are neither used, closed nor freed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

PROGRAM = """
import asyncio, gc, os, sys
from hourglass import backup
from hourglass._embedded.store.sqlite.store import SqliteStore
from hourglass.errors import StorageError
from tests.embedded.store.run_changes import Story

path = sys.argv[1]

def refusals(store, story):
    said = []
    for ask in (lambda: store.load("a"), lambda: SqliteStore.open(path), lambda: backup(path, path + ".copy")):
        try:
            ask()
        except StorageError as error:
            said.append(str(error))
    store.append(story.signal())
    store.close()
    return said

async def main():
    store = SqliteStore.open(path)
    story = Story("a")
    await store.durable(store.append(story.start()))
    numbers = []
    for _ in range(20):
        number = store.append(story.signal())
        await asyncio.sleep(0)  # the thread is about to write, or writes
        child = os.fork()
        if child == 0:
            said = refusals(store, story)
            SqliteStore.open(path + ".own").close()  # another file is another matter
            del store
            gc.collect()
            good = len(said) == 3 and "forked" in said[0] and "forked" in said[1] and "forked" in said[2]
            os._exit(0 if good else 1)  # closing the parent's loop here would make it deaf
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        await store.durable(number)
    store.close()
    store = SqliteStore.open(path)
    assert len(store.load("a").events) == 22
    store.close()

asyncio.run(main())
print("held")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_children_leave_the_file_alone(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.stdout.strip().splitlines()[-1:] == ["held"], done.stdout + done.stderr
