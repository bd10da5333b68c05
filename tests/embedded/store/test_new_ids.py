"""Ids of runs and requests: UUIDs of version 7, also in forked children."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable

import pytest

from hourglass._contract import ids
from hourglass._embedded.store.store import Store

Open = Callable[..., Store]


def test_run_ids_are_unique_time_ordered_uuids() -> None:
    since = time.time_ns() // 1_000_000
    made = [ids.new_id() for _ in range(1000)]
    until = time.time_ns() // 1_000_000
    assert len(set(made)) == 1000
    assert {(uuid.UUID(run_id).version, uuid.UUID(run_id).variant) for run_id in made} == {(7, uuid.RFC_4122)}
    assert all(str(uuid.UUID(run_id)) == run_id for run_id in made)
    times = [uuid.UUID(run_id).int >> 80 for run_id in made]
    assert times == sorted(times)
    assert since <= times[0] <= times[-1] <= until
    assert len({run_id[19] for run_id in made}) == 4, "all variants of the standard"
    assert len({run_id[15:18] + run_id[20:] for run_id in made}) == 1000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_child_has_its_own_ids() -> None:
    ids.new_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, ids.new_id().encode())
        os._exit(0)
    os.close(writer)
    theirs = os.read(reader, 100).decode()
    os.close(reader)
    os.waitpid(child, 0)
    assert uuid.UUID(theirs)
    assert theirs not in {ids.new_id() for _ in range(300)}
