"""Hourglass: durable workflows as plain synchronous Python functions, on Temporal or embedded.

    from hourglass import Client, Worker, activity, workflow

    @activity.defn
    def greet(name: str) -> str:
        return f"Hello, {name}!"

    @workflow.defn
    def hello(name: str) -> str:
        return greet(name)

    with Client.connect("local:") as client, Worker(client, workflows=[hello], activities=[greet]):
        print(client.execute_workflow(hello, "world"))

A path is public if and only if none of its segments begins with an underscore:

    activity      @activity.defn, and the functions to call inside an activity
    workflow      @workflow.defn, and the functions to call inside a workflow
    client        Client, AsyncClient, handles, TLS
    envconfig     Temporal's configuration file and variables as objects
    worker        Worker and its options
    aio           the API for `async def` code, under temporalio's names
    limits        limits across workflows: slot, throttle, debounce, once
    progress      items that a run publishes while it works, and clients that follow them
    interceptors  your own code between callers and the called; headers
    nexus         operations that workflows of other namespaces call, implemented as plain functions
    plugins       one object that configures clients, workers and replayers
    metrics       counters, gauges and histograms, as text for Prometheus
    contrib       bridges to other libraries: OpenTelemetry, SQLAlchemy, Pydantic AI, OpenAI's agents
    replay        History, Replayer
    testing       Environment: workflows on virtual time with faked activities; and a real Temporal dev server
    converter     conversion of values to payloads and back; the codec interface
    errors        every exception, grouped by who is at fault

and `hourglass.backup(file, dest)` copies an embedded engine's file while it is in use.

The private packages:

    _forks        reactions to a fork, and their order
    _logs         loggers that add the source of a message
    _loops        event loops in threads of their own, for coroutines of the author
    _http         authentication and limits of every HTTP server of ours
    _engine       pure: events in, commands out. No clock, loop, file or network
    _supervision  processes, supervisors and restarts on asyncio; knows nothing of workflows
    _check        a linter for determinism: reads syntax trees, imports nothing of the others
    _contract     the interface of every engine: a handle to poll and complete, a service to call; data only
    _history      Temporal's history as typed data, its JSON and its stored bytes
    _bridge       the BridgeHolder, owner of every handle
    _temporal     Temporal as an engine: only it imports temporalio, only its `core` uses the Rust module
    _embedded     the engine in this process: over SQLite in one file, or in memory
    _runtime      the parts that run user code: the control loop's thread, the supervision tree, lanes, state cache,
                  activity executors, targets
    _built_in     the workflows that every worker serves without registration
    _story        the story of a run, from its history, and the reasons for its current state; drawn for the terminal,
                  the browser and paper; pure, except for the modules that query a client
    _ui           the web UI: every workflow in a browser
    _cli          the `hourglass` command

Imports only go down these ranks (tests/architecture checks it):

    {errors, _forks, _logs, _loops} < {converter, metrics, _http} < {_engine, _supervision, _check} < {activity, nexus}
    < {workflow, _contract, _history} < _bridge < {_temporal, _embedded} < envconfig < _runtime < client
    < {interceptors, progress} < limits < _built_in < {worker, replay} < {testing, contrib, plugins} < aio < _story < _ui < _cli

To get an overview in five minutes, read this page, then `_evaluator/evaluator.py` (from events to commands),
`_embedded/__init__.py` and its `engine/engine.py` (the default engine), `_worker/tree/subsystem.py` (the
supervision tree) and `_temporal/core.py` (the access to Temporal). After that read `_evaluator/events.py`,
`commands.py`, `state.py`, `scheduler.py`, `fibers.py` and `context.py`, in this order; ARCHITECTURE.md has
the glossary and the threads.

Importing this package loads very little: each name below is imported on first use, and Temporal's libraries
only when a Temporal server is the target.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hourglass import activity, errors, workflow
    from hourglass._embedded.store.sqlite.database import backup
    from hourglass._evaluator.options import RetryPolicy
    from hourglass.client import AsyncClient, Client, WorkflowHandle
    from hourglass.errors import ApplicationError
    from hourglass.replay import History, Replayer
    from hourglass.worker import Worker

__all__ = [
    "ApplicationError",
    "AsyncClient",
    "Client",
    "History",
    "Replayer",
    "RetryPolicy",
    "Worker",
    "WorkflowHandle",
    "__version__",
    "activity",
    "backup",
    "errors",
    "workflow",
]

__version__ = "0.2.0.dev0"

_HOMES = {
    "ApplicationError": "hourglass.errors",
    "AsyncClient": "hourglass.client",
    "Client": "hourglass.client",
    "History": "hourglass.replay",
    "Replayer": "hourglass.replay",
    "RetryPolicy": "hourglass._evaluator.options",
    "Worker": "hourglass.worker",
    "WorkflowHandle": "hourglass.client",
    "backup": "hourglass._embedded.store.sqlite.database",
}
_MAIN = frozenset(("activity", "client", "converter", "errors", "replay", "testing", "worker", "workflow"))
_MODULES = _MAIN | {
    "aio",
    "contrib",
    "envconfig",
    "interceptors",
    "limits",
    "metrics",
    "nexus",
    "plugins",
    "progress",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _MODULES:
        return import_module(f"hourglass.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'hourglass' has no attribute {name!r}")
    attribute = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return attribute


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
