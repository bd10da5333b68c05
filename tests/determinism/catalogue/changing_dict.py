"""A loop that waits, over a dict that a signal changes meanwhile."""

from __future__ import annotations

from typing import Any

from hourglass import workflow

from .acts import note


@workflow.defn(name="changing_dict")
class bug:
    def __init__(self) -> None:
        self.items: dict[str, int] = {"a": 1, "b": 2}

    @workflow.run
    def run(self) -> int:
        workflow.sleep(10)
        for name in self.items:  # caught: check HG115, parked
            workflow.sleep(10)
            note(name)
        return len(self.items)

    @workflow.signal
    def add(self, name: str) -> None:
        self.items[name] = 0


def drive(environment: Any, handle: Any) -> None:
    environment.after(seconds=15).signal(handle, "add", "c")
