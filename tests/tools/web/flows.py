"""Workflows for tests of the web UI."""

from __future__ import annotations

from dataclasses import dataclass

from hourglass import ApplicationError, RetryPolicy, activity, limits, workflow
from hourglass.errors import ActivityError


@dataclass
class Order:
    name: str
    amount: int = 1


@activity.defn(start_to_close_timeout=10)
def charge(name: str, amount: int) -> str:
    return f"{name} paid {amount}"


@activity.defn(start_to_close_timeout=10, retry_policy=RetryPolicy(initial_interval=3600))
def refuse(name: str) -> str:
    raise ValueError(f"the bank refuses {name}")


@workflow.defn
class Purchase:
    """Charges, and waits for the signal `ship`."""

    def __init__(self) -> None:
        self.shipped = False
        self.notes: list[str] = []

    @workflow.run
    def run(self, order: Order) -> str:
        receipt = charge(order.name, order.amount)
        workflow.wait_condition(lambda: self.shipped)
        return receipt

    @workflow.signal
    def ship(self) -> None:
        self.shipped = True

    @workflow.query
    def note_count(self) -> int:
        return len(self.notes)

    @workflow.update
    def note(self, text: str) -> int:
        self.notes.append(text)
        return len(self.notes)


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.02, maximum_interval=0.02))
def decline(name: str) -> str:
    raise ValueError(f"the bank declines {name}")


@workflow.defn
def declined(name: str) -> str:
    return decline(name)


@workflow.defn
def stuck(name: str) -> str:
    return refuse(name)


@workflow.defn
def fails(name: str) -> str:
    raise ApplicationError(f"sold out: {name}", type="SoldOut")


@workflow.defn
def family(name: str) -> str:
    return workflow.execute_child_workflow(quick, name, id=f"child-of-{name}")


@workflow.defn
def quick(name: str) -> str:
    return charge(name, 1)


@workflow.defn
def endless(times: int) -> int:
    if times:
        workflow.continue_as_new(times - 1)
    return times


@activity.defn(start_to_close_timeout=10)
def refund(name: str) -> str:
    return f"{name} has the money back"


@activity.defn(start_to_close_timeout=10, retry_policy=RetryPolicy(maximum_attempts=1))
def ship_it(name: str) -> str:
    raise ValueError(f"no address of {name}")


@workflow.defn
def saga(name: str) -> str:
    charge(name, 1)
    try:
        return ship_it(name)
    except ActivityError:
        return refund(name)


@workflow.defn
def printing() -> None:
    with limits.slot("printer", limit=1):
        workflow.sleep(3600)


@workflow.defn
def mailing() -> None:
    limits.throttle("mail", 1, per=3600)


@workflow.defn
def broken() -> str:
    return {}["missing"]


@workflow.defn
def parked_by(name: str) -> str:
    raise KeyError(f"no {name} here")


WORKFLOWS = [
    declined,
    broken,
    parked_by,
    printing,
    mailing,
    saga,
    Purchase,
    stuck,
    fails,
    family,
    quick,
    endless,
]
ACTIVITIES = [decline, charge, refuse, refund, ship_it]
