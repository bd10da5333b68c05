"""An order service: FastAPI in two processes over one file. Either process can be killed without losing orders.

    pip install fastapi uvicorn
    cd examples && uvicorn order_service:app --workers 2

    curl -X PUT localhost:8000/orders/o-1 -H 'content-type: application/json' -d '{"item": "lamp", "cents": 3900}'
    curl -X POST localhost:8000/orders/o-1/payment
    curl localhost:8000/orders/o-1
    curl -N localhost:8000/orders/o-1/events

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

Each process has a client and a worker, and both run orders. One of them owns `hourglass.db`; the other one receives tasks from it
and takes over within a second after it stops or crashes. The order number is the workflow id: a PUT that is sent twice creates
one order, which is charged once.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from hourglass import ApplicationError, AsyncClient, Worker, activity, limits, workflow
from hourglass.client import AsyncWorkflowHandle
from hourglass.errors import WorkflowFailedError, WorkflowNotFoundError
from hourglass.progress import Progress

QUEUE = "order-service"

stages = Progress("stages", str)
payments = workflow.Channel("payment", str)


@dataclass
class Order:
    item: str
    cents: int


@activity.defn
def reserve(order_id: str, item: str) -> None:
    """Reserve the goods."""


@activity.defn
def release(order_id: str, item: str) -> None:
    """Release the reserved goods."""


@activity.defn
def charge(order_id: str, cents: int, card: str) -> str:
    """Charge a card. The order number is the idempotency key, so that the bank recognizes a retry."""
    return f"receipt-{order_id}"


@activity.defn
def ship(order_id: str, item: str) -> str:
    return f"parcel-{order_id}"


@workflow.defn
def fulfil(order: Order) -> str:
    id = workflow.info().workflow_id
    with ExitStack() as undo:
        stages.publish("reserving")
        reserve(id, order.item)
        undo.callback(release, id, order.item)
        stages.publish("waiting for payment")
        try:
            card = payments.receive(timeout=timedelta(days=3))
        except TimeoutError:
            stages.publish("expired")
            raise ApplicationError("never paid", type="Expired", non_retryable=True) from None
        with limits.slot("bank", limit=20):  # across all orders of both processes
            charge(id, order.cents, card)
        undo.pop_all()  # paid: from here on shipping is retried until it succeeds
    stages.publish("shipping")
    parcel = ship(id, order.item)
    stages.publish("shipped")
    return parcel


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with await AsyncClient.connect() as client, Worker(client, QUEUE, modules=[__name__]):
        app.state.client = client
        yield


app = FastAPI(title="Order service", lifespan=lifespan)


def handle_of(request: Request, id: str) -> AsyncWorkflowHandle[str]:
    client: AsyncClient = request.app.state.client
    return client.get_workflow_handle(id, workflow=fulfil)


@app.exception_handler(WorkflowNotFoundError)
async def not_found(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": "there is no such order, or it is over"}, status_code=404)


@app.put("/orders/{id}", status_code=202)
async def place(id: str, order: Order, request: Request) -> dict[str, str]:
    handle = await limits.once(request.app.state.client, fulfil, order, key=id, task_queue=QUEUE)
    return {"id": handle.id, "run": handle.run_id or ""}


@app.post("/orders/{id}/payment", status_code=202)
async def pay(id: str, request: Request, card: str = "4242") -> None:
    await handle_of(request, id).signal(payments, card)


@app.get("/orders/{id}")
async def status(id: str, request: Request) -> dict[str, object]:
    handle = handle_of(request, id)
    seen = await handle.describe()
    return {"status": seen.status.name, "stage": await stages.latest(handle), "answered_by": os.getpid()}


@app.get("/orders/{id}/result")
async def result(id: str, request: Request) -> dict[str, str]:
    """Wait for the result. Thousands of requests can wait, without a thread each."""
    try:
        return {"parcel": await handle_of(request, id).result()}
    except WorkflowFailedError as error:
        return {"problem": str(error.cause or error)}


@app.get("/orders/{id}/events")
async def events(id: str, request: Request) -> StreamingResponse:
    """Stream every stage as server-sent events, from either process."""
    stream = stages.follow(handle_of(request, id), after=request.headers.get("Last-Event-ID"))
    lines = (f"id: {stream.position}\ndata: {stage}\n\n" async for stage in stream)
    return StreamingResponse(lines, media_type="text/event-stream")
