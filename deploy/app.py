"""The application of the example: an order that is charged once, and waits to be packed."""

from hourglass import activity, workflow


@activity.defn(start_to_close_timeout=30)
def charge(order: str) -> str:
    """Charge an order, by a key that the bank knows it by: it may be asked twice."""
    return f"receipt of {order}"


@workflow.defn
class Order:
    """Charges, and waits until it is packed, for a day at most."""

    def __init__(self) -> None:
        self.packed = False

    @workflow.run
    def run(self, order: str) -> str:
        """Say how it went."""
        receipt = charge(order)
        try:
            workflow.wait_condition(lambda: self.packed, timeout=86_400)
        except TimeoutError:
            return f"{receipt}, not packed in time"
        return f"{receipt}, packed"

    @workflow.signal
    def pack(self) -> None:
        """It is packed."""
        self.packed = True
