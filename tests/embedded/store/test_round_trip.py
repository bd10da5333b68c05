"""Stored runs are read back equal, however their changes were batched and however the process ended."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.embedded.examples import example
from tests.embedded.stores import open_sqlite

from hourglass._embedded.store.sqlite import records
from hourglass._embedded.store.sqlite.batches import coalesce, events_as_bytes
from hourglass._embedded.transitions.run import OpenActivity, PendingTimer, Run
from hourglass._history import events as h
from hourglass._history.encoding import array, encode_events
from hourglass.converter import Payload

from .run_changes import Story, load, random_changes


def copy_as_after_a_crash(path: Path) -> None:
    """Copy the open files by another process, because this one would lose its locks."""
    for end in ("", "-wal"):
        subprocess.run(["cp", f"{path}{end}", f"{path.with_name('crashed.db')}{end}"], check=True)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 10**6), waits=st.floats(0.0, 1.0), end=st.sampled_from(["open", "closed", "crashed"])
)
def test_random_runs_round_trip(
    tmp_path_factory: pytest.TempPathFactory, seed: int, waits: float, end: str
) -> None:
    path = tmp_path_factory.mktemp("random") / "runs.db"
    stories: dict[str, Story] = {}

    async def write() -> None:
        store = open_sqlite(path)
        number = 0
        for place, (story, change) in enumerate(random_changes(6, 80, seed)):
            stories[story.run_id] = story
            number = store.append(change)
            if (place * 37 % 100) / 100 < waits:
                await store.durable(number)
        await store.durable(number)
        if end == "crashed":
            copy_as_after_a_crash(path)
        if end != "open":
            store.close()
            store = open_sqlite(path if end == "closed" else path.with_name("crashed.db"))
        for story in stories.values():
            stored = load(store, story.run_id)
            assert stored.run == story.run
            assert stored.events == tuple(story.events)
            assert all(
                store.find_request(story.run.started.workflow_id, f"{story.run_id}-request-{n}")
                for n in (1, 2)[: len(story.events)]
            )
        store.close()

    asyncio.run(write())


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_coalesced_changes_lose_nothing(seed: int) -> None:
    stories = list(random_changes(4, 60, seed))
    changes = [change for _, change in stories]
    merged = {each.run.run_id: each for each in coalesce(changes)[0]}
    assert list(merged) == list(dict.fromkeys(change.run.run_id for change in changes))
    for story, _ in stories:
        own_changes = [change for change in changes if change.run.run_id == story.run_id]
        merged_change = merged[story.run_id]
        assert merged_change.run == story.run
        assert merged_change.events == tuple(story.events)
        assert merged_change.request_ids == tuple(
            request_id for change in own_changes for request_id in change.request_ids
        )
        assert merged_change.touched == frozenset(each for change in own_changes for each in change.touched)
        assert (
            records.decode_events(bytes(array(len(merged_change.events), events_as_bytes(merged_change))))
            == story.events
        )


def test_nested_changes_are_written() -> None:
    first, second, third = Story("a"), Story("b"), Story("c")
    inner = msgspec.structs.replace(second.start(), also=(third.start(),))
    outer = msgspec.structs.replace(first.start(), also=(inner,))
    assert [each.run.run_id for each in coalesce([outer])[0]] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", h.KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_event_round_trips(kind: type[h.Attributes]) -> None:
    event = h.HistoryEvent(7, 123, example(kind))
    assert records.decode_events(bytes(array(1, encode_events([event])))) == [event]


def test_events_are_not_stored_twice() -> None:
    """The start, the end and activity arguments are only in the events."""
    story = Story("a")
    story.start()
    story.schedule()
    story.step([], started=msgspec.structs.replace(story.run.started, arguments=(Payload(b"SECRET"),)))
    state = records.encode_state(story.run)
    pending = records.encode_pending(story.run.activities[3])
    assert b"SECRET" not in state
    assert b"12345" not in state + pending
    assert len(state) < 200


def test_stored_field_names_are_fixed() -> None:
    """Fields may be added with a default; none may be removed."""
    assert set(records._RUN_FIELDS) | records.IN_EVENTS | records.PENDING == set(Run.__struct_fields__)
    assert set(records._ACTIVITY_FIELDS) | {"scheduled", "spec"} == set(OpenActivity.__struct_fields__)
    assert set(records._TIMER_FIELDS) == set(PendingTimer.__struct_fields__)
    assert set(records._RUN_FIELDS) >= {
        "run_id", "start_ns", "status", "close_ns", "length", "task", "task_count", "held", "memo",
        "search_attributes", "cancel_requested",
    }  # fmt: skip


def test_unknown_stored_fields_are_ignored() -> None:
    """A later version of the same format may have added them."""
    story = Story("a")
    story.start()
    state = msgspec.msgpack.decode(records.encode_state(story.run)) | {"added_later": [1, 2]}
    assert records.decode_run(msgspec.msgpack.encode(state), story.events, {}) == story.run


@pytest.mark.parametrize("missing", [0, 1])
def test_gap_in_a_history_is_detected(missing: int) -> None:
    story = Story("a")
    story.start()
    events = [event for place, event in enumerate(story.events) if place != missing]
    with pytest.raises(ValueError, match="events; expected events"):
        records.decode_run(records.encode_state(story.run), events, {})


async def _write_and_load(path: Path, story: Story) -> object:
    store = open_sqlite(path)
    await store.durable(store.append(story.start()))
    stored = store.load(story.run_id)
    current = store.current(story.run.started.workflow_id)
    listed = (await store.count("")).count
    store.close()
    assert listed == 1
    assert current
    return stored


def test_lone_surrogate_in_an_id_is_replaced(tmp_path: Path) -> None:
    story = Story("a", workflow_id="file-\udcff")
    stored = asyncio.run(_write_and_load(tmp_path / "a.db", story))
    assert stored.run.started.workflow_id == "file-?"  # type: ignore[attr-defined]
