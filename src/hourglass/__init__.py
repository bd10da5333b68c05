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

    activity      @activity.defn, and what you call inside an activity
    workflow      @workflow.defn, and what you call inside a workflow
    client        Client, AsyncClient, handles, TLS
    envconfig     Temporal's configuration file and variables as objects
    worker        Worker and its options
    aio           the whole API for `async def` code, under temporalio's names
    limits        limits across workflows on concurrency, rates and repeated calls: slot, throttle, debounce, once
    progress      items that a run publishes while it works, and streams for clients that follow them
    interceptors  your own code around calls; headers
    nexus         operations that workflows of other namespaces call, served as plain functions
    plugins       one object that sets up clients, workers and replayers
    metrics       counters, gauges and histograms, as text for Prometheus
    contrib       bridges to other libraries: OpenTelemetry, SQLAlchemy, Pydantic AI, OpenAI's agents
    replay        History, Replayer
    testing       Environment: workflows on virtual time, activities faked; and a real Temporal dev server
    converter     conversion of values to payloads and back; the interface of codecs
    errors        every exception, grouped by who is at fault

and `hourglass.backup(file, dest)` copies an embedded engine's file while it is in use.

Six layers; imports only go down (a test in tests/architecture holds them):

    6  tools    _tools  aio  contrib  plugins  __main__
    5  public   client  worker  replay  testing  limits  progress  interceptors  envconfig  _built_in
    4  worker   _worker  _supervision
    3  engines  _embedded  _temporal
    2  model    _evaluator  _history  _contract  activity  workflow  nexus
    1  base     errors  converter  metrics  _forks  _logs  _loops  _http

The private packages:

    _tools        the command line, the web UI, timelines, diagnosis, the linter
    _built_in     the workflows that every worker serves
    _worker       everything that runs user code: supervision tree, handles, lanes, activities
    _supervision  processes, supervisors and restarts on asyncio, independent of workflows
    _embedded     the engine in this process: on one SQLite file, or in memory
    _temporal     Temporal as an engine: the only importer of temporalio; only its `core` imports Rust code
    _evaluator    the pure evaluator: events in, commands out; no clock, event loop, file or network
    _history      Temporal's history as typed data, its JSON and its stored bytes
    _contract     the interface of every engine as data: a handle, and a service for requests
    _forks        the actions at a fork, and their order
    _logs         loggers that name their source
    _loops        event loops in threads of their own, for coroutines of the author's
    _http         authentication and limits of all our HTTP servers

To understand the code in five minutes, read this page, then `_evaluator/evaluator.py` (how events become commands),
`_embedded/__init__.py` and `_embedded/engine.py` (the default engine), `_worker/tree/subsystem.py` (the supervision tree)
and `_temporal/core.py` (the connection to Temporal). After that `_evaluator/events.py`, `commands.py`, `state.py`,
`scheduler.py`, `fibers.py` and `context.py`, in this order; ARCHITECTURE.md has the glossary and the threads.

Importing this package loads almost nothing. Each name below loads its module on first use, and Temporal's libraries are
loaded only when a Temporal server is the target.
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
    """Load a public name when it is first used."""
    if name in _MODULES:
        return import_module(f"hourglass.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'hourglass' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
