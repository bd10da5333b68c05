"""A checkout on a real Temporal server: work in parallel, a retry, a signal, a timer, a result.

`make demo` runs it. It starts a Temporal dev server of its own and stops it at the end; with HOURGLASS_TARGET
it uses that target instead. Only public names of Hourglass are used here.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from hourglass import ApplicationError, Client, Replayer, RetryPolicy, Worker, activity, workflow
from hourglass.testing import dev_server

QUEUE = "checkout-example"


@dataclass
class Order:
    id: str
    items: list[str]
    cents: int


@dataclass
class Receipt:
    order_id: str
    charge_id: str
    approved_by: str
    parcels: list[str]


# --- activities: ordinary functions that touch the world --------------------------------------------------


@activity.defn
def reserve(item: str) -> str:
    say("activity", f"reserve {item}")
    return f"reserved-{item}"


@activity.defn(
    start_to_close_timeout=timedelta(seconds=30),
    retry_policy=RetryPolicy(initial_interval=0.5, maximum_attempts=5),
)
def charge(order_id: str, cents: int) -> str:
    attempt = activity.info().attempt
    if attempt == 1:
        say("activity", "charge: attempt 1 fails, the bank does not answer")
        raise ApplicationError("the bank does not answer", type="BankDown")
    say("activity", f"charge: attempt {attempt} takes {cents / 100:.2f} for {order_id}")
    return f"charge-{order_id}"


@activity.defn
def ask_for_approval(order_id: str) -> None:
    say("activity", f"ask a manager to approve {order_id}")
    manager_was_asked.set()


@activity.defn
def ship(item: str) -> str:
    say("activity", f"ship {item}")
    return f"parcel-{item}"


# --- the workflow: a plain function -----------------------------------------------------------------------

approvals = workflow.Channel("approval", str)


@workflow.defn
def checkout(order: Order) -> Receipt:
    reservations = [reserve.start(item) for item in order.items]
    workflow.gather(*reservations)
    workflow.logger.info("everything is reserved")

    charge_id = charge(order.id, order.cents)
    workflow.logger.info("paid: %s", charge_id)

    workflow.logger.info("ask for approval, then wait for the signal, for three days at most")
    ask_for_approval(order.id)
    manager = approvals.receive(timeout=timedelta(days=3))
    workflow.logger.info("approved by %s; now a timer of one second", manager)

    workflow.sleep(1)
    parcels = workflow.map(ship, order.items)
    return Receipt(order.id, charge_id, manager, parcels)


# --- the program ------------------------------------------------------------------------------------------

manager_was_asked = threading.Event()
_began = time.monotonic()


def main() -> None:
    show_workflow_log()
    order = Order(id=f"order-{uuid.uuid4().hex[:6]}", items=["lamp", "chair", "rug"], cents=12_900)
    with (
        server() as target,
        Client.connect(target) as client,
        Worker(client, QUEUE, workflows=[checkout], activities=[reserve, charge, ask_for_approval, ship]),
    ):
        handle = client.start_workflow(checkout, order, id=order.id, task_queue=QUEUE)
        say("client", f"workflow {handle.id} is started")

        manager_was_asked.wait(30)
        say("client", "send the signal: Ann approves")
        handle.signal(approvals, "Ann")

        receipt = handle.result(timeout=60)
        say("client", f"the workflow returned {receipt}")

        history = handle.history()
        with Replayer(workflows=[checkout]) as replayer:
            replayer.replay(history)
        say("client", f"its {len(history)} events of history replay on this code")
    say("demo", "done, everything is stopped")


@contextmanager
def server() -> Iterator[str]:
    """The target: a Temporal server of the user's, or a dev server for as long as the demo runs."""
    named = os.environ.get("HOURGLASS_TARGET")
    if named:
        say("server", f"use {named}")
        yield named
        return
    say("server", "start a Temporal dev server")
    with dev_server() as started:
        say("server", f"Temporal listens on {started.target}")
        yield started.target


def say(who: str, what: str) -> None:
    print(f"{time.monotonic() - _began:5.1f} s  {who:<9} {what}", flush=True)


def show_workflow_log() -> None:
    """Print what the workflow logs in the same form as everything else."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say("workflow", record.getMessage())

    logger = logging.getLogger("hourglass.workflow")
    logger.setLevel(logging.INFO)
    logger.addHandler(Lines())
    logger.propagate = False


if __name__ == "__main__":
    main()
