"""`limits.once` on virtual time: what is the same run, and for how long."""

from __future__ import annotations

import pytest

from hourglass import ApplicationError, workflow
from hourglass.errors import UsageError, WorkflowFailedError
from hourglass.limits import once
from hourglass.testing import Environment

done = workflow.Channel("done", str)


@workflow.defn
def pay(invoice: str) -> str:
    """Take a minute."""
    workflow.sleep(60)
    return invoice


@workflow.defn
def fail(invoice: str) -> str:
    """Never work."""
    raise ApplicationError("no money")


def test_same_key_returns_the_open_or_closed_run() -> None:
    """A later call gets the existing run and its result, whatever the arguments."""
    with Environment() as env:
        first = once(env.client, pay, "i-1", key="k")
        second = once(env.client, pay, "i-2", key="k")
        assert second.run_id == first.run_id
        assert second.result() == "i-1"
        third = once(env.client, pay, "i-3", key="k")
        assert third.run_id == first.run_id
        assert third.result() == "i-1"


def test_window_of_a_closed_run_ends() -> None:
    """A closed run counts for the window from its start; an open run always counts."""
    with Environment() as env:
        first = once(env.client, pay, "i-1", key="k", window=30)
        env.skip(45)
        assert once(env.client, pay, "i-2", key="k", window=30).run_id == first.run_id
        env.skip(30)
        second = once(env.client, pay, "i-2", key="k", window=30)
        assert second.run_id != first.run_id
        env.skip(70)
        assert once(env.client, pay, "i-3", key="k", window=80).run_id == second.run_id
        assert once(env.client, pay, "i-3", key="k", window=60).result() == "i-3"


def test_failed_run_counts_without_retry_failed() -> None:
    """A failure is a result too; `retry_failed` starts a new run."""
    with Environment() as env:
        first = once(env.client, fail, "i", key="k")
        with pytest.raises(WorkflowFailedError):
            first.result()
        assert once(env.client, fail, "i", key="k").run_id == first.run_id
        again = once(env.client, fail, "i", key="k", retry_failed=True)
        assert again.run_id != first.run_id
        with pytest.raises(WorkflowFailedError):
            again.result()


def test_id_policies_are_rejected() -> None:
    """The key is the id."""
    with Environment() as env, pytest.raises(UsageError, match="the key is the workflow id"):
        once(env.client, pay, "i", key="k", id="other")
