"""How a workflow is tested: `pytest examples/test_approval.py`. It is `approval.py` that is tested here.

The fixture `hourglass_env` comes with Hourglass. It is an engine in this process, on virtual time: a week of waiting
takes milliseconds. Activities are faked, so that nobody is really notified. The last tests do not try one course of events
but hundreds, chosen for mischief.
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
    """An environment in which nobody is really notified."""
    hourglass_env.fake(notify, returns=None)
    return hourglass_env


@pytest.mark.parametrize(("decision", "outcome"), [(YES, "approved by ann"), (NO, "refused by ann")])
def test_the_decision_is_the_result(env: Environment, decision: Decision, outcome: str) -> None:
    """Whoever decides is named in the result, whatever the decision."""
    handle = env.start_workflow(approval, BUDGET)
    handle.signal(decisions, decision)
    assert handle.result() == outcome
    assert env.calls(notify) == [call("ann", "please look at budget.pdf")]


def test_it_expires(env: Environment) -> None:
    """Nobody answers: a reminder every day, and when the deadline has passed it is over."""
    begun, deadline = env.now(), timedelta(days=6, hours=12)
    assert env.execute_workflow(approval, Request("budget.pdf", "ann", deadline=deadline)) == "expired"
    assert env.now() - begun == deadline
    assert env.calls(notify)[1:] == [call("ann", "budget.pdf still waits for you")] * 6


def test_reminders_end_with_the_decision(env: Environment) -> None:
    """A decision on the third day comes after two reminders, and after it there are none."""
    handle = env.start_workflow(approval, BUDGET)
    env.after(days=2, hours=12).signal(handle, decisions, YES)
    assert handle.result() == "approved by ann"
    env.skip(days=30)
    assert len(env.calls(notify)) == 3


def test_a_late_decision_changes_nothing(env: Environment) -> None:
    """What comes after the deadline is too late."""
    handle = env.start_workflow(approval, BUDGET)
    env.after(days=8).signal(handle, decisions, YES)
    assert handle.result() == "expired"


def test_mail_server_down(env: Environment) -> None:
    """A notification that fails is sent again; the approval does not notice."""
    env.fake(notify, returns=None, raises=[ConnectionError("no route")] * 5)
    handle = env.start_workflow(approval, BUDGET)
    env.after(days=1).signal(handle, decisions, NO)
    assert handle.result() == "refused by ann"


def test_it_survives_a_crash(env: Environment) -> None:
    """A worker that is killed in the middle loses nothing, and nobody is asked twice."""
    handle = env.start_workflow(approval, BUDGET)
    env.skip(days=3, hours=1)
    env.crash()
    handle.signal(decisions, YES)
    assert handle.result() == "approved by ann"
    assert env.calls(notify).count(call("ann", "please look at budget.pdf")) == 1


def test_cancelled(env: Environment) -> None:
    """A cancelled approval ends, and its reminders with it."""
    handle = env.start_workflow(approval, BUDGET)
    env.after(days=1, hours=1).cancel(handle)
    with pytest.raises(WorkflowFailedError):
        handle.result()
    env.skip(days=30)
    assert len(env.calls(notify)) == 2


def test_every_order_of_events(env: Environment) -> None:
    """Two people who disagree, at any time; failures, timeouts and crashes anywhere: it never expires too early, and ends."""

    def check(result: Any, env: Environment) -> None:
        if isinstance(result, WorkflowFailedError):
            return  # the exploration also makes activities fail for good: then ann was never asked
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
    print(explored)  # pytest -rP shows it
