"""A change that cannot be written is rejected alone: the rest of its batch is committed, and the store continues."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hourglass._embedded.store.store import Rejection, RunChange, Store, Unwritable
from hourglass.errors import StorageError

from .run_changes import Story, load

Open = Callable[..., Store]
TOO_LATE = 1 << 63


def go(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            await work

    asyncio.run(limited())


def unbindable(change: RunChange) -> RunChange:
    """Return the change with a number that SQLite cannot store."""
    return msgspec.structs.replace(change, wake_ns=TOO_LATE)


def unencodable(change: RunChange) -> RunChange:
    """Return the change with a state that cannot be encoded."""
    return msgspec.structs.replace(change, run=msgspec.structs.replace(change.run, start_ns=1 << 70))


def too_large(change: RunChange) -> RunChange:
    """Return the change with a row above the limit that `small_rows` sets."""
    event = change.events[0]
    signal = msgspec.structs.replace(event.attributes, signal_name="x" * 200_000)  # type: ignore[type-var]
    return msgspec.structs.replace(
        change, events=(msgspec.structs.replace(event, attributes=signal),), encoded=b""
    )


SPOILERS = [unbindable, unencodable, too_large]


def small_rows(store: Store) -> None:
    """Lower SQLite's limit of a row, so that the test needs little memory."""
    store._opened.writer.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100_000)


@pytest.mark.parametrize("spoil", SPOILERS)
async def test_other_changes_of_the_batch_are_committed(
    open_store: Open, spoil: Callable[[RunChange], RunChange]
) -> None:
    store = open_store()
    small_rows(store)
    refusals: list[Rejection] = []
    store.on_rejection(refusals.append)
    stories = [Story(name) for name in "abc"]
    for story in stories:
        store.append(story.start())
    await store.durable(3)
    before = tuple(stories[1].events)
    numbers = [
        store.append(stories[0].signal()),
        store.append(spoil(stories[1].signal())),
        store.append(stories[2].signal()),
    ]
    notified = asyncio.get_running_loop().create_future()
    store.when_durable(numbers[1], notified.set_result)
    await store.durable(numbers[2])
    with pytest.raises(Unwritable, match="run b cannot be written"):
        await store.durable(numbers[1])
    assert isinstance(await notified, Unwritable)
    assert [store.is_durable(number) for number in numbers] == [True, False, True]
    assert store.failure is None
    for story, events in zip(stories, (stories[0].events, before, stories[2].events), strict=True):
        assert load(store, story.run_id).events == tuple(events)
    assert [(refusal.number, refusal.run_ids) for refusal in refusals] == [(numbers[1], ("b",))]


async def test_changes_depending_on_a_rejected_one_are_rejected(open_store: Open) -> None:
    """The run can be changed again when the owner of the store has been notified."""
    store = open_store()
    small_rows(store)
    refusals: list[Rejection] = []
    store.on_rejection(refusals.append)
    run_a, run_b = Story("a"), Story("b")
    await store.durable(store.append(msgspec.structs.replace(run_a.start(), also=(run_b.start(),))))
    saved = run_a.run
    bad = store.append(too_large(run_a.signal()))
    both = store.append(msgspec.structs.replace(run_a.signal(), also=(run_b.signal(),)))
    later = store.append(run_b.signal())
    for number in (bad, both, later):
        with pytest.raises(Unwritable):
            await store.durable(number)
    assert [refusal.run_ids for refusal in refusals] == [("a",), ("a", "b"), ("b",)]
    run_a.run, run_a.events = saved, run_a.events[: saved.length]
    await store.durable(store.append(run_a.signal()))
    assert load(store, "a").events == tuple(run_a.events)


async def test_rejected_new_run_leaves_nothing(open_store: Open) -> None:
    store = open_store()
    bad, good = Story("bad"), Story("good")
    number = store.append(unencodable(bad.start()))
    await store.durable(store.append(good.start()))
    with pytest.raises(Unwritable):
        await store.durable(number)
    assert store.load("bad") is None
    assert store.current("workflow-bad") == ""
    await store.durable(store.append(Story("bad").start()))
    assert store.load("bad") is not None
    assert store.load("good") is not None


async def test_constraint_violation_rejects_only_its_run(open_store: Open, path: Path) -> None:
    """Another program has inserted rows."""
    store = open_store()
    run_a, run_b = Story("a"), Story("b")
    await store.durable(store.append(run_a.start()))
    await store.durable(store.append(run_b.start()))
    connection = sqlite3.connect(path)
    connection.execute(
        "INSERT INTO events (run, first_id, data) SELECT key, 3, x'90' FROM runs WHERE run_id = 'a'"
    )
    connection.commit()
    connection.close()
    bad, good = store.append(run_a.signal()), store.append(run_b.signal())
    await store.durable(good)
    with pytest.raises(Unwritable, match=r"run a .*SQLITE_CONSTRAINT"):
        await store.durable(bad)


@pytest.mark.parametrize("seed", range(20))
async def test_rejected_changes_leave_every_run_consistent(open_store: Open, seed: int) -> None:
    """Each run is in the file as before its first rejected change."""
    chance = random.Random(seed)

    store = open_store()
    small_rows(store)
    rejected: dict[int, tuple[str, ...]] = {}
    store.on_rejection(lambda refusal: rejected.update({refusal.number: refusal.run_ids}))
    store._report_rejection = lambda refusal: store._report(refusal)  # type: ignore[method-assign]  # no run is readmitted
    stories = [Story(f"run-{place}") for place in range(6)]
    lengths: list[tuple[int, dict[str, int]]] = []
    for place in range(60):
        changed_stories = chance.sample(stories, chance.choice((1, 1, 1, 2, 3)))
        parts = [story.start() if not story.events else story.signal() for story in changed_stories]
        spoilt_place = chance.randrange(len(parts)) if chance.random() < 0.1 and place > 20 else None
        if spoilt_place is not None and parts[spoilt_place].events[0].id > 1:
            parts[spoilt_place] = too_large(parts[spoilt_place])
        first, *others = parts
        number = store.append(msgspec.structs.replace(first, also=tuple(others)))
        lengths.append((number, {story.run_id: len(story.events) for story in changed_stories}))
        if chance.random() < 0.2:
            with contextlib.suppress(Unwritable):
                await store.durable(number)
    for number, _ in lengths:
        with contextlib.suppress(Unwritable):
            await store.durable(number)
    await asyncio.sleep(0)
    assert rejected
    expected: dict[str, int] = {}
    for number, changed in lengths:
        if number not in rejected:
            expected |= changed
        assert store.is_durable(number) == (number not in rejected)
    store.close()
    again = open_store()
    for story in stories:
        stored = again.load(story.run_id)
        assert (stored is not None) == (story.run_id in expected)
        if stored is not None:
            assert stored.events == tuple(story.events[: expected[story.run_id]])


async def test_lost_epoch_shuts_down_the_store(open_store: Open, path: Path) -> None:
    first = open_store()
    story = Story("a")
    await first.durable(first.append(story.start()))
    durable = tuple(story.events)
    second = open_store()
    with pytest.raises(StorageError, match="another process now owns the file") as caught:
        await first.durable(first.append(story.signal()))
    assert not isinstance(caught.value, Unwritable)
    assert first.failure is not None
    stored = load(second, "a")
    assert stored.events == durable
    await second.durable(second.append(Story("b").start()))


@pytest.mark.parametrize("many", [False, True])
async def test_lost_epoch_stops_retention_and_large_batches(open_store: Open, path: Path, many: bool) -> None:
    first = open_store()
    stories = [Story(f"run-{place}") for place in range(600 if many else 1)]
    for story in stories:
        first.append(story.start())
    for story in stories:
        first.append(story.close())
    await first.durable(2 * len(stories))
    open_store()
    if many:
        for place in range(600):
            first.append(Story(f"new-{place}").start())
        with pytest.raises(StorageError, match="another process now owns the file"):
            await first.durable(2 * len(stories) + 600)
    else:
        assert first.forget_closed(1 << 60, 10) == 1
        first.close()
    assert (await open_store().count("")).count == len(stories)
