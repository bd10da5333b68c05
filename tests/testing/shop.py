"""Workflows and activities for the tests of environments."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from datetime import timedelta

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import ActivityError, ApplicationError
from hourglass.workflow import Channel


@dataclass
class Order:
    id: str
    cents: int


decisions = Channel("decision", str)


@activity.defn(retry_policy=RetryPolicy(initial_interval=60, maximum_interval=timedelta(hours=1)))
def charge(order_id: str, cents: int = 0) -> str:
    return f"charged {order_id}"


@activity.defn
def ship(item: str) -> None:
    return None


@activity.defn
async def fetch(url: str) -> str:
    await asyncio.sleep(0)
    return f"page {url}"


@activity.defn(executor="process")
def crunch(number: int) -> str:
    return threading.current_thread().name


@activity.defn(heartbeat_timeout=timedelta(minutes=1), retry_policy=RetryPolicy(maximum_attempts=1))
def needs_heartbeats(name: str) -> str:
    return name


class Payments:
    """Activities that need an instance."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    @activity.defn
    def refund(self, order_id: str) -> str:
        return f"{self.prefix} {order_id}"


@workflow.defn
def checkout(order: Order) -> str:
    charged = charge(order.id, order.cents)
    workflow.sleep(timedelta(days=30))
    ship(order.id)
    return charged


@workflow.defn
def approval(name: str) -> str:
    return f"{name}: {decisions.receive()}"


@workflow.defn
def approval_in_time(name: str) -> str:
    try:
        with workflow.timeout(timedelta(days=7)):
            return f"{name}: {decisions.receive()}"
    except TimeoutError:
        return f"{name}: too late"


@workflow.defn
def browse(url: str) -> str:
    return fetch(url)


@workflow.defn
def compute(number: int) -> str:
    return crunch(number)


@workflow.defn
def calls_by_name(order_id: str) -> str:
    result: str = workflow.execute_activity("charge-by-name", order_id)
    return result


@workflow.defn
def refunds(order_id: str) -> str:
    return Payments.refund(order_id)


@workflow.defn
def buggy() -> None:
    raise ValueError("a bug")


@workflow.defn
def always_fails() -> None:
    raise ApplicationError("as planned", type="Doom")


@workflow.defn
def reports_its_activitys_failure(name: str) -> str:
    try:
        return needs_heartbeats(name)
    except ActivityError as error:
        return f"{type(error.cause).__name__}: {error.cause}"
