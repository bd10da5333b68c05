"""Histories of runs that are still open: the replayer compares what their last task asked for, too."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hourglass import Client, History, Replayer, Worker, activity, workflow
from hourglass.errors import NondeterminismError

decision = workflow.Channel("decision", bool)


@activity.defn
def ask() -> None:
    """Asks somebody."""


@workflow.defn(name="waits")
def waits() -> bool:
    """As it ran."""
    return decision.receive()


@workflow.defn(name="waits")
def asks_first() -> bool:
    """As it was changed: an activity comes first."""
    ask()
    return decision.receive()


@workflow.defn(name="waits")
def gives_up() -> bool:
    """As it was changed: it does not wait at all."""
    return False


def open_history() -> History:
    """The history of a run that waits."""
    with Client.connect("local:") as client, Worker(client, workflows=[waits]):
        handle = client.start_workflow(waits)
        limit = time.monotonic() + 30
        while len(handle.history()) < 4 and time.monotonic() < limit:
            pass
        return handle.history()


@pytest.mark.parametrize("changed", [asks_first, gives_up], ids=lambda each: each.fn.__name__)
def test_unexpected_command_of_an_open_run_is_named(changed: Any) -> None:
    """Code that would ask for more than the last task did does not fit, and its line is named."""
    history = open_history()
    with Replayer(workflows=[waits]) as same:
        assert same.try_replay(history).ok
    with Replayer(workflows=[changed]) as other:
        error = other.try_replay(history).error
    assert isinstance(error, NondeterminismError)
    assert "nothing more" in str(error)
