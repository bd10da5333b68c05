"""Workflow lists of the in-memory store."""

from __future__ import annotations

import asyncio

import pytest

from hourglass._embedded.store.memory import MemoryListing
from hourglass._embedded.store.sqlite import listing
from hourglass._embedded.transitions.run import Run

from .test_visibility import attribute, run


@pytest.fixture(params=["on the loop", "on a thread"], autouse=True)
def _where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer small lists on the loop and others on a thread, or all on a thread: the answers are equal."""
    if request.param == "on a thread":
        monkeypatch.setattr(listing, "PORTION", 1)
        monkeypatch.setattr(listing, "LOOP_INSTRUCTIONS", 1)


async def ids(listing: MemoryListing, text: str) -> list[str]:
    return [summary.workflow_id for summary in (await listing.page(text, b"", 10)).workflows]


async def test_memory_lists_follow_changed_and_deleted_runs() -> None:
    runs: dict[str, Run] = {"run-1": run(1)}
    listing = MemoryListing(runs, real_time=True)
    assert await ids(listing, "") == ["w-1"]
    runs["run-2"] = run(2, search_attributes={"Region": attribute('"eu"')})
    runs["run-1"] = run(1, closed=1)
    for run_id in runs:
        listing.changed(run_id)
    assert await ids(listing, "") == ["w-2", "w-1"]
    assert (await listing.count("ExecutionStatus = 'Completed'")).count == 1
    assert (await listing.count("Region = 'eu'")).count == 1
    del runs["run-2"]
    listing.changed("run-2")
    assert (await listing.count("")).count == 1
    listing.close()


async def test_closed_index_is_rebuilt_on_demand() -> None:
    listing = MemoryListing({"run-1": run(1), "run-2": run(2)}, real_time=True)
    listing.close()
    assert (await listing.count("")).count == 2
    listing.close()
    assert await ids(listing, "WorkflowId != 'w-1'") == ["w-2"]
    listing.close()


async def test_concurrent_lists_get_their_own_answers() -> None:
    listing = MemoryListing({f"run-{number}": run(number) for number in range(1, 40)}, real_time=True)
    calls = [listing.count(f"WorkflowId != 'w-{number}'") for number in range(1, 20)]
    assert [each.count for each in await asyncio.gather(*calls)] == [38] * 19
    listing.close()
