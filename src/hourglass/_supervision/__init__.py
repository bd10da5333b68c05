"""A subset of OTP's semantics on asyncio: processes, supervisors, restarts, and a tree that can be inspected
and killed.

Must not know: workflows, engines, task queues. All processes of a tree run on one event loop.

    exits        reasons why a process ended, and errors, as data
    spec         child specs as data, with precise validation messages
    policy       PURE: the children to restart when one has ended, and the end of a supervisor after too many restarts
    reports      every start, exit, restart and escalation as data; a bounded ring and a sink
    driver       a task that can be killed, not only cancelled
    node         the state shared by all processes of a tree: clock, reports, killed coroutines that still unwind
    process      a task with an identity, a state, an exit, monitors and links; jobs without a body; the context of a body
    supervisor   fixed children, in order: one_for_one, one_for_all, rest_for_one
    dynamic      children that come and go; thousands of temporary tasks
    registry     names for processes
    tree         a running tree: start, stop, paths, drawing, find, kill

Two properties differ from Erlang's, because a coroutine is not a process of the BEAM. A body that never awaits
cannot be killed, and no other code can run in the meantime. The `finally` blocks of a killed body do run, but
their calls to this package have no effect.
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
