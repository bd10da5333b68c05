"""A saga: when a step of an order fails, the earlier steps are compensated in reverse order.

    python examples/saga.py
    hourglass run examples/saga.py '{"id": "o-1", "items": ["lamp"], "cents": 3900}'

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

The compensations are kept in Python's `ExitStack`. It also unwinds when the workflow is cancelled, and compensations are durable:
a failed refund is retried until it succeeds, also after a crash. Each compensation is pushed *before* its step runs, because an
attempt whose result was lost may have succeeded. So a compensation must be harmless if its step did not run.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from hourglass import ApplicationError, Client, RetryPolicy, Worker, activity, workflow
from hourglass.errors import WorkflowFailedError


@dataclass
class Order:
    id: str
    items: list[str]
    cents: int


@activity.defn
def reserve(order_id: str, items: list[str]) -> None:
    print(f"  {order_id}: {', '.join(items)} reserved")


@activity.defn
def release(order_id: str) -> None:
    print(f"  {order_id}: released")


@activity.defn
def charge(order_id: str, cents: int) -> None:
    print(f"  {order_id}: {cents / 100:.2f} charged")


@activity.defn
def refund(order_id: str) -> None:
    print(f"  {order_id}: refunded")


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=5))
def ship(order_id: str, items: list[str]) -> str:
    if "piano" in items:
        raise ApplicationError("no van is large enough for a piano", type="TooLarge", non_retryable=True)
    return f"parcel-{order_id}"


@workflow.defn
def checkout(order: Order) -> str:
    with ExitStack() as undo:
        undo.callback(release, order.id)
        reserve(order.id, order.items)
        undo.callback(refund, order.id)
        charge(order.id, order.cents)
        parcel = ship(order.id, order.items)
        undo.pop_all()  # success: drop the compensations
    return parcel


def main() -> None:
    orders = [Order("o-1", ["lamp", "rug"], 12900), Order("o-2", ["piano"], 499000)]
    with Client.connect() as client, Worker(client, "saga", modules=[__name__]):
        for order in orders:
            try:
                print(client.execute_workflow(checkout, order, task_queue="saga"))
            except WorkflowFailedError as error:
                print(f"{order.id} failed: {error.root_cause}")


if __name__ == "__main__":
    main()
