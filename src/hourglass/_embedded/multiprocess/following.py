"""The work of this process for another process that owns the file.

Must not know: the lock's acquisition, engines (see `owning`). Invariants: the first message to a new owner claims the
attempts from earlier owners, and unconfirmed results follow directly after the claim; the end of the owner's connection
ends the work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from time import localtime, monotonic, strftime

from hourglass._embedded.multiprocess import wire
from hourglass._embedded.multiprocess.calls import CHECK_INTERVAL
from hourglass._embedded.multiprocess.file_context import FileContext
from hourglass._embedded.multiprocess.file_handle import FileHandle
from hourglass._embedded.multiprocess.remote import ConnectionLost, ForeignProtocol, OwnerConnection
from hourglass.errors import HourglassError

_log = logging.getLogger("hourglass.embedded")

FOREIGN = 0.2
"""Seconds between two attempts to connect to an owner with another protocol version."""


class OwnerFollower:
    """Lets the handles of this process receive work from the file's owner."""

    def __init__(self, file: FileContext) -> None:
        self._file = file
        self._owner: OwnerConnection | None = None
        """The connection over which this process works or has worked; None after `leave`."""
        self.has_left_owner = False
        """Whether this process worked for an owner that has ended, and has not owned the file since."""

    @property
    def has_unconfirmed(self) -> bool:
        """Whether results were sent that the owner has not confirmed as durable."""
        return self._owner is not None and bool(self._owner.unconfirmed)

    @property
    def reported_loss(self) -> str:
        """The message of an owner that stopped because the file was lost; empty if there is none."""
        return "" if self._owner is None else self._owner.file_lost

    def owner_lives(self) -> bool:
        """Whether another process owns the file, according to the connection to it and the lock."""
        owner = self._file.calls.owner
        return owner is not None and owner.is_open and not self._is_abandoned(owner)

    async def work(self) -> bool:
        """Let this process's handles receive work from the owner, until the owner ends or the state of this process
        changes.

        Return False if no owner can be reached.
        """
        file = self._file
        try:
            owner = await file.calls.reach()
        except ForeignProtocol as error:
            for handle in file.handles:
                if handle.owner is None:
                    _log.warning("this worker waits until it can use %s: %s", file.path, error)
                    handle.wait_for(error)
            await file.changed.wait(FOREIGN)  # there is no notification when this owner ends
            return False
        if owner is None:
            return False
        if owner is not self._owner:
            self._join(owner)
        try:
            for handle in tuple(file.handles):
                await self._open_at(owner, handle)
        except ConnectionLost:
            return True
        await _first(owner.lost.wait(), file.changed.wait(CHECK_INTERVAL))
        if owner.is_open and self._is_abandoned(owner):
            owner.close()
        return True

    def _join(self, owner: OwnerConnection) -> None:
        self.leave()
        self._owner = owner
        self._file.identity.note()
        # The claim comes first, because attempts that no process has claimed count as lost.
        owner.send(wire.Holding(tuple(self._file.kept_work.unsettled)))
        owner.resend(self._file.kept_work.take_results())

    def leave(self) -> None:
        """Keep the attempts and results of a connection to an owner that has ended, for the next owner."""
        owner, self._owner = self._owner, None
        if owner is not None:
            self.has_left_owner = True
            self._file.wanted_until = monotonic() + CHECK_INTERVAL
            self._file.kept_work.collect_from(owner)

    async def _open_at(self, owner: OwnerConnection, handle: FileHandle) -> None:
        if not handle.is_new:
            return
        try:
            handle.attach_remote(owner, await owner.open_handle(handle.config))
        except ConnectionLost:
            raise
        except HourglassError as rejection:
            handle.fail(rejection)
            self._file.handles.discard(handle)
            return
        _log.info(
            "the worker of task queue %r receives its tasks from process %d, the owner of %s since %s",
            handle.queue,
            owner.welcome.pid,
            self._file.path,
            local_time(owner.welcome.since_ns),
        )

    def _is_abandoned(self, owner: OwnerConnection) -> bool:
        return self._file.lock.is_abandoned(owner.welcome.since_ns)


def local_time(since_ns: int) -> str:
    """Return a timestamp as text, in the local time zone."""
    return strftime("%Y-%m-%d %H:%M:%S", localtime(since_ns / 1e9))


async def _first(*waits: Awaitable[object]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
