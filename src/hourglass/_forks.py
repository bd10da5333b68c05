"""Reactions to a fork and their order: the only module that registers with Python for forks.

A forked child has a copy of the memory, and only the thread that forked. The other threads are gone, the
locks that they held stay locked, descriptors are shared with the parent, and libraries with threads or locks
of their own (Core, SQLite) can neither be used nor freed. So each part that owns such objects registers its
reaction when it is imported, for one of the stages below. A child starts again where possible, and raises an
error otherwise; the parent continues unaffected.

Invariants: code that runs in a child acquires no lock that another thread may have held, and never waits; an
exception in one part does not prevent the others; objects that a child must not free are passed to `leak`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple


class ForkStage(Enum):
    """The stages of a fork in the order in which they act afterwards (in reverse before it), each with the
    reason for its position.
    """

    STORE_MUTEXES = "before the fork: waits until no thread is inside a store's library. After it first: others may open files"
    STORE_CONNECTIONS = (
        "leaks every inherited connection, before anything below lets go of its owner, which would close it"
    )
    STORES = (
        "their threads are gone: those who wait for a commit are refused, before anything can ask for another"
    )
    OWNERSHIP = (
        "drops the locks and sockets of shared files: until then the parent's death would go unnoticed"
    )
    LANE_NOTES = "unmaps the memory in which lanes note their runs, before a lane of the child could write in the parent's"
    DEATHS = "closes the files that tell of this process's death, whose locks would hide the parent's"
    GUARDIAN = "the guardian guards the parent: the child never speaks to it"
    CORE = "leaks what belongs to Rust, before the portal below lets go of what refers to it"
    PORTAL = "the control loop's thread is gone: the next call makes a new one"
    HOSTS = "the engines of the parent, which lived on that loop"
    CLIENTS = "their connections, to those engines: the next call connects anew"
    WORKERS = "what served the parent's connections; a Worker of the child makes its own"
    TESTING = "loops and threads that environments share; they use all of the above"
    IDS = "drawn in advance, so the parent gives out the same: draws anew. Depends on nothing"
    ACTIVITY_LOOPS = (
        "last: if a coroutine forked, its loop is told to stop, and the child leaves it when the fork returns"
    )


class _Acts(NamedTuple):
    in_child: Callable[[], object]
    before: Callable[[], object] | None
    in_parent: Callable[[], object] | None


here = os.getpid()
"""This process's id. `os.getpid()` would call the system each time. Read it as `_forks.here`, because it
changes in a child.
"""
_registered: dict[ForkStage, list[_Acts]] = {stage: [] for stage in ForkStage}
_leaked: list[object] = []


def at_fork(
    stage: ForkStage,
    *,
    in_child: Callable[[], object],
    before: Callable[[], object] | None = None,
    in_parent: Callable[[], object] | None = None,
) -> None:
    """Register what a part does at each later fork. `before` and `in_parent` come in pairs, like acquiring
    and releasing a lock.
    """
    _registered[stage].append(_Acts(in_child, before, in_parent))


def leak(*inherited: object) -> None:
    """Keep inherited objects alive that a child must not free, because that would close or destroy resources
    of the parent.
    """
    _leaked.extend(inherited)


def _in_order() -> Iterator[_Acts]:
    for stage in ForkStage:
        yield from _registered[stage]


def _before() -> None:
    _run([acts.before for acts in reversed(list(_in_order()))])


def _in_parent() -> None:
    _run([acts.in_parent for acts in _in_order()])


def _in_child() -> None:
    global here
    here = os.getpid()
    _run([acts.in_child for acts in _in_order()])


def _run(calls: list[Callable[[], object] | None]) -> None:
    for call in calls:
        try:
            if call is not None:
                call()
        except BaseException as error:
            # Report the error and let the fork continue, as Python does for an exception in a handler.
            sys.excepthook(type(error), error, error.__traceback__)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
