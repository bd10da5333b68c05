"""The state that the parts of a `SharedFile` have in common.

Must not know: how an engine works, the messages on the socket. Invariant: the attempts of this process's workers, and
the results that are not confirmed as durable, are kept until the next owner has taken them over, even if engines or
connections end.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from time import monotonic

from hourglass._contract.handle import ActivityResult
from hourglass._embedded.clock import Bell
from hourglass._embedded.multiprocess.calls import CallRouter
from hourglass._embedded.multiprocess.file_handle import FileHandle
from hourglass._embedded.multiprocess.open_engine import OpenEngine
from hourglass._embedded.multiprocess.ownership import FileLock
from hourglass._embedded.multiprocess.remote import OwnerConnection


class KeptWork:
    """Attempts and results of this process's workers that outlive the engine from which the attempts came."""

    def __init__(self) -> None:
        self._attempts: set[bytes] = set()
        self._results: dict[bytes, ActivityResult] = {}
        """Results that are not confirmed as durable, by token."""

    @property
    def unsettled(self) -> set[bytes]:
        """The attempts to claim from the next owner: attempts that may still run here, and attempts with results that
        are not confirmed as durable. An attempt that is not claimed is dispatched to another worker.
        """
        return self._attempts | self._results.keys()

    @property
    def results(self) -> tuple[ActivityResult, ...]:
        """The results that are not confirmed as durable."""
        return tuple(self._results.values())

    def collect(self, handle: FileHandle, *, with_attempts: bool = True) -> None:
        """Keep the unconfirmed results, and the attempts, of a handle on this process's engine."""
        results, attempts = handle.take_unfinished()
        self._results.update((result.token, result) for result in results)
        if with_attempts:
            self._attempts |= attempts | {result.token for result in results}

    def collect_from(self, connection: OwnerConnection) -> None:
        """Keep the attempts and unconfirmed results of a connection to an owner that has ended."""
        self._attempts |= connection.held
        self._results.update(connection.unconfirmed)

    def take_results(self) -> dict[bytes, ActivityResult]:
        """Return the results and forget them. The caller must keep them from now on."""
        results, self._results = self._results, {}
        return results

    def forget_when_stored(self, engine: OpenEngine) -> None:
        """Forget the current results once they are durable in this engine."""
        tokens = tuple(self._results)

        def forget() -> None:
            for token in tokens:
                self._results.pop(token, None)

        if tokens:
            engine.when_stored(forget)


class FileIdentity:
    """The file on which this process has worked, by device and inode."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None

    def note(self) -> None:
        """Record the identity of the file at the path, unless it is recorded already."""
        self._identity = self._identity or self._current()

    @property
    def is_replaced(self) -> bool:
        """Whether the path leads to another file, or to none."""
        return self._identity is not None and self._current() != self._identity

    def _current(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino


@dataclass(eq=False)
class FileContext:
    """The state of a file that all parts of a `SharedFile` share."""

    path: str
    namespace: str
    lock: FileLock
    changed: Bell
    """A bell that rings when the handles, the engine or the owner have changed."""
    calls: CallRouter
    identity: FileIdentity
    handles: set[FileHandle] = field(default_factory=set)
    kept_work: KeptWork = field(default_factory=KeptWork)
    wanted_until: float = 0.0
    """The time until which this process needs the file even without handles, because its workers are opening new
    handles.
    """

    @property
    def is_wanted(self) -> bool:
        """Whether this process has workers on the file, or will soon have them again.

        The latter is the case while the workers replace handles that broke when the owner ended.
        """
        return bool(self.handles) or monotonic() < self.wanted_until
