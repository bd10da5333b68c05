"""`async def` code under temporalio's names: workflows, activities, clients and workers.

    from hourglass.aio import activity, workflow
    from hourglass.aio.client import Client
    from hourglass.aio.worker import Worker

To run a program written for temporalio, change its imports from `temporalio` to `hourglass.aio`; `hourglass port FILE` shows the
differences. Importing an unsupported name raises an error that names it. Each module is named like its counterpart:

activity     `@activity.defn`, and functions for activity code
client       `Client`, handles, schedules
common       retry policies, priorities, search attribute keys, versions
envconfig    connection options from the environment
exceptions   failures
service      options for a connection to a server, and its errors
testing      a local engine as `async with`, and activities without a worker
worker       `Worker`, awaited
workflow     `@workflow.defn`, and functions for workflow code
_activities  the activities and steps of `workflow`
_children    child workflows and other workflows for `workflow`
_facts       functions of `hourglass.workflow` with temporalio's parameter names
_handles     the handles of `client`
_schedules   the schedules of `client`
_standalone  the standalone activities of `client`
_starts      options for workflow starts, and starts with an update
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
    """Import a module on first use, because workflows need no client."""
    if name not in __all__:
        raise AttributeError(f"module 'hourglass.aio' has no attribute {name!r}")
    return import_module(f"hourglass.aio.{name}")
