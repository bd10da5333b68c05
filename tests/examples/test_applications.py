"""The three applications: an ETL with limits, a streaming agent, and an order service with two processes. Their
workflows run on virtual time; the service also runs with uvicorn, two processes and one file.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import agent
import etl
import httpx
import order_service
import pytest

from hourglass import ApplicationError, activity, limits, workflow
from hourglass.errors import WorkflowFailedError
from hourglass.testing import Environment, call

from .conftest import EXAMPLES

# --- the ETL ---------------------------------------------------------------------------------------------------------


def test_etl_example_loads_valid_rows_and_sets_invalid_rows_aside(hourglass_env: Environment) -> None:
    env = hourglass_env

    def load(id: int, cents: int) -> None:
        if id % 50 == 0 and activity.info().attempt < 3:
            raise ConnectionError("busy")

    env.fake(etl.load, load)
    env.fake(etl.extract, etl.extract.fn)
    run = env.start_workflow(etl.etl, 500)
    report = run.result()
    assert (report.loaded, sorted(report.set_aside)) == (495, [99, 199, 299, 399, 499])
    assert report.cents == sum(10 * number for number in range(500) if number % 100 != 99)
    assert [each.loaded + len(each.set_aside) for each in etl.reports.follow(run)] == [
        100,
        200,
        300,
        400,
        500,
    ]


def test_etl_example_keeps_concurrency_and_rate_limits_across_two_runs(hourglass_env: Environment) -> None:
    env = hourglass_env
    env.fake(etl.extract, returns='{"id": 1, "cents": 1}')
    env.fake(etl.load, returns=None, takes=0.5)
    for run in [env.start_workflow(etl.etl, 150) for _ in range(2)]:
        assert run.result().loaded == 150
    loads = sorted(each.time for each in env.calls(etl.load))
    assert all(
        later - sooner >= timedelta(seconds=0.5) for sooner, later in zip(loads, loads[10:], strict=False)
    )
    calls = sorted(each.time for each in env.calls(etl.extract))
    span = timedelta(seconds=1) - timedelta(microseconds=2)
    assert all(later - sooner >= span for sooner, later in zip(calls, calls[200:], strict=False))


@workflow.defn
def load_without_slots(count: int) -> int:
    workflow.map(lambda number: etl.load(number, 1), range(count), limit=etl.AT_A_TIME)
    return count


@workflow.defn
def load_with_slots(count: int) -> int:
    def one(number: int) -> None:
        with limits.slot("warehouse", etl.AT_A_TIME):
            etl.load(number, 1)

    workflow.map(one, range(count))
    return count


def test_slots_add_at_most_ten_percent_of_history_events_for_500_items(hourglass_env: Environment) -> None:
    env = hourglass_env
    env.fake(etl.load, returns=None, takes=1)
    plain, with_slots = env.start_workflow(load_without_slots, 500), env.start_workflow(load_with_slots, 500)
    assert (plain.result(), with_slots.result()) == (500, 500)
    assert len(with_slots.history().events) <= 1.1 * len(plain.history().events)
    assert env.client.count_workflows() == 2  # nothing else keeps the limit


# --- the agent -------------------------------------------------------------------------------------------------------

QUESTION = "What shall I wear in Oslo and in Rome?"


def test_agent_example_streams_words_without_history_events(hourglass_env: Environment) -> None:
    env = hourglass_env
    run = env.start_workflow(agent.agent, QUESTION)
    run.signal(agent.consents, True)
    assert list(agent.tokens.follow(run)) == ["Done:", " mailed", " to", " ann", "."]
    kinds = {event["eventType"].removeprefix("EVENT_TYPE_") for event in run.history().events}
    assert not any("MARKER" in each or "UPDATE" in each for each in kinds)


def test_agent_example_streams_again_with_the_attempt_number_after_a_failure(
    hourglass_env: Environment,
) -> None:
    env = hourglass_env

    def model(messages: list[agent.Message]) -> agent.Message:
        agent.tokens.publish("Hel")
        if activity.info().attempt == 1:
            raise ConnectionError("broke off")
        agent.tokens.publish("lo")
        return agent.Message("model", "Hello")

    env.fake(agent.ask, model)
    stream = agent.tokens.follow(env.start_workflow(agent.agent, QUESTION))
    pieces = [(piece, stream.origin.attempt) for piece in stream if stream.origin is not None]
    assert pieces == [("Hel", 1), ("Hel", 2), ("lo", 2)]


# --- the order service -----------------------------------------------------------------------------------------------


def test_order_service_charges_a_paid_order_once_and_ships_it(hourglass_env: Environment) -> None:
    env = hourglass_env
    run = env.start_workflow(order_service.fulfil, order_service.Order("lamp", 3900), id="o-1")
    env.after(hours=5).signal(run, order_service.payments, "4242")
    assert run.result() == "parcel-o-1"
    assert env.calls(order_service.charge) == [call("o-1", 3900, "4242")]
    assert list(order_service.stages.follow(run))[-1] == "shipped"


def test_order_service_releases_goods_of_unpaid_or_declined_orders(hourglass_env: Environment) -> None:
    env = hourglass_env
    start = env.now()
    with pytest.raises(WorkflowFailedError, match="never paid"):
        env.execute_workflow(order_service.fulfil, order_service.Order("lamp", 3900), id="o-1")
    assert env.now() - start == timedelta(days=3)
    env.fake(order_service.charge, raises=ApplicationError("no cover", non_retryable=True))
    run = env.start_workflow(order_service.fulfil, order_service.Order("rug", 100), id="o-2")
    run.signal(order_service.payments, "1")
    with pytest.raises(WorkflowFailedError):
        run.result()
    assert env.calls(order_service.release) == [call("o-1", "lamp"), call("o-2", "rug")]
    assert env.calls(order_service.ship) == []


def test_order_service_charges_once_despite_worker_crashes(hourglass_env: Environment) -> None:
    env = hourglass_env
    run = env.start_workflow(order_service.fulfil, order_service.Order("lamp", 3900), id="o-1")
    env.crash()
    run.signal(order_service.payments, "4242")
    env.crash()
    assert run.result() == "parcel-o-1"
    assert len(env.calls(order_service.charge)) == 1


@pytest.fixture
def order_service_url(tmp_path: Path) -> Iterator[str]:
    """Run the service with uvicorn, two processes and one file. Yield its URL."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "order_service:app", "--workers", "2", "--port", str(port)]
    environment = os.environ | {"HOURGLASS_TARGET": f"local:{tmp_path / 'orders.db'}"}
    running = subprocess.Popen(
        [*command, "--app-dir", str(EXAMPLES), "--log-level", "warning"],
        env=environment,
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(30)


def test_order_service_continues_after_one_of_two_processes_is_killed(order_service_url: str) -> None:
    transport = httpx.HTTPTransport(retries=30)  # until the processes listen
    with httpx.Client(base_url=order_service_url, transport=transport, timeout=60) as web:
        placed = web.put("/orders/o-1", json={"item": "lamp", "cents": 3900}).json()
        assert web.put("/orders/o-1", json={"item": "lamp", "cents": 3900}).json() == placed
        owners = set()
        while len(owners) < 2:  # the kernel spreads connections: both answer in the end
            with httpx.Client(
                base_url=order_service_url, transport=httpx.HTTPTransport(retries=30), timeout=60
            ) as other:
                owners.add(other.get("/orders/o-1").json()["answered_by"])
    os.kill(owners.pop(), signal.SIGKILL)
    with httpx.Client(
        base_url=order_service_url, transport=httpx.HTTPTransport(retries=30), timeout=60
    ) as web:
        assert request_until_answered(web, "POST", "/orders/o-1/payment").status_code == 202
        assert request_until_answered(web, "GET", "/orders/o-1/result").json() == {"parcel": "parcel-o-1"}
        assert "data: shipped" in request_until_answered(web, "GET", "/orders/o-1/events").text
        assert request_until_answered(web, "GET", "/orders/none").status_code == 404


def request_until_answered(web: httpx.Client, method: str, path: str) -> httpx.Response:
    """Repeat a request until a process answers. A killed process takes its accepted connections with it."""
    while True:
        try:
            return web.request(method, path)
        except httpx.TransportError:
            continue
