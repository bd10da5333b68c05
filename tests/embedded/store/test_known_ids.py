"""Ids that were used before are known without a read, and never forgotten."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from hourglass._contract import service
from hourglass._embedded.store.sqlite.store import KnownIds, SqliteStore

from .stories import Story

Open = Callable[..., SqliteStore]


def test_no_id_is_forgotten() -> None:
    """Also where there are more ids than one piece holds, each is known."""
    ids = [f"order-{number}" for number in range(150_000)]
    known = KnownIds(ids)
    assert all(map(known.may_have, ids))


def test_new_ids_are_seldom_taken_for_used() -> None:
    """With a hundred thousand ids known, at most two of a hundred new ones cost a read."""
    known = KnownIds(f"order-{number}" for number in range(100_000))
    assert sum(known.may_have(f"other-{number}") for number in range(10_000)) < 200


def test_a_store_knows_what_it_has_and_what_it_is_given(open_store: Open) -> None:
    """An id is found that was in the file before, that was added since, and with half a character in it; no other."""

    async def work() -> None:
        first = open_store()
        await first.durable(first.append(Story("a", "old").start()))
        first.close()
        store = open_store(know_ids=True)
        await store.durable(store.append(Story("b", "new").start()))
        await store.durable(store.append(Story("c", "half \udc80").start()))
        found = [store.current(name) for name in ("old", "new", "half \udc80", "none")]
        assert found == ["a", "b", "c", ""]

    asyncio.run(work())


def test_a_new_id_costs_no_read(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is not asked for an id that nobody has used."""
    store = open_store(know_ids=True)

    def read(*_: Any) -> str:
        raise AssertionError("the file was read")

    monkeypatch.setattr(store._reads, "current", read)
    assert store.current("new") == ""


def test_run_ids_are_uuids_that_begin_with_the_time() -> None:
    """Each is a UUID of version 7, none comes twice, and those of different moments are in order; the rest is random."""
    since = time.time_ns() // 1_000_000
    made = [service.new_id() for _ in range(1000)]
    until = time.time_ns() // 1_000_000
    assert len(set(made)) == 1000
    assert {(uuid.UUID(each).version, uuid.UUID(each).variant) for each in made} == {(7, uuid.RFC_4122)}
    assert all(str(uuid.UUID(each)) == each for each in made)
    times = [uuid.UUID(each).int >> 80 for each in made]
    assert times == sorted(times)
    assert since <= times[0] <= times[-1] <= until
    assert len({each[19] for each in made}) == 4, "all variants of the standard's"
    assert len({each[15:18] + each[20:] for each in made}) == 1000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_other_ids() -> None:
    """What the parent has drawn and not used yet is no id of the child's."""
    service.new_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, service.new_id().encode())
        os._exit(0)
    os.close(writer)
    theirs = os.read(reader, 100).decode()
    os.close(reader)
    os.waitpid(child, 0)
    assert uuid.UUID(theirs)
    assert theirs not in {service.new_id() for _ in range(300)}
