"""A checkout that survives being killed: parallel activities, a retry, a signal, a timer, a result.

Run it with `make demo`. All state is in one file in a separate folder; there is no server. Kill it at any time with Ctrl-C or
`kill -9` and run it again: it resumes where it stopped. `--temporal` runs the same code on a real Temporal server, which it
starts and stops. Only public names of Hourglass are used.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from hourglass import (
    ApplicationError,
    Client,
    Replayer,
    RetryPolicy,
    Worker,
    WorkflowHandle,
    activity,
    workflow,
)

QUEUE = "checkout-example"
MAX_WAIT = 300


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


@activity.defn
def reserve(item: str) -> str:
    say("activity", f"reserve the {item}")
    take_a_while()
    return f"reserved-{item}"


@activity.defn(
    start_to_close_timeout=timedelta(seconds=30),
    retry_policy=RetryPolicy(initial_interval=0.5, maximum_attempts=20),
)
def charge(order_id: str, cents: int) -> str:
    take_a_while()
    if activity.info().attempt == 1:
        say("activity", "charge: the bank does not answer")
        raise ApplicationError("the bank does not answer", type="BankDown")
    say("activity", f"charge: attempt {activity.info().attempt}; {bank.charge(order_id, cents)}")
    return f"charge-{order_id}"


@activity.defn
def ask_for_approval(order_id: str) -> None:
    say("activity", f"ask Ann to approve {order_id}")


@activity.defn
def ship(item: str) -> str:
    take_a_while()
    say("activity", f"ship the {item}")
    return f"parcel-{item}"


approvals = workflow.Channel("approval", str)


@workflow.defn
def checkout(order: Order) -> Receipt:
    reservations = [reserve.start(item) for item in order.items]
    workflow.gather(*reservations)
    workflow.logger.info("everything is reserved")

    charge_id = charge(order.id, order.cents)
    workflow.logger.info("paid")

    ask_for_approval(order.id)
    workflow.logger.info("wait for a signal, for three days at most")
    manager = approvals.receive(timeout=timedelta(days=3))
    workflow.logger.info("approved by %s; the van comes in three seconds (a timer)", manager)

    workflow.sleep(3)
    parcels = workflow.map(ship, order.items)
    return Receipt(order.id, charge_id, manager, parcels)


class Bank:
    """An external bank, whose ledger survives our crashes. It charges each order once, however often it is called."""

    def __init__(self) -> None:
        self.book = Path(os.devnull)

    def charge(self, order_id: str, cents: int) -> str:
        if any(line.startswith(f"{order_id} ") for line in self.entries()):
            return f"the bank has the money for {order_id} already"
        with self.book.open("a") as book:
            book.write(f"{order_id} {cents / 100:.2f}\n")
        return f"the bank takes {cents / 100:.2f} for {order_id}"

    def entries(self) -> list[str]:
        return self.book.read_text().splitlines() if self.book.exists() else []


bank = Bank()
pace = 0.7


def take_a_while() -> None:
    """Simulate a slow external call, which also leaves time to kill the program in the middle of it."""
    time.sleep(pace)


def main() -> None:
    global pace
    parser = argparse.ArgumentParser(description="A checkout that survives being killed.")
    parser.add_argument("--temporal", action="store_true", help="on a Temporal dev server, for this run")
    parser.add_argument("--folder", type=Path, default=Path(".demo"), help="where it keeps its file")
    parser.add_argument("--pace", type=float, default=pace, help="seconds that an activity takes")
    options = parser.parse_args()
    pace = options.pace
    show_workflow_log()
    try:
        with place(options.temporal, options.folder) as target:
            run(target)
    except KeyboardInterrupt:
        say("demo", "interrupted; run it again, and it goes on from here")
        sys.exit(130)


def run(target: str) -> None:
    say("demo", f"target {target}, process {os.getpid()}")
    with Client.connect(target) as client:
        handle = unfinished(client) or begin(client)
        say("demo", f"kill me whenever you like: Ctrl-C, or kill -9 {os.getpid()} from elsewhere")
        with Worker(
            client, QUEUE, workflows=[checkout], activities=[reserve, charge, ask_for_approval, ship]
        ):
            approve(handle)
            receipt = handle.result(timeout=MAX_WAIT)
        say("client", f"the workflow returned {receipt}")
        charges = [line for line in bank.entries() if line.startswith(f"{handle.id} ")]
        if charges:
            say("bank", f"charged once, in spite of everything: {charges}")
        history = handle.history()
        with Replayer(workflows=[checkout]) as replayer:
            replayer.replay(history)
        say("client", f"its {len(history)} events are a Temporal history, and replay on this code")


def begin(client: Client) -> WorkflowHandle[Receipt]:
    order = Order(id=f"order-{uuid.uuid4().hex[:6]}", items=["lamp", "chair", "rug"], cents=12_900)
    handle = client.start_workflow(checkout, order, id=order.id, task_queue=QUEUE)
    say("client", f"{handle.id} is started: from now on it is durable")
    return handle


def unfinished(client: Client) -> WorkflowHandle[Receipt] | None:
    """Return the unfinished order of an earlier run of this program that was killed, or None."""
    open_now = "WorkflowType = 'checkout' AND ExecutionStatus = 'Running'"
    for execution in client.list_workflows(open_now):
        handle = client.get_workflow_handle(execution.id, result_type=Receipt)
        done, _ = progress(handle)
        say(
            "client",
            f"{execution.id} was interrupted and goes on; what was done stays done{':' if done else ''}",
        )
        for step, times in Counter(done).items():
            say("", f"✓ {step}" + (f" × {times}" if times > 1 else ""))
        return handle
    return None


def approve(handle: WorkflowHandle[Any]) -> None:
    """Act as the approver Ann: once the workflow has asked, send the signal unless it was sent before."""
    done, approved = progress(handle)
    while "ask_for_approval" not in done:
        time.sleep(0.05)
        done, approved = progress(handle)
    if approved:
        return
    if sys.stdin.isatty():
        input("\n                 You are Ann. Press Enter to approve … ")
    say("client", "send the signal: Ann approves")
    handle.signal(approvals, "Ann")


def progress(handle: WorkflowHandle[Any]) -> tuple[list[str], bool]:
    """Return the completed activities in the history, and whether the approval was received."""
    names: dict[str, str] = {}
    done: list[str] = []
    approved = False
    for event in handle.history().events:
        match event["eventType"]:
            case "EVENT_TYPE_ACTIVITY_TASK_SCHEDULED":
                names[event["eventId"]] = event["activityTaskScheduledEventAttributes"]["activityType"][
                    "name"
                ]
            case "EVENT_TYPE_ACTIVITY_TASK_COMPLETED":
                done.append(names[event["activityTaskCompletedEventAttributes"]["scheduledEventId"]])
            case "EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED":
                approved = True
    return done, approved


@contextmanager
def place(temporal: bool, folder: Path) -> Iterator[str]:
    """Yield the target: a file in a separate folder, a dev server that runs during the demo, or the configured target."""
    named = os.environ.get("HOURGLASS_TARGET")
    if named:
        yield named
    elif temporal:
        from hourglass.testing import dev_server

        say("server", "start a Temporal dev server")
        with dev_server() as started:
            say("server", f"Temporal listens on {started.target}")
            yield started.target
        say("server", "stopped")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
        bank.book = folder / "bank.txt"
        yield f"local:{folder / 'orders.db'}"


_began = time.monotonic()


def say(who: str, what: str) -> None:
    print(
        f"{time.monotonic() - _began:5.1f} s  {who:<9} {what}\n", end="", flush=True
    )  # a single write: other threads print, too


def show_workflow_log() -> None:
    """Handler that prints the workflow's log records in the format of the demo."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say("workflow", record.getMessage())

    logger = logging.getLogger("hourglass.workflow")
    logger.setLevel(logging.INFO)
    logger.addHandler(Lines())
    logger.propagate = False


if __name__ == "__main__":
    main()
