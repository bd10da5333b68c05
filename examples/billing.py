"""A subscription: charge every month for a year, wait while a card is declined, stop when the customer cancels.

    python examples/billing.py
    hourglass run examples/billing.py '{"customer": "ann", "cents": 900, "month": "PT1S"}'

The script first runs a year on virtual time, in milliseconds, then one with very short months on the engine:
`hourglass.db` in this folder or, with `HOURGLASS_TARGET=localhost:7233`, a Temporal server.

One loop implements the whole life of a subscription, without a cron job that looks for due payments and without a table of them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta

from hourglass import Client, RetryPolicy, Worker, activity, workflow
from hourglass.errors import ActivityError
from hourglass.testing import Environment


@dataclass
class Plan:
    customer: str
    cents: int
    months: int = 12
    month: timedelta = timedelta(days=30)


leaving = workflow.Channel("leave", str)


@activity.defn(
    retry_policy=RetryPolicy(initial_interval=timedelta(days=1), backoff_coefficient=1, maximum_attempts=5)
)
def charge(customer: str, cents: int, month: int) -> str:
    """Charge a month. The bank rejects a second charge for the same customer and month, so retries are safe."""
    return f"{customer} pays {cents / 100:.2f} for month {month}"


@workflow.defn
def subscription(plan: Plan) -> str:
    for month in range(1, plan.months + 1):
        try:
            workflow.logger.info(charge(plan.customer, plan.cents, month))
        except ActivityError:
            return f"suspended: month {month} was not paid"
        try:
            return f"left in month {month}: {leaving.receive(timeout=plan.month)}"
        except TimeoutError:
            pass  # the month is over
    return f"ended: {plan.months} months paid"


def main() -> None:
    began = time.perf_counter()
    with Environment() as env:
        start = env.now()
        print(env.execute_workflow(subscription, Plan("ann", 900)))
        print(f"  {(env.now() - start).days} days in {time.perf_counter() - began:.2f} s, on virtual time")

    with Client.connect() as client, Worker(client, "billing", modules=[__name__]):
        short = Plan("bob", 900, month=timedelta(seconds=0.1))
        print(client.execute_workflow(subscription, short, task_queue="billing"))
        handle = client.start_workflow(subscription, Plan("eve", 900), task_queue="billing")
        handle.signal(leaving, "too expensive")
        print(handle.result())


if __name__ == "__main__":
    main()
