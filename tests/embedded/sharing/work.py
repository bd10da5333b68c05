"""Workflows and activities for several processes."""

from __future__ import annotations

from hourglass import activity, workflow


@activity.defn
def increment(number: int) -> int:
    return number + 1


@workflow.defn
def twice(number: int) -> int:
    return increment(increment(number))


@workflow.defn
class Tally:
    """Counts its signals until it is told to stop."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.over = False

    @workflow.run
    def run(self) -> list[str]:
        workflow.wait_condition(lambda: self.over)
        return self.seen

    @workflow.signal
    def note(self, text: str) -> None:
        self.seen.append(text)

    @workflow.signal
    def stop(self) -> None:
        self.over = True

    @workflow.query
    def count(self) -> int:
        return len(self.seen)


WORKFLOWS = [twice, Tally]
ACTIVITIES = [increment]
