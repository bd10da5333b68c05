"""What happens at a fork, and in which order: the one place that asks Python to be told of forks.

A forked child gets a copy of the memory and of one thread, the one that forked. The other threads are gone, the locks that
they held stay held, descriptors are shared with the parent, and libraries that keep threads or locks of their own (Core,
SQLite) can be neither used nor freed. So each part that owns such a thing registers, when it is loaded, what it does at a
fork, under one of the stages below. A child begins anew where it can and refuses where it cannot; the parent goes on as if
nothing had been.

Invariants: what runs in a child takes no lock that another thread may have held, and waits for nothing; one part that fails
does not keep the others from their turn; an object that a child must not free is handed to `leak`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple


class ForkStage(Enum):
    """Who acts at a fork, in the order in which they act afterwards (before it: the other way round), and why there."""

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
"""This process's id, as `os.getpid()` has it, which asks the system each time. Read it as `_forks.here`: a child's is another."""
_registered: dict[ForkStage, list[_Acts]] = {stage: [] for stage in ForkStage}
_leaked: list[object] = []


def at_fork(
    stage: ForkStage,
    *,
    in_child: Callable[[], object],
    before: Callable[[], object] | None = None,
    in_parent: Callable[[], object] | None = None,
) -> None:
    """Register what a part does at each fork from now on. `before` and `in_parent` come in pairs, as taking and releasing do."""
    _registered[stage].append(_Acts(in_child, before, in_parent))


def leak(*inherited: object) -> None:
    """Keep what a child has inherited and must not free: to free it would close or destroy what the parent goes on using."""
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
            # To be seen; the fork goes on, as with an exception in a handler of Python's.
            sys.excepthook(type(error), error, error.__traceback__)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
