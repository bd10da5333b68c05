"""An ETL: five hundred items fetched from an API that has a limit, cleaned, and loaded into a warehouse that has another.

    python examples/etl.py
    hourglass run examples/etl.py 500

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

At most ten items are loaded at a time, and at most two hundred are fetched in any second, by all runs of the target
together. Both leave next to nothing in the history: a slot that one item leaves goes to the next. An item that cannot be read
is set aside, one that cannot be loaded now is tried again. Kill it and run it again: it goes on.
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


# --- what touches the world ------------------------------------------------------------------------------------------


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.2, maximum_attempts=5))
def extract(number: int) -> str:
    """Stands for a call of an API. One row in a hundred is broken."""
    return "{broken" if number % 100 == 99 else json.dumps({"id": number, "cents": 10 * number})


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.2, maximum_attempts=10))
def load(id: int, cents: int) -> None:
    """Stands for an `INSERT … ON CONFLICT (id) DO NOTHING`: an attempt whose answer was lost is made again."""


# --- the run ---------------------------------------------------------------------------------------------------------


def transform(raw: str) -> tuple[int, int]:
    """Plain code that needs nothing but its input belongs into the workflow."""
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
