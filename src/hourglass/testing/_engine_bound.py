"""The public names of `hourglass.testing` that need an engine of ours, gathered to be loaded together."""

from __future__ import annotations

from hourglass.testing._activity_environment import ActivityEnvironment
from hourglass.testing._async_environment import AsyncEnvironment
from hourglass.testing._calls import Call, call
from hourglass.testing._choosing import Chooser, Shuffled, Step
from hourglass.testing._environment import Environment
from hourglass.testing._explore.explorer import Exploration
from hourglass.testing._explore.possible import Arrival, sometime
from hourglass.testing._faces import Later

__all__ = [
    "ActivityEnvironment",
    "Arrival",
    "AsyncEnvironment",
    "Call",
    "Chooser",
    "Environment",
    "Exploration",
    "Later",
    "Shuffled",
    "Step",
    "call",
    "sometime",
]
