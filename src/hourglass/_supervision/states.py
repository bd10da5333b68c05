"""Where a process is in its life, and how a drawing or a status page of the tree shows it. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, TypeAlias

from hourglass._supervision.spec import ChildType

if TYPE_CHECKING:
    from hourglass._supervision.process import Process


class State(Enum):
    """Where a process is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DEAD = "dead"


ChildState: TypeAlias = Literal["starting", "running", "stopping", "waiting", "ended"]


@dataclass(frozen=True, slots=True)
class ChildView:
    """A child as its supervisor sees it; without a process it has ended, or waits to be started again."""

    id: str
    type: ChildType
    state: ChildState
    restarts: int
    process: Process | None


SEEN: dict[State, ChildState] = {
    State.STARTING: "starting",
    State.RUNNING: "running",
    State.STOPPING: "stopping",
    State.DEAD: "ended",
}
