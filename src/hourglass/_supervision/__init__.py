"""Small OTP semantics on asyncio: processes, supervisors, restarts, and a tree that can be looked at and killed.

It knows nothing of workflows, engines or task queues. Everything runs on one event loop.

    exits        why a process ended, and what can go wrong, as data
    spec         what a child is, as data, checked with precise messages
    policy       PURE: which children are restarted when one has ended, and when a supervisor gives up
    reports      every start, exit, restart and escalation, as data; a bounded ring and a sink
    driver       a task that can be killed, not only cancelled
    node         what all processes of one tree share: clock, reports, the killed that have not unwound yet
    process      a task with an identity, a state, an exit, monitors and links; one without a body; what a body is given
    supervisor   fixed children, in order: one_for_one, one_for_all, rest_for_one
    dynamic      children that come and go; thousands of temporary tasks
    registry     names for processes
    tree         a running tree: start, stop, paths, drawing, find, kill

Two things are unlike Erlang's, because a coroutine is not a process of the BEAM: a body that never awaits cannot be killed
(nor can anything else run meanwhile), and `finally` blocks of a killed body run, though nothing they say is heard.
"""

from __future__ import annotations

from hourglass._supervision.dynamic import DynamicSupervisor, TaskSupervisor
from hourglass._supervision.exits import (
    KILLED,
    NORMAL,
    SHUTDOWN,
    DeadProcess,
    Exit,
    IntensityExceeded,
    NameTaken,
    NoSuchChild,
    NotRunning,
    SpecError,
    StartFailed,
    SupervisionError,
)
from hourglass._supervision.node import Cancellable, LoopClock, MonotonicClock
from hourglass._supervision.process import ChildView, Context, Down, Job, Monitor, Process, ProcessState
from hourglass._supervision.registry import ProcessRegistry
from hourglass._supervision.reports import Reports, SupervisionReport
from hourglass._supervision.spec import ChildSpec
from hourglass._supervision.supervisor import Supervisor
from hourglass._supervision.tree import Tree, start_tree

__all__ = [
    "KILLED",
    "NORMAL",
    "SHUTDOWN",
    "Cancellable",
    "ChildSpec",
    "ChildView",
    "Context",
    "DeadProcess",
    "Down",
    "DynamicSupervisor",
    "Exit",
    "IntensityExceeded",
    "Job",
    "LoopClock",
    "Monitor",
    "MonotonicClock",
    "NameTaken",
    "NoSuchChild",
    "NotRunning",
    "Process",
    "ProcessRegistry",
    "ProcessState",
    "Reports",
    "SpecError",
    "StartFailed",
    "SupervisionError",
    "SupervisionReport",
    "Supervisor",
    "TaskSupervisor",
    "Tree",
    "start_tree",
]
