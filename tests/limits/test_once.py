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


def test_the_same_key_is_the_same_run_while_it_is_open_and_after() -> None:
    """Whoever comes later gets the run that is there, and its result, whatever the arguments."""
    with Environment() as env:
        first = once(env.client, pay, "i-1", key="k")
        second = once(env.client, pay, "i-2", key="k")
        assert second.run_id == first.run_id
        assert second.result() == "i-1"
        third = once(env.client, pay, "i-3", key="k")
        assert third.run_id == first.run_id
        assert third.result() == "i-1"


def test_a_window_ends() -> None:
    """A run that has closed counts for so long from its start; one that is open counts for as long as it takes."""
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


def test_a_failed_run_counts_unless_it_shall_be_retried() -> None:
    """By itself a failure is an answer, too; `retry_failed` starts anew."""
    with Environment() as env:
        first = once(env.client, fail, "i", key="k")
        with pytest.raises(WorkflowFailedError):
            first.result()
        assert once(env.client, fail, "i", key="k").run_id == first.run_id
        again = once(env.client, fail, "i", key="k", retry_failed=True)
        assert again.run_id != first.run_id
        with pytest.raises(WorkflowFailedError):
            again.result()


def test_the_policies_are_not_to_be_given() -> None:
    """The key is the id."""
    with Environment() as env, pytest.raises(UsageError, match="the key is the id"):
        once(env.client, pay, "i", key="k", id="other")
