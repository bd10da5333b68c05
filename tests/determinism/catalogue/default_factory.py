"""A dataclass that makes its own id: the call stands in no line of the workflow."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

from hourglass import workflow

from .acts import note


@dataclass
class Order:
    item: str
    id: uuid.UUID = field(default_factory=uuid.uuid4)  # caught: check HG102


@workflow.defn(name="default_factory")
def bug() -> str:
    order = Order("lamp")  # caught: watch
    return note(str(order.id))  # caught: verify, replay
