"""Testing: workflows on virtual time in this process, single activities, and a real Temporal dev server.

with Environment() as env:
    env.fake(charge, returns="c-1")
    assert env.execute_workflow(checkout, order) == "c-1"

with dev_server() as server, Client.connect(server.target) as client:
    ...

_activities            executes attempts: the worker's activity executor, with a runner for tests
_activity_environment  `ActivityEnvironment`
_calls                 the recorded calls of activities
_dev_server            a real Temporal dev server, for tests and experiments
_driver                the driver: does one step after another, and advances virtual time
_environment           `Environment` and `AsyncEnvironment`
_environment_base      the base class of both: options, fakes, recorded calls, scheduled actions, virtual time
_fakes                 fakes of activities, checked when a test defines them; the errors that `explore` may let activities raise
_fixture               the parts of an environment, assembled
_guard                 detects and interrupts workflow code that does not return
_quiet_loop            the event loop of an environment
_registry              workflows and activities by name, with their fakes and faults
_served_queue          one task queue: its handle, its evaluations, its activity executor
_session               the client of an environment; its blocking calls drive the environment
_shared_threads        the loops and threads that the environments of a process share
_steps                 the steps of an environment, and choosers of the next one
_time_skipper          `TimeSkipper`
_errors                parked runs, errors in the test itself, and the explanation of a wait that will never end
_virtual_time          dates and durations in nanoseconds, and timers on the virtual clock
plugin                 pytest fixtures, available wherever Hourglass and pytest are installed
_explore               `env.explore`
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hourglass.testing._dev_server import DevServer, dev_server

if TYPE_CHECKING:
    from hourglass.testing._activity_environment import ActivityEnvironment
    from hourglass.testing._calls import Call, call
    from hourglass.testing._environment import AsyncEnvironment, Environment
    from hourglass.testing._environment_base import Later
    from hourglass.testing._explore.arrivals import Arrival, sometime
    from hourglass.testing._explore.explorer import Exploration
    from hourglass.testing._steps import Chooser, Shuffled, Step
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

# The modules that define the names that need the embedded engine. They are loaded on first use of a name.
_MODULES = {
    "ActivityEnvironment": "_activity_environment",
    "Arrival": "_explore.arrivals",
    "AsyncEnvironment": "_environment",
    "Call": "_calls",
    "Chooser": "_steps",
    "Environment": "_environment",
    "Exploration": "_explore.explorer",
    "Later": "_environment_base",
    "Shuffled": "_steps",
    "Step": "_steps",
    "TimeSkipper": "_time_skipper",
    "call": "_calls",
    "sometime": "_explore.arrivals",
}


def __getattr__(name: str) -> Any:
    """Load a name that needs the embedded engine on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module 'hourglass.testing' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"hourglass.testing.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
