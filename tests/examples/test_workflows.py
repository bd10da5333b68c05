"""The workflows of the examples on virtual time, also with failures."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import agent
import billing
import children
import entity
import fanout
import polling
import pytest
import resume
import saga

from hourglass import ApplicationError
from hourglass.errors import UpdateFailedError, WorkflowFailedError
from hourglass.testing import ActivityEnvironment, Environment, call

ORDER = saga.Order("o-1", ["lamp"], 3900)


# --- saga ------------------------------------------------------------------------------------------------------------


def test_saga_example_compensates_in_reverse_order_and_retries_compensations(
    hourglass_env: Environment,
) -> None:
    env = hourglass_env
    steps: list[str] = []

    def refund(order_id: str) -> None:
        steps.append("refund")
        if len(steps) < 3:
            raise ConnectionError("the bank sleeps")

    env.fake(saga.ship, raises=ApplicationError("no van", non_retryable=True))
    env.fake(saga.refund, refund)
    env.fake(saga.release, lambda order_id: steps.append("release"))
    with pytest.raises(WorkflowFailedError):
        env.execute_workflow(saga.checkout, ORDER)
    assert steps == ["refund", "refund", "refund", "release"]


def test_saga_example_compensates_when_cancelled(hourglass_env: Environment) -> None:
    env = hourglass_env
    env.fake(saga.charge, returns=None, takes=timedelta(minutes=5))
    order = env.start_workflow(saga.checkout, ORDER)
    env.after(minutes=1).cancel(order)
    with pytest.raises(WorkflowFailedError):
        order.result()
    assert env.calls(saga.refund) == [call("o-1")]
    assert env.calls(saga.release) == [call("o-1")]


def test_saga_example_compensates_completed_steps_in_every_explored_order(hourglass_env: Environment) -> None:
    env = hourglass_env
    for step in (saga.reserve, saga.release, saga.charge, saga.refund):
        env.fake(step, returns=None)
    env.fake(saga.ship, returns="parcel")

    def check(result: Any, env: Environment) -> None:
        failed = isinstance(result, WorkflowFailedError)
        assert bool(env.calls(saga.refund)) == (failed and bool(env.calls(saga.charge)))
        assert bool(env.calls(saga.release)) == (failed and bool(env.calls(saga.reserve)))

    env.explore(saga.checkout, ORDER, runs=60, check=check)


# --- billing ---------------------------------------------------------------------------------------------------------


def test_billing_example_charges_twelve_times_a_month_apart(hourglass_env: Environment) -> None:
    env = hourglass_env
    start = env.now()
    assert env.execute_workflow(billing.subscription, billing.Plan("ann", 900)) == "ended: 12 months paid"
    assert env.now() - start == timedelta(days=360)
    assert [each.time - start for each in env.calls(billing.charge)] == [
        timedelta(days=30 * month) for month in range(12)
    ]


def test_billing_example_retries_declined_cards_then_suspends(hourglass_env: Environment) -> None:
    env = hourglass_env
    env.fake(billing.charge, returns="paid", raises=[ApplicationError("declined")] * 2)
    assert (
        env.execute_workflow(billing.subscription, billing.Plan("ann", 900, months=1))
        == "ended: 1 months paid"
    )
    env.fake(billing.charge, raises=ApplicationError("declined"))
    start = env.now()
    suspended = env.execute_workflow(billing.subscription, billing.Plan("bob", 900))
    assert suspended == "suspended: month 1 was not paid"
    assert env.now() - start == timedelta(days=4)


def test_billing_example_stops_when_the_customer_leaves(hourglass_env: Environment) -> None:
    env = hourglass_env
    handle = env.start_workflow(billing.subscription, billing.Plan("eve", 900))
    env.after(days=100).signal(handle, billing.leaving, "moved")
    assert handle.result() == "left in month 4: moved"
    assert len(env.calls(billing.charge)) == 4


# --- fan-out, polling, resuming --------------------------------------------------------------------------------------


def test_fanout_example_keeps_its_limit_and_reports_progress(hourglass_env: Environment) -> None:
    env = hourglass_env
    env.fake(fanout.thumbnail, lambda image: f"name {image}", takes=timedelta(minutes=1))
    handle = env.start_workflow(fanout.thumbnails, 1000)
    env.skip(minutes=3, seconds=30)
    assert handle.query("progress", result_type=fanout.Progress) == fanout.Progress(150, 1000)
    assert len(env.calls(fanout.thumbnail)) == 200
    start = env.now()
    assert handle.result() == 1000
    assert env.now() - start == timedelta(minutes=16, seconds=30)


def test_polling_example_backs_off_to_five_minutes_and_gives_up_after_six_hours(
    hourglass_env: Environment,
) -> None:
    env = hourglass_env
    env.fake(polling.outcome, raises=ApplicationError("not yet", type="NotYet"))
    start = env.now()
    assert env.execute_workflow(polling.transcription, "http://nowhere.invalid").startswith("given up: ")
    assert env.now() - start <= timedelta(hours=6)
    times = [each.time for each in env.calls(polling.outcome)]
    pauses = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
    assert pauses[:4] == pytest.approx([0.2, 0.4, 0.8, 1.6])
    assert max(pauses) == 300


def test_polling_example_uses_the_retry_delay_of_the_api(hourglass_env: Environment) -> None:
    env = hourglass_env
    env.fake(polling.outcome, returns="text", raises=[ApplicationError("not yet", next_retry_delay=3600)])
    start = env.now()
    assert env.execute_workflow(polling.transcription, "http://nowhere.invalid") == "done: text"
    assert env.now() - start == timedelta(hours=1)


def test_resume_example_continues_after_rows_in_heartbeat_details(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("a,1\nb,2\nc,3\n")
    resume.warehouse.clear()
    env = ActivityEnvironment(attempt=2, heartbeat_details=(2,))
    assert env.run(resume.import_rows, str(file)) == 3
    assert resume.warehouse == {"c": "3"}
    assert env.heartbeats == [(3,)]
    assert ActivityEnvironment(attempt=3, heartbeat_details=(3,)).run(resume.import_rows, str(file)) == 3


# --- children, entity ------------------------------------------------------------------------------------------------


def test_children_example_reports_failed_child_and_completes_its_siblings(hourglass_env: Environment) -> None:
    summary = hourglass_env.execute_workflow(children.monthly_close, ["north", "atlantis"])
    assert summary == children.Summary({"north": 15003}, {"atlantis": "there is no such region"})


def test_entity_example_keeps_points_across_continue_as_new_and_rejects_overspending(
    hourglass_env: Environment,
) -> None:
    env = hourglass_env
    account = env.start_workflow(entity.Loyalty.run, entity.Account("ann"), id="loyalty-ann")
    earned = 0
    for _ in range(entity.CHANGES_PER_RUN + 1):
        earned = env.client.get_workflow_handle("loyalty-ann").execute_update(entity.Loyalty.earn, 1)
    assert earned == entity.CHANGES_PER_RUN + 1
    latest = env.client.get_workflow_handle("loyalty-ann", workflow=entity.Loyalty.run)
    assert latest.query(entity.Loyalty.state) == entity.Account("ann", earned, runs=2)
    with pytest.raises(UpdateFailedError):
        latest.execute_update(entity.Loyalty.redeem, earned + 1)
    latest.signal(entity.Loyalty.close)
    assert account.result() == entity.Account("ann", earned, runs=2)


# --- agent -----------------------------------------------------------------------------------------------------------

QUESTION = "What shall I wear in Rome?"


def test_agent_example_sends_no_mail_without_approval(hourglass_env: Environment) -> None:
    """The user refuses, or does not answer within two days."""
    env = hourglass_env
    refused = env.start_workflow(agent.agent, QUESTION)
    refused.signal(agent.consents, False)
    assert refused.result() == "Done: the user refused."
    assert env.execute_workflow(agent.agent, QUESTION) == "Done: the user refused."
    assert env.calls(agent.mail) == []


def test_agent_example_reports_tool_errors_to_the_model(hourglass_env: Environment) -> None:
    env = hourglass_env
    tool_calls = [
        agent.ToolCall("1", "weather", {"city": "Rome"}),
        agent.ToolCall("2", "teleport", {}),
        agent.ToolCall("3", "weather", {"planet": "Mars"}),
    ]
    messages_seen: list[agent.Message] = []

    def model(messages: list[agent.Message]) -> agent.Message:
        messages_seen[:] = messages
        return (
            agent.Message("model", "sorry") if len(messages) > 1 else agent.Message("model", calls=tool_calls)
        )

    env.fake(agent.ask, model)
    env.fake(agent.weather, raises=ConnectionError("no route"))
    assert env.execute_workflow(agent.agent, QUESTION) == "sorry"
    assert [each.text.partition(":")[0] for each in messages_seen[2:]] == ["failed"] * 3
    assert len(env.calls(agent.weather)) == 3


def test_agent_example_fails_at_its_step_limit(hourglass_env: Environment) -> None:
    env = hourglass_env
    loop = agent.Message("model", calls=[agent.ToolCall("1", "weather", {"city": "Rome"})])
    env.fake(agent.ask, returns=loop)
    with pytest.raises(WorkflowFailedError) as failed:
        env.execute_workflow(agent.agent, QUESTION, 3)
    assert "no answer after 3 steps" in str(failed.value.cause)
