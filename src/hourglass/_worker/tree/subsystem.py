"""The supervision tree, as one expression.

    Application (one_for_one)
    ├── EvaluatorSupervisor    one temporary task per activation
    ├── ExecutorSupervisor     one temporary task per attempt of an activity
    ├── LaneSupervisor         a process for each lane: if it is killed, the lane's thread is replaced
    └── Subsystem (rest_for_one)
        ├── Runtime            the connections to the engine; if they cannot be trusted, everything below restarts
        ├── BridgeHolder       owns every handle; its tables outlive it
        ├── WorkerRegistry     task queue -> Worker
        ├── WorkerSupervisor   dynamic: one Worker per task queue
        │   └── Worker (one_for_one)  WorkflowPollLoop, ActivityPollLoop: transient, they end when the worker is unregistered
        ├── WorkerLauncher     starts the configured workers, and again after a cascade
        └── Watchdog           repairs states that no other part recovers from

The supervisors of tasks in progress are outside the Subsystem and start before it. A Worker or holder that dies does
not end the tasks, and the tasks are stopped last.
"""

from __future__ import annotations

from hourglass._supervision import ChildSpec, Supervisor
from hourglass._worker.tree.application import Application
from hourglass._worker.tree.processes import (
    bridge_holder,
    lane_supervisor,
    runtime,
    worker_launcher,
)
from hourglass._worker.tree.watchdog import watchdog

# Handles drain within their own limits; this limit covers everything else.
_DRAIN = 120.0


def subsystem(app: Application) -> Supervisor:
    """Return the part of the tree that depends on the handles: the failure of a child restarts all children below it."""
    return Supervisor(
        "rest_for_one",
        [
            ChildSpec("Runtime", runtime(app)),
            ChildSpec("BridgeHolder", bridge_holder(app), shutdown=_DRAIN),
            app.registry.as_child("WorkerRegistry"),
            app.workers.as_child("WorkerSupervisor"),
            ChildSpec("WorkerLauncher", worker_launcher(app)),
            ChildSpec("Watchdog", watchdog(app)),
        ],
        max_restarts=20,
        window=5.0,
    )


def application(app: Application) -> ChildSpec:
    """Return the child spec of the whole tree."""
    return Supervisor(
        "one_for_one",
        [
            app.evaluators.as_child("EvaluatorSupervisor"),
            app.executors.as_child("ExecutorSupervisor"),
            ChildSpec("LaneSupervisor", lane_supervisor(app), shutdown="infinity", type="supervisor"),
            subsystem(app).as_child("Subsystem", backoff=(0.1, 2.0)),
        ],
        max_restarts=50,
        window=5.0,
    ).as_child("Application")
