"""For tests: workflows on virtual time in this process, activities by themselves, and a real Temporal dev server.

with Environment() as env:
    env.fake(charge, returns="c-1")
    assert env.execute_workflow(checkout, order) == "c-1"

with dev_server() as server, Client.connect(server.target) as client:
    ...

_activity_environment  `ActivityEnvironment`
_async_environment     the asynchronous face of an environment
_attempts              runs attempts of activities in an environment
_calls                 what was called; virtual times and durations
_registry              the registry of an environment: workflows, activities and fakes by name
_choosing              what happens next, where several things can
_dev_server            a real Temporal dev server for tests and for trying things out
_driver                the driver: does one step after another, and lets virtual time pass
_engine_bound          the public names of `hourglass.testing` that need an engine of ours, gathered to be
                       loaded together
_environment           `Environment`
_fakes                 what a test says about an activity that is not run
_threads               loops and threads that all environments of a process share
_faces                 what the blocking and the asynchronous environment share; scheduled actions
_guard                 notices and interrupts workflow code that never comes back
_queues                one task queue of an environment
_session               a client's session over an environment
_fixture               the fixture: what an environment is made of, put together
_trouble               what a test must hear of: parked runs, and why nothing happens any more
plugin                 pytest fixtures, there wherever Hourglass and pytest are installed
_explore               `env.explore`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hourglass.testing._dev_server import DevServer, dev_server

if TYPE_CHECKING:
    from hourglass.testing._engine_bound import (
        ActivityEnvironment,
        Arrival,
        AsyncEnvironment,
        Call,
        Chooser,
        Environment,
        Exploration,
        Later,
        Shuffled,
        Step,
        call,
        sometime,
    )

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
    "call",
    "dev_server",
    "sometime",
]

_LATER = frozenset(__all__) - {"DevServer", "dev_server"}


def __getattr__(name: str) -> Any:
    """Load what needs an engine when it is first used."""
    if name not in _LATER:
        raise AttributeError(f"module 'hourglass.testing' has no attribute {name!r}")
    from hourglass.testing import _engine_bound

    found = globals()[name] = getattr(_engine_bound, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
