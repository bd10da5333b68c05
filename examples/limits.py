"""An import with limits: one run at a time per customer, ten API calls per second in total, and progress reports.

    python examples/limits.py

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

The limits apply to all workflows on the target, in any process, and are as durable as the workflows. They need no setup: a key is
created on first use. The watcher receives each step immediately, without polling and without adding events to the history.
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
    """Simulate a call of an external API. Return the number of rows on the page."""
    return 100 * page


@workflow.defn
def import_pages(customer: str, pages: int) -> int:
    rows = 0
    with limits.slot(f"import-{customer}"):  # one import per customer at a time
        for page in range(1, pages + 1):
            limits.throttle("their-api", 10, per=timedelta(seconds=1))  # across all imports
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

        # Five requests in a row start a single import, with the arguments of the last one.
        calls = [
            limits.debounce(client, import_pages, "bob", pages, key="import-bob", wait=0.5, task_queue=QUEUE)
            for pages in range(1, 6)
        ]
        print(f"five calls, one import: {calls[-1].result()} rows")


if __name__ == "__main__":
    main()
