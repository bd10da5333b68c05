"""An approval with a deadline: ask, remind every day, and give up when nobody has answered in time.

    python examples/approval.py
    hourglass run examples/approval.py '{"document": "budget.pdf", "approver": "ann"}' --id approval-1
    hourglass signal decision approval-1 '{"approved": true, "by": "ann"}'      (in another terminal)

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server. `test_approval.py` tests it: days of waiting in
milliseconds.

A channel is a queue of signals; sender and receiver use the same object. A waiting workflow uses no thread, and it keeps waiting
across restarts and deploys.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from hourglass import Client, Worker, activity, workflow


@dataclass
class Request:
    document: str
    approver: str
    remind_every: timedelta = timedelta(days=1)
    deadline: timedelta = timedelta(days=7)


@dataclass
class Decision:
    approved: bool
    by: str


decisions = workflow.Channel("decision", Decision)


@activity.defn
def notify(person: str, text: str) -> None:
    print(f"  to {person}: {text}")


@workflow.defn
def approval(request: Request) -> str:
    notify(request.approver, f"please look at {request.document}")
    reminders = workflow.spawn(remind, request)
    try:
        decision = decisions.receive(timeout=request.deadline)
    except TimeoutError:
        return "expired"
    finally:
        reminders.cancel()
    return f"{'approved' if decision.approved else 'refused'} by {decision.by}"


def remind(request: Request) -> None:
    """Send a reminder every day, until cancelled by the workflow."""
    while True:
        workflow.sleep(request.remind_every)
        notify(request.approver, f"{request.document} still waits for you")


def main() -> None:
    soon = timedelta(seconds=2)
    with Client.connect() as client, Worker(client, "approval", modules=[__name__]):
        answered = client.start_workflow(approval, Request("budget.pdf", "ann"), task_queue="approval")
        forgotten = client.start_workflow(
            approval, Request("menu.pdf", "bob", remind_every=soon / 3, deadline=soon), task_queue="approval"
        )
        answered.signal(decisions, Decision(approved=True, by="ann"))
        print(f"budget.pdf: {answered.result()}")
        print(f"menu.pdf: {forgotten.result()}")


if __name__ == "__main__":
    main()
