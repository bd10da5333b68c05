"""Workflows with typical bugs, and their correct versions, for the tests of exploration."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from hourglass import RetryPolicy, activity, workflow
from hourglass.errors import ActivityError, ApplicationError

ONCE = RetryPolicy(maximum_attempts=1)


@activity.defn
def charge(order_id: str) -> str:
    return f"charge-{order_id}"


@activity.defn(retry_policy=ONCE)
def ship(order_id: str) -> None:
    return None


@activity.defn
def refund(charge_id: str) -> None:
    return None


# --- a saga that refunds only where it thought of it ------------------------------------------------------


@workflow.defn
def saga_without_refund_after_timeout(order_id: str) -> str:
    charge_id = charge(order_id)
    try:
        ship(order_id)
    except ActivityError as error:
        if isinstance(error.cause, ApplicationError):  # a timeout is no ApplicationError
            refund(charge_id)
        raise
    return charge_id


@workflow.defn
def saga(order_id: str) -> str:
    charge_id = charge(order_id)
    try:
        ship(order_id)
    except ActivityError:
        refund(charge_id)
        raise
    return charge_id


# --- a payment whose key is made anew for each try --------------------------------------------------------


@activity.defn(retry_policy=ONCE)
def pay(key: str, cents: int) -> None:
    return None


def _try_to_pay(keys: Iterable[str], cents: int) -> str:
    for key in keys:
        try:
            pay(key, cents)
        except ActivityError:
            continue
        return "paid"
    raise ApplicationError("nobody takes the money", type="NotPaid")


@workflow.defn
def pays_with_a_new_key(cents: int) -> str:
    return _try_to_pay((str(workflow.uuid4()) for _ in range(3)), cents)


@workflow.defn
def pays_with_the_same_key(cents: int) -> str:
    return _try_to_pay([str(workflow.uuid4())] * 3, cents)


# --- an approval that meets its deadline ------------------------------------------------------------------


@activity.defn
def cancel_order(order_id: str) -> None:
    return None


class _Approved:
    def __init__(self) -> None:
        self.approved = False

    @workflow.signal
    def approve(self) -> None:
        self.approved = True


@workflow.defn
class ShipsUnapproved(_Approved):
    """An approval that arrives while the order is being cancelled ships it anyway."""

    @workflow.run
    def run(self, order_id: str) -> str:
        try:
            workflow.wait_condition(lambda: self.approved, timeout=timedelta(days=3))
        except TimeoutError:
            cancel_order(order_id)
        if not self.approved:
            return "cancelled"
        ship(order_id)
        return "shipped"


@workflow.defn
class ShipsApproved(_Approved):
    """The deadline decides once."""

    @workflow.run
    def run(self, order_id: str) -> str:
        try:
            workflow.wait_condition(lambda: self.approved, timeout=timedelta(days=3))
        except TimeoutError:
            cancel_order(order_id)
            return "cancelled"
        ship(order_id)
        return "shipped"


# --- a signal that comes before anybody is ready for it ---------------------------------------------------


@activity.defn
def load(customer_id: str) -> list[str]:
    return [customer_id]


@workflow.defn
class UsesDataBeforeLoading:
    """The signal handler uses data that the body has not loaded yet."""

    names: list[str]

    @workflow.run
    def run(self, customer_id: str) -> list[str]:
        self.names = load(customer_id)
        workflow.wait_condition(lambda: len(self.names) > 1)
        return self.names

    @workflow.signal
    def add(self, name: str) -> None:
        self.names.append(name)


@workflow.defn
class WaitsForData:
    """The signal handler waits until the data is loaded."""

    def __init__(self) -> None:
        self.names: list[str] = []

    @workflow.run
    def run(self, customer_id: str) -> list[str]:
        self.names += load(customer_id)
        workflow.wait_condition(lambda: len(self.names) > 1)
        return self.names

    @workflow.signal
    def add(self, name: str) -> None:
        workflow.wait_condition(lambda: bool(self.names))
        self.names.append(name)


# --- two handlers that write the same thing ---------------------------------------------------------------


@activity.defn
def price(item: str) -> int:
    return len(item)


class _Cart:
    def __init__(self) -> None:
        self.total = 0
        self.items = 0

    def _add(self, item: str) -> None:
        before = self.total
        self.total = before + price(item)
        self.items += 1

    def _pay(self) -> int:
        workflow.wait_condition(lambda: self.items == 2)
        return self.total


@workflow.defn
class LosesUpdates(_Cart):
    """Handlers read the total, wait, and then write it."""

    @workflow.run
    def run(self) -> int:
        return self._pay()

    @workflow.signal
    def add(self, item: str) -> None:
        self._add(item)


@workflow.defn
class KeepsUpdates(_Cart):
    """The same under a lock."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = workflow.Lock()

    @workflow.run
    def run(self) -> int:
        return self._pay()

    @workflow.signal
    def add(self, item: str) -> None:
        with self.lock:
            self._add(item)


# --- state that a crash leaves behind ---------------------------------------------------------------------


@activity.defn
def step(number: int) -> None:
    return None


BUSY: set[str] = set()
UNLUCKY = 13


@workflow.defn
def depends_on_global_state(count: int) -> int:
    """At one step it depends on state outside the workflow, which only a crash at this step reveals."""
    for number in range(count):
        if number == UNLUCKY:
            again = "key" in BUSY
            BUSY.add("key")
            step(-number if again else number)
            BUSY.discard("key")
        else:
            step(number)
    return count


@workflow.defn
def without_global_state(count: int) -> int:
    for number in range(count):
        step(number)
    return count
