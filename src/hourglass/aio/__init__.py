"""For `async def` code: workflows, activities, clients and workers under the names that they have in temporalio.

    from hourglass.aio import activity, workflow
    from hourglass.aio.client import Client
    from hourglass.aio.worker import Worker

A program that was written for temporalio runs here with its imports changed, `temporalio` to `hourglass.aio`: `hourglass port
FILE` shows the difference. What is not here is refused by name where it is imported. Each module has the name of its counterpart:

    activity     `@activity.defn`, and what is called inside an activity
    client       `Client`, handles, schedules
    common       retry policies, priorities, keys of search attributes, versions
    envconfig    where to connect to, from the environment
    exceptions   failures
    service      how a connection to a server is made, and what it refuses
    testing      a local engine as `async with`, and activities on their own
    worker       `Worker`, awaited
    workflow     `@workflow.defn`, and what is awaited inside a workflow
    _activities  what `workflow` has for activities and steps
    _children    the same for children and other workflows
    _facts       functions of `hourglass.workflow` under temporalio's parameter names
    _handles     what `client` has of handles
    _standalone  what it has for activities that belong to no workflow
    _values      how arguments and options are given there
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
    """Load a module when it is first used: workflows need no client."""
    if name not in __all__:
        raise AttributeError(f"module 'hourglass.aio' has no attribute {name!r}")
    return import_module(f"hourglass.aio.{name}")
