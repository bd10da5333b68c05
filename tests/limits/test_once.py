"""`limits.once` on virtual time: which calls return the same run, and for how long."""

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
    raise ApplicationError("no money")


def test_once_returns_the_existing_run_of_its_key(env: Environment) -> None:
    """The run may be open or closed, and the arguments may differ."""
    first = once(env.client, pay, "i-1", key="k")
    second = once(env.client, pay, "i-2", key="k")
    assert second.run_id == first.run_id
    assert second.result() == "i-1"
    third = once(env.client, pay, "i-3", key="k")
    assert third.run_id == first.run_id
    assert third.result() == "i-1"


def test_once_starts_a_new_run_after_the_window_of_a_closed_run(env: Environment) -> None:
    """The window begins with the start of the run. An open run always counts."""
    first = once(env.client, pay, "i-1", key="k", window=30)
    env.skip(45)
    assert once(env.client, pay, "i-2", key="k", window=30).run_id == first.run_id
    env.skip(30)
    second = once(env.client, pay, "i-2", key="k", window=30)
    assert second.run_id != first.run_id
    env.skip(70)
    assert once(env.client, pay, "i-3", key="k", window=80).run_id == second.run_id
    assert once(env.client, pay, "i-3", key="k", window=60).result() == "i-3"


def test_once_replaces_a_failed_run_only_with_retry_failed(env: Environment) -> None:
    first = once(env.client, fail, "i", key="k")
    with pytest.raises(WorkflowFailedError):
        first.result()
    assert once(env.client, fail, "i", key="k").run_id == first.run_id
    again = once(env.client, fail, "i", key="k", retry_failed=True)
    assert again.run_id != first.run_id
    with pytest.raises(WorkflowFailedError):
        again.result()


def test_once_rejects_a_workflow_id() -> None:
    with Environment() as env, pytest.raises(UsageError, match="the key is the workflow id"):
        once(env.client, pay, "i", key="k", id="other")
