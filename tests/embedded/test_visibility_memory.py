"""Lists of runs that are kept in memory."""

from __future__ import annotations

from hourglass._embedded.rules.run import Run
from hourglass._embedded.stores.memory_listing import MemoryListing

from .test_visibility import attribute, run


def test_lists_follow_the_table() -> None:
    """A list is of the runs as they are now: new ones, changed ones, and none that are gone."""
    runs: dict[str, Run] = {"run-1": run(1)}
    listing = MemoryListing(runs)
    assert [each.workflow_id for each in listing.page("", b"", 10).workflows] == ["w-1"]
    runs["run-2"] = run(2, search_attributes={"Region": attribute('"eu"')})
    runs["run-1"] = run(1, closed=1)
    for run_id in runs:
        listing.changed(run_id)
    assert [each.workflow_id for each in listing.page("", b"", 10).workflows] == ["w-2", "w-1"]
    assert listing.count("ExecutionStatus = 'Completed'") == listing.count("Region = 'eu'") == 1
    del runs["run-2"]
    listing.changed("run-2")
    assert listing.count("") == 1
    listing.close()


def test_an_index_that_was_let_go_is_made_again() -> None:
    """After `close` a listing answers as before."""
    listing = MemoryListing({"run-1": run(1), "run-2": run(2)})
    listing.close()
    assert listing.count("") == 2
    listing.close()
    assert [each.workflow_id for each in listing.page("WorkflowId != 'w-1'", b"", 10).workflows] == ["w-2"]
    listing.close()
