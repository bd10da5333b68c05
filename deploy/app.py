"""Example application: an order that is charged once and waits to be packed."""

from hourglass import activity, workflow


@activity.defn(start_to_close_timeout=30)
def charge(order: str) -> str:
    """Charge an order. Pass its id to the bank as the idempotency key, because the activity may be retried."""
    return f"receipt of {order}"


@workflow.defn
class Order:
    """An order: charged, then packed within a day."""

    def __init__(self) -> None:
        self.packed = False

    @workflow.run
    def run(self, order: str) -> str:
        """Charge the order, wait until it is packed, and return the outcome."""
        receipt = charge(order)
        try:
            workflow.wait_condition(lambda: self.packed, timeout=86_400)
        except TimeoutError:
            return f"{receipt}, not packed in time"
        return f"{receipt}, packed"

    @workflow.signal
    def pack(self) -> None:
        """Mark the order as packed."""
        self.packed = True
