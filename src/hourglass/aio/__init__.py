"""`async def` code under temporalio's names: workflows, activities, clients and workers.

    from hourglass.aio import activity, workflow
    from hourglass.aio.client import Client
    from hourglass.aio.worker import Worker

A program for temporalio runs after its imports are changed, `temporalio` to `hourglass.aio`: `hourglass port FILE` shows the
difference. Importing a name that is not supported raises an error that names it. Each module is named like its counterpart:

activity     `@activity.defn`, and functions for activity code
client       `Client`, handles, schedules
common       retry policies, priorities, keys of search attributes, versions
envconfig    connection options from the environment
exceptions   failures
service      options of a connection to a server, and its errors
testing      a local engine as `async with`, and activities without a worker
worker       `Worker`, awaited
workflow     `@workflow.defn`, and functions for workflow code
_activities  the activities and steps of `workflow`
_children    the children and other workflows of `workflow`
_facts       functions of `hourglass.workflow` with temporalio's parameter names
_handles     the handles of `client`
_schedules   the schedules of `client`
_standalone  the standalone activities of `client`
_starts      options of starts, and starts with an update
_values      conversion of arguments and options
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hourglass.aio import (
        activity,
        client,
        common,
        envconfig,
        exceptions,
        service,
        testing,
        worker,
        workflow,
    )

__all__ = [
    "activity",
    "client",
    "common",
    "envconfig",
    "exceptions",
    "service",
    "testing",
    "worker",
    "workflow",
]


def __getattr__(name: str) -> Any:
    """Import a module on first use: workflows need no client."""
    if name not in __all__:
        raise AttributeError(f"module 'hourglass.aio' has no attribute {name!r}")
    return import_module(f"hourglass.aio.{name}")
