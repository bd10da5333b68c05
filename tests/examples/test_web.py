"""The web applications: they start, signal and follow orders. Flask's test client drives one application, httpx over
ASGI the other, so that a request can be sent while another one streams.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator

import fastapi_app
import flask_app
import pytest
from flask.testing import FlaskClient
from httpx import ASGITransport, AsyncClient

from hourglass import Client, Worker


@pytest.fixture
def run_with_fastapi(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Callable[[AsyncClient], Awaitable[None]]], None]:
    """Run a coroutine function with a client of the FastAPI application and its worker, on an in-memory engine."""
    monkeypatch.setenv("HOURGLASS_TARGET", "local:")

    async def run_application(conversation: Callable[[AsyncClient], Awaitable[None]]) -> None:
        async with (
            fastapi_app.lifespan(fastapi_app.app),
            AsyncClient(transport=ASGITransport(fastapi_app.app), base_url="http://test") as web,
        ):
            await conversation(web)

    return lambda conversation: asyncio.run(run_application(conversation))


@pytest.fixture
def flask_client() -> Iterator[FlaskClient]:
    """A client of the Flask application with a worker, on an in-memory engine."""
    with Client.connect("local:") as client, Worker(client, "orders", modules=["orders"]):
        yield flask_app.create_app(client).test_client()


def test_fastapi_example_creates_charges_and_completes_an_order(
    run_with_fastapi: Callable[..., None],
) -> None:
    async def conversation(web: AsyncClient) -> None:
        created = await web.post("/orders", json={"item": "lamp", "quantity": 2})
        assert created.status_code == 201
        order = f"/orders/{created.json()['id']}"
        assert (await web.get(order)).json()["paid"] is False
        assert (await web.post(f"{order}/payment")).status_code == 202
        assert (await web.get(f"{order}/result")).json() == "2 × lamp on the way"
        assert (await web.get(order)).json() == {"stage": "shipped", "paid": True}

    run_with_fastapi(conversation)


def test_fastapi_example_streams_stages_and_resumes_after_last_event_id(
    run_with_fastapi: Callable[..., None],
) -> None:
    async def conversation(web: AsyncClient) -> None:
        order = f"/orders/{(await web.post('/orders', json={'item': 'lamp'})).json()['id']}"
        events, _ = await asyncio.gather(web.get(f"{order}/events"), web.post(f"{order}/payment"))
        assert events.headers["content-type"].startswith("text/event-stream")
        stages = re.findall("^data: (.*)$", events.text, re.M)
        assert stages == ["reserving", "waiting for payment", "shipping", "shipped"]
        event_ids = re.findall("^id: (.*)$", events.text, re.M)
        resumed = await web.get(f"{order}/events", headers={"Last-Event-ID": event_ids[2]})
        assert re.findall("^data: (.*)$", resumed.text, re.M) == ["shipped"]

    run_with_fastapi(conversation)


def test_fastapi_example_returns_404_for_unknown_orders_and_422_for_invalid_bodies(
    run_with_fastapi: Callable[..., None],
) -> None:
    async def conversation(web: AsyncClient) -> None:
        for path in ("", "/events", "/result"):
            assert (await web.get(f"/orders/none{path}")).status_code == 404
        assert (await web.post("/orders/none/payment")).status_code == 404
        assert (await web.post("/orders", json={"quantity": 2})).status_code == 422

    run_with_fastapi(conversation)


def test_flask_example_creates_charges_and_completes_an_order(flask_client: FlaskClient) -> None:
    created = flask_client.post("/orders", json={"item": "rug"})
    assert created.status_code == 201
    order = f"/orders/{created.get_json()['id']}"
    assert flask_client.get(order).get_json()["paid"] is False
    assert flask_client.post(f"{order}/payment").status_code == 202
    assert flask_client.get(f"{order}/result").get_json() == {"result": "1 × rug on the way"}
    assert flask_client.get(order).get_json() == {"stage": "shipped", "paid": True}


def test_flask_example_returns_404_for_unknown_orders(flask_client: FlaskClient) -> None:
    assert flask_client.get("/orders/none").status_code == 404
    assert flask_client.post("/orders/none/payment").status_code == 404
