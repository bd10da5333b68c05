"""An ETL job: fetch 500 items from a rate-limited API, clean them, and load them into a warehouse with limited concurrency.

    python examples/etl.py
    hourglass run examples/etl.py 500

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

At most ten items are loaded at a time and at most 200 are fetched per second, across all runs on the target. Both limits add
almost no history events: a released slot is passed to the next item. Items that cannot be parsed are set aside; failed loads are
retried. Kill the program and run it again: it resumes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import timedelta

from hourglass import ApplicationError, Client, RetryPolicy, Worker, activity, limits, workflow
from hourglass.errors import ActivityError
from hourglass.progress import Progress

QUEUE = "etl"
AT_A_TIME = 10
SIDE_BY_SIDE = 50
A_SECOND = timedelta(seconds=1)


@dataclass
class Report:
    loaded: int = 0
    cents: int = 0
    set_aside: dict[int, str] = field(default_factory=dict)


reports = Progress("reports", Report)


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.2, maximum_attempts=5))
def extract(number: int) -> str:
    """Simulate an API call. One row in a hundred is malformed."""
    return "{broken" if number % 100 == 99 else json.dumps({"id": number, "cents": 10 * number})


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.2, maximum_attempts=10))
def load(id: int, cents: int) -> None:
    """Simulate `INSERT … ON CONFLICT (id) DO NOTHING`, because an attempt whose result was lost is retried."""


def transform(raw: str) -> tuple[int, int]:
    """Parse a row. Pure functions like this one can run in the workflow."""
    try:
        row = json.loads(raw)
        return int(row["id"]), int(row["cents"])
    except (ValueError, KeyError) as error:
        raise ApplicationError(f"no row: {error}", type="BadRow", non_retryable=True) from None


@workflow.defn
def etl(count: int) -> Report:
    report = Report()

    def one(number: int) -> None:
        try:
            limits.throttle("shop-api", 200, per=A_SECOND)
            id, cents = transform(extract(number))
            with limits.slot("warehouse", AT_A_TIME):
                load(id, cents)
        except (ActivityError, ApplicationError) as error:
            report.set_aside[number] = str(error)
        else:
            report.loaded += 1
            report.cents += cents
        if (report.loaded + len(report.set_aside)) % 100 == 0:
            reports.publish(report)

    workflow.map(one, range(count), limit=SIDE_BY_SIDE)
    return report


def main() -> None:
    with Client.connect() as client, Worker(client, QUEUE, modules=[__name__]):
        run = limits.once(client, etl, 500, key="etl-2026-01", task_queue=QUEUE, retry_failed=True)
        for report in reports.follow(run):
            print(f"  {report.loaded} loaded, {len(report.set_aside)} set aside")
        report = run.result()
        print(f"{report.loaded} items, {report.cents / 100:.2f}; set aside: {sorted(report.set_aside)}")


if __name__ == "__main__":
    main()
