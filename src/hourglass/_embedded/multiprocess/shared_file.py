"""The role of this process for a file: client, owner, or worker for the owner. This module decides between the roles.

Must not know: how an engine works, the messages on the socket, how a request finds its engine (see `calls`). A process
tries to own a file only while it has a handle on it. Invariants: an engine is open here only while this process has the
lock (see `owning`); there is no thread: the end of the owner's connection is the signal to try to acquire the lock (see
`following`); a file that fails repeatedly is reopened at growing intervals, and waiting clients get an error if a
person must repair it; a file that was replaced or overwritten is never opened again.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

from hourglass._contract.engine_status import EngineStatus
from hourglass._contract.handle import HandleConfig
from hourglass._embedded.clock import Bell
from hourglass._embedded.multiprocess import wire
from hourglass._embedded.multiprocess.calls import BUSY, SHORTEST, CallRouter
from hourglass._embedded.multiprocess.file_context import FileContext, FileIdentity
from hourglass._embedded.multiprocess.file_handle import FileHandle
from hourglass._embedded.multiprocess.following import OwnerFollower, local_time
from hourglass._embedded.multiprocess.open_engine import OpenEngine
from hourglass._embedded.multiprocess.ownership import FileLock
from hourglass._embedded.multiprocess.owning import OwnerTerm
from hourglass._embedded.runs.upkeep import DEFAULT_RETENTION
from hourglass._embedded.store.store import FileLost, StoreOpener, is_permanent
from hourglass._embedded.transitions.size_limits import Limits
from hourglass.errors import HourglassError, InternalError, StorageError

_log = logging.getLogger("hourglass.embedded")

SETTLE = 5.0
"""Seconds for which opening a handle waits for the file. After that, the handle is returned before it works."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0
"""Seconds before a file that has failed is reopened: the first pause and the longest."""
TRIES = 3
"""The number of consecutive failures after which clients get the error, if the last failure is permanent."""
SOUND = 10.0
"""Seconds of operation after which earlier failures of the engine no longer count."""


class SharedFile:
    """The role of this process for a file (see the module). Belongs to one event loop."""

    def __init__(self, opener: StoreOpener, path: str, namespace: str) -> None:
        self.path = path
        self.namespace = namespace
        self._opener = opener
        self.retention = DEFAULT_RETENTION
        """Seconds for which closed runs are kept while this process owns the file."""
        self.limits: Limits | None = None
        """The size limits while this process owns the file; None for the defaults."""
        self.users = 0
        self._lock = FileLock(path)
        self._changed = Bell()
        self.calls = CallRouter(opener, path, namespace, self._changed)
        self._file = FileContext(path, namespace, self._lock, self._changed, self.calls, FileIdentity(path))
        self._handles = self._file.handles
        self._follower = OwnerFollower(self._file)
        self._task: asyncio.Task[None] | None = None
        self._failures = 0
        self._not_before = 0.0
        """The time before which the file is not opened again."""
        self._lost: FileLost | None = None
        """The error for which this process never opens the file again, because the file was replaced or overwritten;
        None if it was not.
        """
        self._ownerless_since = 0.0
        """The time from which neither the lock nor its holder has been available; 0 if either is."""
        self._warned = False

    def status(self) -> EngineStatus:
        """Return the state of the engine, as far as this process knows it."""
        if self.calls.engine is not None:
            return self.calls.engine.status()
        owner = self.calls.owner
        if owner is None or not owner.is_open:
            role = "waiting for the file" if self._handles else "client"
            return EngineStatus(role=role, trouble=self._absent_owner() if self._handles else "")
        if not self._handles:
            return EngineStatus(role="client", processes=owner.processes)
        role, trouble, pid = f"working for process {owner.welcome.pid}", "", owner.welcome.pid
        if not owner.responds:
            role = f"{role}, which does not respond"
            trouble = f"process {pid}, the owner of {self.path}, does not respond: it is stopped or hangs"
        return EngineStatus(role=role, trouble=trouble, processes=owner.processes)

    def _absent_owner(self) -> str:
        """Return the reason why no owner serves this process; "" within the time that a new owner may need."""
        waited = monotonic() - self._ownerless_since
        if not self._ownerless_since or waited < wire.SILENT_CHECKS:
            return ""
        return f"another process has held the lock of {self.path} for {waited:.0f} seconds without responding"

    async def open_handle(self, config: HandleConfig) -> FileHandle:
        """Open a handle that receives work as soon as an engine is available. Raises the error of the owner or of the
        file.
        """
        self._opener.check(self.path)
        self._check_file()
        handle = FileHandle(config, died=self._died, released=self._release)
        self._handles.add(handle)
        # The worker has opened a handle: from now on the handles determine whether the file is needed.
        self._file.wanted_until = 0.0
        try:
            if self.calls.engine is not None:
                handle.attach(self.calls.engine)
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._own_while_wanted())
            self._changed.ring()
            await asyncio.wait({handle.settled}, timeout=SETTLE)
            if handle.settled.done():
                handle.settled.result()
            elif self._lock.held:
                _log.warning("opening %s takes unusually long; this worker waits", self.path)
            else:
                _log.warning(
                    "the lock of %s is held by %s, which does not respond; this worker waits",
                    self.path,
                    self._holder(),
                )
        except BaseException:
            self._release(handle)
            raise
        return handle

    def _died(self, handle: FileHandle) -> None:
        self._file.kept_work.collect(handle)
        self._changed.ring()

    def _release(self, handle: FileHandle) -> None:
        self._file.kept_work.collect(handle)
        self._handles.discard(handle)
        self._changed.ring()

    async def _own_while_wanted(self) -> None:
        """Own the file if its lock is free, otherwise work for its owner, while this process needs the file."""
        pause = SHORTEST
        while self._file.is_wanted:
            try:
                remaining = self._not_before - monotonic()
                self._check_file()
                if remaining > 0:
                    await self._changed.wait(remaining)
                elif self._follower.owner_lives():
                    await self._follower.work()
                elif self._lock.try_take():
                    await self._own()
                    pause = SHORTEST
                elif await self._follower.work():
                    pause = SHORTEST
                else:
                    self._wait_ownerless()
                    await self._changed.wait(pause)
                    pause = min(2 * pause, BUSY)
                    continue
                self._ownerless_since, self._warned = 0.0, False
            except HourglassError as error:
                self._fail_all(error)
            except Exception as error:
                _log.exception("taking ownership of %s failed", self.path)
                self._fail_all(
                    InternalError(f"taking ownership of {self.path} failed: {type(error).__name__}")
                )
            finally:
                self._lock.drop()

    def _wait_ownerless(self) -> None:
        """Record that neither the lock nor its holder is available. Log this once after a while."""
        now = monotonic()
        self._ownerless_since = self._ownerless_since or now
        if now - self._ownerless_since > wire.SILENT_CHECKS and not self._warned:
            self._warned = True
            _log.warning(
                "the lock of %s is held by %s, which has not responded for %d seconds: the process is stopped or hangs. "
                "All work on the file waits until the process continues or ends",
                self.path,
                self._holder(),
                wire.SILENT_CHECKS,
            )

    async def _own(self) -> None:
        """Own the file until this process has no handles left, or the engine fails. The caller must have the lock."""
        self._check_file()
        self._follower.leave()
        term = OwnerTerm(self._file, took_over=self._follower.has_left_owner)
        try:
            await term.open(self._opener, self.retention, self.limits)
        except StorageError as error:
            self._failed(error)
            raise
        try:
            await term.begin()
            self._follower.has_left_owner = False
            await self._serve(term)
        finally:
            term.end()
        failure = term.engine.failed
        if failure is not None:
            if isinstance(failure, FileLost):
                self._abandon_file(failure)
            else:
                _log.error("the engine of %s failed and is restarted: %s", self.path, failure)
                self._failed(failure)
            self._fail_all(failure, of=term.engine)

    async def _serve(self, term: OwnerTerm) -> None:
        started_at = monotonic()
        while self._file.is_wanted and term.works:
            await term.turn()
            if self._failures and monotonic() > started_at + SOUND:
                self._failures, self.calls.broken = 0, None

    def _failed(self, error: StorageError) -> None:
        """Pause after a failure of the file. After several failures, if the last is permanent, make clients fail with
        the error.
        """
        self._failures += 1
        pause = min(FIRST_PAUSE * 2 ** min(self._failures - 1, 20), LONGEST_PAUSE)
        self._not_before = monotonic() + pause
        if self._failures >= TRIES and is_permanent(error):
            self.calls.broken = error

    def _check_file(self) -> None:
        """Raise `FileLost` if the file was replaced, or if its owner has reported the loss of the file."""
        if self._lost is None:
            self._detect_loss()
        if self._lost is not None:
            self._file.wanted_until = 0.0  # new handles would be rejected
            raise FileLost(str(self._lost), status=self._lost.status)

    def _detect_loss(self) -> None:
        if self._follower.reported_loss:
            message = f"the owner of {self.path} reported: {self._follower.reported_loss}"
        elif self._file.identity.is_replaced:
            message = (
                f"the file {self.path} was replaced or moved away while this process was using it. This process has "
                f"stopped using the file and does not reopen it. Put the correct file at {self.path}, and restart all "
                "workers"
            )
        else:
            return
        self._abandon_file(FileLost(message, status="DATA_LOSS"))

    def _abandon_file(self, error: FileLost) -> None:
        """Never open the file again, and make all workers and calls of this process fail with the error."""
        self._lost = self.calls.broken = error
        _log.error("%s", error)

    def _fail_all(self, error: HourglassError, of: OpenEngine | None = None) -> None:
        for handle in tuple(self._handles):
            if of is None or handle.engine is of:
                handle.fail(error)
                self._handles.discard(handle)

    def _holder(self) -> str:
        note = self._lock.note()
        return f"process {note.pid} since {local_time(note.since_ns)}" if note.pid else "another process"

    async def close(self) -> None:
        """Close the handles, the engine and the connections, in this order."""
        for handle in tuple(self._handles):
            await handle.finalize()
        if not self._file.kept_work.results and not self._follower.has_unconfirmed:
            self._file.wanted_until = (
                0.0  # otherwise the results are first sent to the next owner, if there is one soon
            )
        self._changed.ring()
        if self._task is not None:
            await asyncio.wait({self._task})
        await self.calls.close()
