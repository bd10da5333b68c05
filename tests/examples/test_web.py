"""The web applications start workflows and follow them.

Flask's own test client drives one. The other is driven by httpx over ASGI, as FastAPI's manual has it for asynchronous
tests: requests can then run side by side, and an order be paid while it is followed.
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
def in_fastapi(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[AsyncClient], Awaitable[None]]], None]:
    """Runs a conversation with the FastAPI application and its worker, on an engine in memory."""
    monkeypatch.setenv("HOURGLASS_TARGET", "local:")

    async def converse(conversation: Callable[[AsyncClient], Awaitable[None]]) -> None:
        async with (
            fastapi_app.lifespan(fastapi_app.app),
            AsyncClient(transport=ASGITransport(fastapi_app.app), base_url="http://test") as web,
        ):
            await conversation(web)

    return lambda conversation: asyncio.run(converse(conversation))


@pytest.fixture
def flask_client() -> Iterator[FlaskClient]:
    """The Flask application and a worker, on an engine in memory."""
    with Client.connect("local:") as client, Worker(client, "orders", modules=["orders"]):
        yield flask_app.create_app(client).test_client()


def test_fastapi_application_handles_an_order(in_fastapi: Callable[..., None]) -> None:
    """An order is started, asked for, paid and waited for."""

    async def conversation(web: AsyncClient) -> None:
        created = await web.post("/orders", json={"item": "lamp", "quantity": 2})
        assert created.status_code == 201
        order = f"/orders/{created.json()['id']}"
        assert (await web.get(order)).json()["paid"] is False
        assert (await web.post(f"{order}/payment")).status_code == 202
        assert (await web.get(f"{order}/result")).json() == "2 × lamp on the way"
        assert (await web.get(order)).json() == {"stage": "shipped", "paid": True}

    in_fastapi(conversation)


def test_fastapi_streams_an_open_order(in_fastapi: Callable[..., None]) -> None:
    """The stream has every stage until the order is closed, and goes on after the event that was seen last."""

    async def conversation(web: AsyncClient) -> None:
        order = f"/orders/{(await web.post('/orders', json={'item': 'lamp'})).json()['id']}"
        events, _ = await asyncio.gather(web.get(f"{order}/events"), web.post(f"{order}/payment"))
        assert events.headers["content-type"].startswith("text/event-stream")
        stages = re.findall("^data: (.*)$", events.text, re.M)
        assert stages == ["reserving", "waiting for payment", "shipping", "shipped"]
        seen = re.findall("^id: (.*)$", events.text, re.M)
        again = await web.get(f"{order}/events", headers={"Last-Event-ID": seen[2]})
        assert re.findall("^data: (.*)$", again.text, re.M) == ["shipped"]

    in_fastapi(conversation)


def test_fastapi_rejects_invalid_requests(in_fastapi: Callable[..., None]) -> None:
    """An order that is not there is a 404, a body that is none a 422."""

    async def conversation(web: AsyncClient) -> None:
        for path in ("", "/events", "/result"):
            assert (await web.get(f"/orders/none{path}")).status_code == 404
        assert (await web.post("/orders/none/payment")).status_code == 404
        assert (await web.post("/orders", json={"quantity": 2})).status_code == 422

    in_fastapi(conversation)


def test_flask_application_handles_an_order(flask_client: FlaskClient) -> None:
    """An order is started, asked for, paid and waited for."""
    created = flask_client.post("/orders", json={"item": "rug"})
    assert created.status_code == 201
    order = f"/orders/{created.get_json()['id']}"
    assert flask_client.get(order).get_json()["paid"] is False
    assert flask_client.post(f"{order}/payment").status_code == 202
    assert flask_client.get(f"{order}/result").get_json() == {"result": "1 × rug on the way"}
    assert flask_client.get(order).get_json() == {"stage": "shipped", "paid": True}


def test_flask_rejects_unknown_orders(flask_client: FlaskClient) -> None:
    """An order that is not there is a 404, and so is paying for it."""
    assert flask_client.get("/orders/none").status_code == 404
    assert flask_client.post("/orders/none/payment").status_code == 404
