"""An import that is kind to others: one at a time for each customer, an API that takes ten calls a second, progress to watch.

    python examples/limits.py

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

The limits hold for all workflows of the target, in any process, and survive whatever the workflows survive. Nothing is set
up for them: a key comes into being when it is first used. The watcher sees each step as it happens, without asking again
and again, and leaves no trace in the history.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from hourglass import Client, Worker, activity, limits, workflow
from hourglass.progress import Progress

QUEUE = "limits"


@dataclass
class Step:
    page: int
    of: int


steps = Progress("steps", Step)


@activity.defn
def fetch(customer: str, page: int) -> int:
    """Stands for a call of somebody else's API; gives how many rows the page has."""
    return 100 * page


@workflow.defn
def import_pages(customer: str, pages: int) -> int:
    rows = 0
    with limits.slot(f"import-{customer}"):  # one import of a customer at a time
        for page in range(1, pages + 1):
            limits.throttle("their-api", 10, per=timedelta(seconds=1))  # all imports together
            rows += fetch(customer, page)
            steps.publish(Step(page, pages))
    return rows


def main() -> None:
    with Client.connect() as client, Worker(client, QUEUE, modules=[__name__]):
        first = client.start_workflow(import_pages, "ann", 4, task_queue=QUEUE)
        second = client.start_workflow(import_pages, "ann", 2, task_queue=QUEUE)
        for step in steps.follow(first):
            print(f"  page {step.page} of {step.of}")
        print(f"first: {first.result()} rows")
        print(f"second: {second.result()} rows")

        # Somebody presses the button five times: one import, with what was asked for last.
        calls = [
            limits.debounce(client, import_pages, "bob", pages, key="import-bob", wait=0.5, task_queue=QUEUE)
            for pages in range(1, 6)
        ]
        print(f"five calls, one import: {calls[-1].result()} rows")


if __name__ == "__main__":
    main()
