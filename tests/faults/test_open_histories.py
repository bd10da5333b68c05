"""Histories of open runs: the replayer also compares the commands of the last task."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hourglass import Client, History, Replayer, Worker, activity, workflow
from hourglass.errors import NondeterminismError

decision = workflow.Channel("decision", bool)


@activity.defn
def ask() -> None: ...


@workflow.defn(name="waits")
def waits() -> bool:
    return decision.receive()


@workflow.defn(name="waits")
def asks_first() -> bool:
    ask()
    return decision.receive()


@workflow.defn(name="waits")
def returns_early() -> bool:
    return False


def open_history() -> History:
    """Return the history of a run that waits."""
    with Client.connect("local:") as client, Worker(client, workflows=[waits]):
        handle = client.start_workflow(waits)
        limit = time.monotonic() + 30
        while len(handle.history()) < 4 and time.monotonic() < limit:
            pass
        return handle.history()


@pytest.mark.parametrize(
    "changed", [asks_first, returns_early], ids=lambda definition: definition.fn.__name__
)
def test_additional_command_of_an_open_run_is_nondeterminism(changed: Any) -> None:
    history = open_history()
    with Replayer(workflows=[waits]) as same:
        assert same.try_replay(history).ok
    with Replayer(workflows=[changed]) as other:
        error = other.try_replay(history).error
    assert isinstance(error, NondeterminismError)
    assert "no further command" in str(error)
