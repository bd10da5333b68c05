"""A report on a schedule: every weekday at nine in Berlin, whatever else happens.

    python examples/report.py

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

The schedule is kept by the engine, not by this program: create it once, from a deploy script, and let workers come and go.
Each report's workflow is named after the time that it stands for, so that none is made twice. The script creates one,
has it act now and for a day of the past, and deletes it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hourglass import Client, Worker, activity, workflow
from hourglass.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleBackfill,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
)


@dataclass
class Sales:
    orders: int
    cents: int


@activity.defn
def collect(shop: str) -> Sales:
    return Sales(orders=len(shop), cents=len(shop) * 1999)


@activity.defn
def send(shop: str, text: str) -> None:
    print(f"  to the owners of {shop}: {text}")


@workflow.defn
def report(shop: str) -> str:
    sales = collect(shop)
    text = f"{sales.orders} orders, {sales.cents / 100:.2f}"
    send(shop, text)
    return text


def weekdays_at_nine(shop: str) -> Schedule:
    return Schedule(
        action=ScheduleActionStartWorkflow(report, shop, id=f"report-{shop}", task_queue="report"),
        spec=ScheduleSpec(cron_expressions=["0 9 * * MON-FRI"], time_zone_name="Europe/Berlin"),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.BUFFER_ALL, catchup_window=timedelta(days=1)),
    )


def main() -> None:
    with Client.connect() as client, Worker(client, "report", modules=[__name__]):
        schedule = client.create_schedule("weekday-report", weekdays_at_nine("lamps"))
        try:
            print(f"next: {schedule.describe().info.next_action_times[0]:%A, %H:%M %Z}")
            monday = datetime(2026, 1, 5, tzinfo=UTC)
            schedule.backfill(ScheduleBackfill(start_at=monday, end_at=monday + timedelta(days=1)))
            schedule.trigger()
            print(followed(client, "report-lamps-2026-01-05T08:00:00Z"))
        finally:
            schedule.delete()


if __name__ == "__main__":
    main()
