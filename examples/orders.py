"""An order that waits for its payment: the workflow behind the two web applications, `fastapi_app.py` and `flask_app.py`.

    hourglass worker examples/orders.py --task-queue orders

runs a worker in a separate process, as in production: the web applications then only start, signal and query workflows. The two
examples also run a worker in the application itself, which is sufficient for small applications.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from hourglass import activity, workflow
from hourglass.progress import Progress

QUEUE = "orders"

stages = Progress("stages", str)


@dataclass
class Order:
    item: str
    quantity: int = 1


@dataclass
class Status:
    stage: str
    paid: bool = False


@activity.defn
def reserve(item: str, quantity: int) -> None:
    """Reserve the goods."""


@activity.defn
def ship(item: str, quantity: int) -> str:
    return f"{quantity} × {item} on the way"


@workflow.defn
class OrderFlow:
    def __init__(self) -> None:
        self.now = Status("new")

    @workflow.run
    def run(self, order: Order) -> str:
        self.reach("reserving")
        reserve(order.item, order.quantity)
        self.reach("waiting for payment")
        try:
            workflow.wait_condition(lambda: self.now.paid, timeout=timedelta(days=3))
        except TimeoutError:
            self.reach("expired")
            return "never paid"
        self.reach("shipping")
        result = ship(order.item, order.quantity)
        self.reach("shipped")
        return result

    def reach(self, stage: str) -> None:
        self.now.stage = stage
        stages.publish(stage)  # to clients that follow the order

    @workflow.signal
    def pay(self) -> None:
        self.now.paid = True

    @workflow.query
    def status(self) -> Status:
        return self.now
