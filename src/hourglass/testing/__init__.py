"""For tests: workflows on virtual time in this process, activities by themselves, and a real Temporal dev server.

with Environment() as env:
    env.fake(charge, returns="c-1")
    assert env.execute_workflow(checkout, order) == "c-1"

with dev_server() as server, Client.connect(server.target) as client:
    ...

_activity_environment  `ActivityEnvironment`
_activities            executes attempts: the worker's activity executor with a runner for tests
_calls                 the recorded calls of activities
_dev_server            a real Temporal dev server for tests and for trying things out
_driver                the driver: does one step after another, and lets virtual time pass; its task queues, and
                       the choice of what happens next
_environment           `Environment` and `AsyncEnvironment`
_fixture               what an environment is made of, put together, with the session of its client; what both environments
                       share; scheduled actions
_guard                 notices and interrupts workflow code that never comes back
_registry              workflows and activities by name, with the fakes and mishaps that a test has given them
_time_skipper          `TimeSkipper`
_threads               loops and threads that all environments of a process share
_virtual_time          dates and durations in nanoseconds, and timers on the virtual clock
_trouble               what a test must hear of: parked runs, and why nothing happens any more
plugin                 pytest fixtures, there wherever Hourglass and pytest are installed
_explore               `env.explore`
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hourglass.testing._dev_server import DevServer, dev_server

if TYPE_CHECKING:
    from hourglass.testing._activity_environment import ActivityEnvironment
    from hourglass.testing._calls import Call, call
    from hourglass.testing._driver import Chooser, Shuffled, Step
    from hourglass.testing._environment import AsyncEnvironment, Environment
    from hourglass.testing._explore.explorer import Exploration
    from hourglass.testing._explore.possible import Arrival, sometime
    from hourglass.testing._fixture import Later
    from hourglass.testing._time_skipper import TimeSkipper

__all__ = [
    "ActivityEnvironment",
    "Arrival",
    "AsyncEnvironment",
    "Call",
    "Chooser",
    "DevServer",
    "Environment",
    "Exploration",
    "Later",
    "Shuffled",
    "Step",
    "TimeSkipper",
    "call",
    "dev_server",
    "sometime",
]

# Where the names are that need an engine of ours: it is loaded when one of them is first used.
_MODULES = {
    "ActivityEnvironment": "_activity_environment",
    "Arrival": "_explore.possible",
    "AsyncEnvironment": "_environment",
    "Call": "_calls",
    "Chooser": "_driver",
    "Environment": "_environment",
    "Exploration": "_explore.explorer",
    "Later": "_fixture",
    "Shuffled": "_driver",
    "Step": "_driver",
    "TimeSkipper": "_time_skipper",
    "call": "_calls",
    "sometime": "_explore.possible",
}


def __getattr__(name: str) -> Any:
    """Load what needs an engine when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'hourglass.testing' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"hourglass.testing.{_MODULES[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
