"""Tests of the workflow in `approval.py`: `pytest examples/test_approval.py`.

The fixture `hourglass_env` is provided by Hourglass: an engine in this process on virtual time, where a week takes milliseconds.
Activities are faked, so that no notifications are sent. The last test explores hundreds of event orders, with faults.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from approval import Decision, Request, approval, decisions, notify

from hourglass.errors import WorkflowFailedError
from hourglass.testing import Environment, call, sometime

BUDGET = Request("budget.pdf", "ann")
YES = Decision(approved=True, by="ann")
NO = Decision(approved=False, by="ann")


@pytest.fixture
def env(hourglass_env: Environment) -> Environment:
    """Return an environment with faked notifications."""
    hourglass_env.fake(notify, returns=None)
    return hourglass_env


@pytest.mark.parametrize(("decision", "outcome"), [(YES, "approved by ann"), (NO, "refused by ann")])
def test_the_decision_is_the_result(env: Environment, decision: Decision, outcome: str) -> None:
    """The result names the person who decided."""
    handle = env.start_workflow(approval, BUDGET)
    handle.signal(decisions, decision)
    assert handle.result() == outcome
    assert env.calls(notify) == [call("ann", "please look at budget.pdf")]


def test_it_expires(env: Environment) -> None:
    """Without a decision there is a reminder every day until the approval expires."""
    begun, deadline = env.now(), timedelta(days=6, hours=12)
    assert env.execute_workflow(approval, Request("budget.pdf", "ann", deadline=deadline)) == "expired"
    assert env.now() - begun == deadline
    assert env.calls(notify)[1:] == [call("ann", "budget.pdf still waits for you")] * 6


def test_reminders_end_with_the_decision(env: Environment) -> None:
    """A decision on the third day follows two reminders and stops further ones."""
    handle = env.start_workflow(approval, BUDGET)
    env.after(days=2, hours=12).signal(handle, decisions, YES)
    assert handle.result() == "approved by ann"
    env.skip(days=30)
    assert len(env.calls(notify)) == 3


def test_a_late_decision_changes_nothing(env: Environment) -> None:
    """A decision after the deadline is ignored."""
    handle = env.start_workflow(approval, BUDGET)
    env.after(days=8).signal(handle, decisions, YES)
    assert handle.result() == "expired"


def test_mail_server_down(env: Environment) -> None:
    """A failed notification is retried without affecting the approval."""
    env.fake(notify, returns=None, raises=[ConnectionError("no route")] * 5)
    handle = env.start_workflow(approval, BUDGET)
    env.after(days=1).signal(handle, decisions, NO)
    assert handle.result() == "refused by ann"


def test_it_survives_a_crash(env: Environment) -> None:
    """After a worker is killed, the approval resumes without sending the request again."""
    handle = env.start_workflow(approval, BUDGET)
    env.skip(days=3, hours=1)
    env.crash()
    handle.signal(decisions, YES)
    assert handle.result() == "approved by ann"
    assert env.calls(notify).count(call("ann", "please look at budget.pdf")) == 1


def test_cancelled(env: Environment) -> None:
    """Cancelling an approval also stops its reminders."""
    handle = env.start_workflow(approval, BUDGET)
    env.after(days=1, hours=1).cancel(handle)
    with pytest.raises(WorkflowFailedError):
        handle.result()
    env.skip(days=30)
    assert len(env.calls(notify)) == 2


def test_every_order_of_events(env: Environment) -> None:
    """With conflicting decisions, failures, timeouts and crashes at any time, it never expires early and always ends."""

    def check(result: Any, env: Environment) -> None:
        if isinstance(result, WorkflowFailedError):
            return  # the exploration also injects permanent activity failures: ann was not asked
        assert result in ("approved by ann", "refused by ann", "expired")
        if result == "expired":
            assert env.now() - env.calls(notify)[0].time >= BUDGET.deadline

    explored = env.explore(
        approval,
        BUDGET,
        runs=100,
        check=check,
        arrivals=[sometime().signal(decisions, YES), sometime().signal(decisions, NO)],
    )
    print(explored)  # shown by pytest -rP
