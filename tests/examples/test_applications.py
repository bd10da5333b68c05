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


def test_etl_loads_all_valid_rows(hourglass_env: Environment) -> None:
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


def test_etl_keeps_its_limits(hourglass_env: Environment) -> None:
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
def unlimited(count: int) -> int:
    workflow.map(lambda number: etl.load(number, 1), range(count), limit=etl.AT_A_TIME)
    return count


@workflow.defn
def limited(count: int) -> int:
    def one(number: int) -> None:
        with limits.slot("warehouse", etl.AT_A_TIME):
            etl.load(number, 1)

    workflow.map(one, range(count))
    return count


def test_limits_add_few_events_for_five_hundred_items(hourglass_env: Environment) -> None:
    env = hourglass_env
    env.fake(etl.load, returns=None, takes=1)
    plain, quiet = env.start_workflow(unlimited, 500), env.start_workflow(limited, 500)
    assert (plain.result(), quiet.result()) == (500, 500)
    assert len(quiet.history().events) <= 1.1 * len(plain.history().events)
    assert env.client.count_workflows() == 2  # nothing else keeps the limit


# --- the agent -------------------------------------------------------------------------------------------------------

QUESTION = "What shall I wear in Oslo and in Rome?"


def test_agent_streams_the_models_words(hourglass_env: Environment) -> None:
    env = hourglass_env
    run = env.start_workflow(agent.agent, QUESTION)
    run.signal(agent.consents, True)
    assert list(agent.tokens.follow(run)) == ["Done:", " mailed", " to", " ann", "."]
    kinds = {event["eventType"].removeprefix("EVENT_TYPE_") for event in run.history().events}
    assert not any("MARKER" in each or "UPDATE" in each for each in kinds)


def test_agent_streams_again_after_a_model_failure(hourglass_env: Environment) -> None:
    env = hourglass_env

    def model(messages: list[agent.Message]) -> agent.Message:
        agent.tokens.publish("Hel")
        if activity.info().attempt == 1:
            raise ConnectionError("broke off")
        agent.tokens.publish("lo")
        return agent.Message("model", "Hello")

    env.fake(agent.ask, model)
    stream = agent.tokens.follow(env.start_workflow(agent.agent, QUESTION))
    said = [(piece, stream.origin.attempt) for piece in stream if stream.origin is not None]
    assert said == [("Hel", 1), ("Hel", 2), ("lo", 2)]


# --- the order service -----------------------------------------------------------------------------------------------


def test_paid_order_is_shipped(hourglass_env: Environment) -> None:
    env = hourglass_env
    run = env.start_workflow(order_service.fulfil, order_service.Order("lamp", 3900), id="o-1")
    env.after(hours=5).signal(run, order_service.payments, "4242")
    assert run.result() == "parcel-o-1"
    assert env.calls(order_service.charge) == [call("o-1", 3900, "4242")]
    assert list(order_service.stages.follow(run))[-1] == "shipped"


def test_unpaid_order_is_undone(hourglass_env: Environment) -> None:
    env = hourglass_env
    begin = env.now()
    with pytest.raises(WorkflowFailedError, match="never paid"):
        env.execute_workflow(order_service.fulfil, order_service.Order("lamp", 3900), id="o-1")
    assert env.now() - begin == timedelta(days=3)
    env.fake(order_service.charge, raises=ApplicationError("no cover", non_retryable=True))
    run = env.start_workflow(order_service.fulfil, order_service.Order("rug", 100), id="o-2")
    run.signal(order_service.payments, "1")
    with pytest.raises(WorkflowFailedError):
        run.result()
    assert env.calls(order_service.release) == [call("o-1", "lamp"), call("o-2", "rug")]
    assert env.calls(order_service.ship) == []


def test_order_survives_crashes(hourglass_env: Environment) -> None:
    env = hourglass_env
    run = env.start_workflow(order_service.fulfil, order_service.Order("lamp", 3900), id="o-1")
    env.crash()
    run.signal(order_service.payments, "4242")
    env.crash()
    assert run.result() == "parcel-o-1"
    assert len(env.calls(order_service.charge)) == 1


@pytest.fixture
def service(tmp_path: Path) -> Iterator[str]:
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


def test_web_service_in_two_processes(service: str) -> None:
    transport = httpx.HTTPTransport(retries=30)  # until the processes listen
    with httpx.Client(base_url=service, transport=transport, timeout=60) as web:
        placed = web.put("/orders/o-1", json={"item": "lamp", "cents": 3900}).json()
        assert web.put("/orders/o-1", json={"item": "lamp", "cents": 3900}).json() == placed
        owners = set()
        while len(owners) < 2:  # the kernel spreads connections: both answer in the end
            with httpx.Client(
                base_url=service, transport=httpx.HTTPTransport(retries=30), timeout=60
            ) as other:
                owners.add(other.get("/orders/o-1").json()["answered_by"])
    os.kill(owners.pop(), signal.SIGKILL)
    with httpx.Client(base_url=service, transport=httpx.HTTPTransport(retries=30), timeout=60) as web:
        assert again(web, "POST", "/orders/o-1/payment").status_code == 202
        assert again(web, "GET", "/orders/o-1/result").json() == {"parcel": "parcel-o-1"}
        assert "data: shipped" in again(web, "GET", "/orders/o-1/events").text
        assert again(web, "GET", "/orders/none").status_code == 404


def again(web: httpx.Client, method: str, path: str) -> httpx.Response:
    """Repeat a request until a process answers. A killed process takes its accepted connections with it."""
    while True:
        try:
            return web.request(method, path)
        except httpx.TransportError:
            continue
