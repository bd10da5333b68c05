"""A Flask application that starts workflows, sends them signals and follows their progress. It needs no event loop.

    pip install flask
    python examples/flask_app.py

    curl -X POST localhost:5000/orders -H 'content-type: application/json' -d '{"item": "lamp"}'
    curl localhost:5000/orders/ID
    curl -X POST localhost:5000/orders/ID/payment
    curl localhost:5000/orders/ID/result            (waits up to 30 seconds)

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server. The workflow is in `orders.py`.

The application is stateless: restart it, and every order resumes where it stopped.
"""

from __future__ import annotations

from flask import Flask, request
from flask.typing import ResponseReturnValue
from orders import QUEUE, Order, OrderFlow

from hourglass import Client, Worker, WorkflowHandle
from hourglass.errors import WorkflowNotFoundError


def create_app(client: Client) -> Flask:
    app = Flask(__name__)

    def order(id: str) -> WorkflowHandle[str]:
        return client.get_workflow_handle(id, workflow=OrderFlow.run)

    @app.errorhandler(WorkflowNotFoundError)
    def not_found(error: WorkflowNotFoundError) -> ResponseReturnValue:
        return {"error": "there is no such order"}, 404

    @app.post("/orders")
    def create() -> ResponseReturnValue:
        wanted = request.get_json()
        handle = client.start_workflow(
            OrderFlow.run, Order(str(wanted["item"]), int(wanted.get("quantity", 1))), task_queue=QUEUE
        )
        return {"id": handle.id}, 201

    @app.get("/orders/<id>")
    def status(id: str) -> ResponseReturnValue:
        now = order(id).query(OrderFlow.status)
        return {"stage": now.stage, "paid": now.paid}

    @app.post("/orders/<id>/payment")
    def pay(id: str) -> ResponseReturnValue:
        order(id).signal(OrderFlow.pay)
        return "", 202

    @app.get("/orders/<id>/result")
    def result(id: str) -> ResponseReturnValue:
        try:
            return {"result": order(id).result(timeout=30)}
        except TimeoutError:
            return {"error": "not done yet, ask again"}, 504

    return app


def main() -> None:
    with Client.connect() as client, Worker(client, QUEUE, modules=["orders"]):
        create_app(client).run()


if __name__ == "__main__":
    main()
