"""Workflows that wait, fail or hang, each in another way, for `hourglass why`."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from datetime import timedelta

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import ActivityError, ApplicationError

decision = workflow.Channel("decision", bool)
LATER = RetryPolicy(initial_interval=timedelta(hours=1))
ONCE = RetryPolicy(maximum_attempts=1)
SOON = timedelta(milliseconds=50)

released = threading.Event()
"""Lets the activities end that would otherwise run for ever."""


@activity.defn(retry_policy=LATER)
def closed_bank(order: str) -> str:
    raise ConnectionError(f"the bank does not answer for {order}")


@activity.defn(retry_policy=LATER, start_to_close_timeout=SOON)
def slow() -> None:
    released.wait(30)


@activity.defn(retry_policy=LATER, start_to_close_timeout=timedelta(hours=1), heartbeat_timeout=SOON)
def silent() -> None:
    released.wait(30)


@activity.defn(retry_policy=ONCE)
def refused() -> None:
    raise ApplicationError("no carrier serves this address", type="NoCarrier")


@activity.defn
def well() -> str:
    return "well"


@activity.defn
def holds() -> None:
    released.wait(30)


@workflow.defn
def crowds() -> None:
    workflow.gather(*(holds.start() for _ in range(3)))


@workflow.defn
def refuses() -> None:
    while True:
        try:
            workflow.sleep(3600)
        except workflow.Cancelled:
            pass  # as it should not


@workflow.defn
def gives_up() -> None:
    raise ApplicationError("the shelf is empty", type="SoldOut")


@workflow.defn
def pays(order: str) -> str:
    return closed_bank(order)


@workflow.defn
def hurries() -> None:
    slow()


@workflow.defn
def listens() -> None:
    silent()


@workflow.defn
def misses_the_start() -> None:
    well.options(task_queue="elsewhere", schedule_to_start_timeout=SOON)()


@workflow.defn
def misses_the_end() -> None:
    slow.options(start_to_close_timeout=timedelta(hours=1), schedule_to_close_timeout=SOON)()


@workflow.defn
def asks_a_stranger() -> None:
    workflow.execute_activity("nobody_knows_it", start_to_close_timeout=5, retry_policy=LATER)


@workflow.defn
def asks_elsewhere() -> str:
    return well.options(task_queue="elsewhere")()


@workflow.defn
def stumbles() -> int:
    stock: dict[str, int] = {}
    return stock["apples"]


@workflow.defn
def blocks() -> None:
    released.wait(30)


@workflow.defn
def decides() -> bool:
    return decision.receive(timeout=timedelta(hours=3))


@workflow.defn
def sleeps() -> None:
    workflow.sleep(timedelta(days=3))


@workflow.defn
def delegates() -> bool:
    return decides.options(id=f"{workflow.info().workflow_id}-child")()


@workflow.defn
def counts(number: int) -> int:
    return number


@workflow.defn
def changes() -> None:
    @workflow.update
    def change(to: int) -> int:
        workflow.wait_condition(lambda: to < 0)
        return to

    workflow.wait_condition(lambda: False)


@workflow.defn
def locks() -> None:
    lock = workflow.Lock()

    def holder() -> None:
        with lock:
            workflow.wait_condition(lambda: False)

    workflow.spawn(holder)
    workflow.sleep(0)
    with lock:
        pass


@workflow.defn
def ships() -> None:
    refused()


@workflow.defn
def ends_well() -> str:
    return well()


@workflow.defn(name="changing")
def before_the_change() -> None:
    well()
    decision.receive()


@workflow.defn(name="changing")
def after_the_change() -> None:
    workflow.sleep(3600)
    well()


@activity.defn
def reserve(order: str) -> None: ...


@activity.defn
def charge(order: str) -> None: ...


@activity.defn
def refund(order: str) -> None: ...


@activity.defn
def release(order: str) -> None: ...


@activity.defn
def book_hotel(order: str) -> None: ...


@activity.defn
def cancel_hotel(order: str) -> None: ...


@workflow.defn
def undoes(order: str) -> None:
    with ExitStack() as undo:
        undo.callback(release, order)
        reserve(order)
        undo.callback(refund, order)
        charge(order)
        refused()
        undo.pop_all()


@workflow.defn
def undoes_its_own(order: str) -> None:
    well()
    book_hotel(order)
    try:
        refused()
    except ActivityError:
        cancel_hotel.local(order)
        raise ApplicationError("no trip", type="NoTrip") from None


@activity.defn(start_to_close_timeout=timedelta(minutes=10))
def dawdles() -> None:
    rests()


def rests() -> None:
    released.wait(30)


@activity.defn(start_to_close_timeout=timedelta(minutes=10))
async def dawdles_async() -> None:
    await rests_async()


async def rests_async() -> None:
    await asyncio.to_thread(released.wait, 30)


@workflow.defn
def is_stuck() -> None:
    dawdles()


@workflow.defn
def is_stuck_async() -> None:
    dawdles_async()


WORKFLOWS = [
    pays, hurries, listens, misses_the_start, misses_the_end, asks_a_stranger, asks_elsewhere, stumbles, decides, sleeps,
    delegates, counts, changes, locks, ships, ends_well, crowds, refuses, gives_up,
    undoes, undoes_its_own, is_stuck, is_stuck_async,
]  # fmt: skip
ACTIVITIES = [
    closed_bank, slow, silent, refused, well, holds, reserve, charge, refund, release, book_hotel, cancel_hotel, dawdles,
    dawdles_async,
]  # fmt: skip
