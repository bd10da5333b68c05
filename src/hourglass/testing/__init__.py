"""For tests: workflows on virtual time in this process, activities by themselves, and a real Temporal dev server.

    with Environment() as env:
        env.fake(charge, returns="c-1")
        assert env.execute_workflow(checkout, order) == "c-1"

    with dev_server() as server, Client.connect(server.target) as client:
        ...

Pytest fixtures around both are in `plugin`. What needs an engine of ours is loaded when it is first used: a dev server
does not.
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
