"""Reactions to a fork and their order: the only module that registers with Python for forks.

A forked child has a copy of the memory, and only the thread that forked. The other threads are gone, the locks that they
held stay locked, descriptors are shared with the parent, and libraries with threads or locks of their own (Core, SQLite) can
neither be used nor freed. So each module that owns objects of these kinds registers its reaction for one of the stages below
when it is imported. In the child, a module starts afresh if possible and raises an error otherwise. The parent is not
affected.

Invariants: code that runs in a child acquires no lock that another thread may have held, and never waits; an exception in
one reaction does not prevent the others; objects that a child must not free are passed to `leak`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from typing import NamedTuple


class ForkStage(Enum):
    """The stages of a fork, each with the reason for its position. After a fork they act in this order, and before it in
    reverse.
    """

    STORE_MUTEXES = (
        "before the fork, waits until no thread is inside a store's library; after the fork, runs first, because later "
        "stages may open files"
    )
    STORE_CONNECTIONS = (
        "leaks every inherited connection, before a later stage frees its owner, which would close it"
    )
    STORES = "its threads have ended: waits for a commit fail before a later stage can request another commit"
    OWNERSHIP = "closes the locks and sockets of shared files, which would hide the parent's death"
    LANE_NOTES = "unmaps the memory in which lanes note their runs, before a lane of the child can write to the parent's"
    INCIDENTS = "closes the files that report the death of a process: the child's locks on them would hide the parent's death"
    GUARDIAN = "the guardian guards the parent, so the child never uses it"
    CORE = "leaks the objects of Rust, before the portal frees their owners"
    PORTAL = "the control loop's thread has ended: the next call creates a new thread"
    HOSTS = "drops the engines of the parent, which ran on that loop"
    CLIENTS = "drops the connections to those engines: the next call connects again"
    WORKERS = "drops the parts that served the parent's connections; a Worker of the child creates its own"
    TESTING = "drops the loops and threads shared by environments, which use all of the above"
    IDS = "discards ids generated in advance, because the parent has the same ids. Depends on no other stage"
    ACTIVITY_LOOPS = (
        "last: if a coroutine forked, its loop is stopped, and the child leaves it when the fork returns"
    )


class _Acts(NamedTuple):
    in_child: Callable[[], object]
    before: Callable[[], object] | None
    in_parent: Callable[[], object] | None


pid = os.getpid()
"""The id of this process, stored because `os.getpid()` makes a system call each time. Read it as `_forks.pid`, because the
value changes in a forked child.
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
    """Register functions to call at each later fork. `before` and `in_parent` come in pairs, such as acquiring and releasing
    a lock.
    """
    _registered[stage].append(_Acts(in_child, before, in_parent))


def leak(*inherited: object) -> None:
    """Keep inherited objects alive in a forked child. Freeing them would close or destroy resources of the parent."""
    _leaked.extend(inherited)


def _in_order() -> Iterator[_Acts]:
    for stage in ForkStage:
        yield from _registered[stage]


def _before() -> None:
    _run([acts.before for acts in reversed(list(_in_order()))])


def _in_parent() -> None:
    _run([acts.in_parent for acts in _in_order()])


def _in_child() -> None:
    global pid
    pid = os.getpid()
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
