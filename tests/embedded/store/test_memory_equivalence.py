"""The store in a file and the store in memory return the same answers."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.embedded.stores import memory_store, open_sqlite

from hourglass._embedded.store.store import AT_ONCE, Store

from .run_changes import random_changes

FILTERS = ("", "ExecutionStatus = 'Running'", "WorkflowId = 'workflow-1'", "ExecutionStatus = 'Completed'")


async def answers(store: Store, run_ids: list[str]) -> dict[str, Any]:
    """Return the answers of a store to all reads."""
    stored = {run_id: store.load(run_id) for run_id in run_ids}
    return {
        "runs": {run_id: found and found.run for run_id, found in stored.items()},
        "events": {run_id: found and found.events for run_id, found in stored.items()},
        "current": [store.current(f"workflow-{place}") for place in range(4)],
        "requests": [
            store.find_request(f"workflow-{place}", f"{other}-request-{n}")
            for place in range(4)
            for other in run_ids[:2]
            for n in (1, 5, 99)
        ],
        "due": [
            sorted(due.run_id for due in store.due(until, 100, after))
            for until, after in ((1, 0), (400, 0), (400, AT_ONCE), (400, 200))
        ],
        "next": [store.next_due_ns(after) for after in (0, AT_ONCE, 250, 10**6)],
        "counts": [await store.count(text) for text in FILTERS],
        "lists": [
            sorted(summary.run_id for summary in (await store.page(text, b"", 100)).workflows)
            for text in FILTERS
        ],
    }


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_memory_and_sqlite_store_return_the_same_answers(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance = random.Random(seed)
    path = tmp_path_factory.mktemp("same") / "runs.db"

    async def work() -> None:
        memory, file = memory_store(), open_sqlite(path)
        run_ids: dict[str, None] = {}
        number = 0
        for story, change in random_changes(8, 90, seed):
            run_ids[story.run_id] = None
            wake = 0 if not change.run.is_open else chance.choice((0, AT_ONCE, 200, 300, 400, 500))
            change = msgspec.structs.replace(change, wake_ns=wake)
            number = file.append(change)
            assert memory.append(change) == number
        await file.durable(number)
        assert await answers(file, list(run_ids)) == await answers(memory, list(run_ids))
        assert memory.forget_closed(20_000, 3) == file.forget_closed(20_000, 3)
        file.close()
        file = open_sqlite(path)
        assert await file.count("") == await memory.count("")
        file.close()
        memory.close()

    asyncio.run(work())
