"""A scheduled report: every weekday at nine in Berlin.

    python examples/report.py

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

The schedule is stored by the engine, not by this program: create it once, for example in a deploy script, independently of the
workers. The id of each report's workflow contains its scheduled time, so that no report is created twice. The script creates a
schedule, backfills two past days, and deletes it again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hourglass import Client, Worker, activity, workflow
from hourglass.client import (
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleBackfill,
    ScheduleHandle,
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


def acted(schedule: ScheduleHandle, times: int) -> list[str]:
    """Wait until the schedule has started this number of workflows and return their ids."""
    while len(recent := schedule.describe().info.recent_actions) < times:
        time.sleep(0.1)
    return [result.action.workflow_id for result in recent]


def main() -> None:
    monday = datetime(2026, 1, 5, tzinfo=UTC)
    with Client.connect() as client, Worker(client, "report", modules=[__name__]):
        schedule = client.create_schedule("weekday-report", weekdays_at_nine("lamps"))
        try:
            print(f"next: {schedule.describe().info.next_action_times[0]:%A, %H:%M %Z}")
            schedule.backfill(ScheduleBackfill(start_at=monday, end_at=monday + timedelta(days=2)))
            for id in acted(schedule, 2):
                print(f"{id}: {client.get_workflow_handle(id, workflow=report).result()}")
        finally:
            schedule.delete()


if __name__ == "__main__":
    main()
