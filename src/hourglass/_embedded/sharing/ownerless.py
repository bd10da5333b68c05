"""What a client does by itself while no process owns the file: it takes the lock for one short transaction.

Must not know: sockets, workers. So a workflow can be started, signalled or looked at during a deploy. All that
is asked in the meantime shares one opening of the file. Only the runs that are asked for are loaded; nothing in
flight is recovered, no timer is served. What needs a worker must wait for an owner.
"""

from __future__ import annotations

import asyncio
import os
import time
from enum import Enum
from typing import Any

import msgspec

from hourglass._contract import schedules as schedules
from hourglass._contract import service as s
from hourglass._embedded.sharing.open_engine import EngineClosed, OpenEngine
from hourglass._embedded.sharing.ownership import FileLock
from hourglass._embedded.store import fork_safety
from hourglass._embedded.store.disk_faults import is_permanent
from hourglass.errors import StorageError

_ROUNDS = 20  # so often in a row what has come meanwhile is done too; then others have a chance at the lock
_TURN = 0.004
"""How long this process leaves the lock to others, in seconds: they look for it every few milliseconds."""


def _form(request: s.Request[Any]) -> s.Request[Any] | None:
    """What is asked of the file for a request while no process owns it; None if it must wait for an owner.

    What needs a worker waits for one, if its workflow exists: else no worker would ever answer. A long poll asks how it is
    now.
    """
    if request.needs_worker:
        workflow_id, run_id = getattr(request, "workflow_id", ""), getattr(request, "run_id", "")
        return s.DescribeWorkflow(workflow_id=workflow_id, run_id=run_id) if workflow_id else None
    return msgspec.structs.replace(request, rpc_timeout=0.0) if request.waits else request


class NoAnswer(Enum):
    """Why there is no answer."""

    BUSY = "somebody has the lock just now"
    WAIT = "only an owner can answer"


class OwnerlessTransactions:
    """Transactions of this process on a file that no process owns."""

    def __init__(self, path: str, namespace: str) -> None:
        self._path = path
        self._namespace = namespace
        self._lock = FileLock(path)  # our own: beside the lock of an owner in this process it is just another
        self._asked: list[tuple[s.Request[Any], asyncio.Future[Any]]] = []
        self._running: asyncio.Task[None] | None = None
        self._after = 0.0

    async def ask(self, request: s.Request[Any]) -> Any:
        """The answer, or why there is none."""
        form = _form(request)
        if form is None or not self._may_open():
            return NoAnswer.WAIT
        if time.monotonic() < self._after:
            return NoAnswer.BUSY
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.append((form, future))
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run())
        answer = await future
        return NoAnswer.WAIT if _must_wait(request, answer) else answer

    async def close(self) -> None:
        """Let what is under way end."""
        if self._running is not None:
            await asyncio.wait({self._running})

    def _may_open(self) -> bool:
        try:
            fork_safety.refuse_inherited(self._path)
        except StorageError:
            return False  # forked from an owner: SQLite cannot open the file here, but an owner can serve us
        return True

    async def _run(self) -> None:
        try:
            if self._lock.try_take():
                await self._transact()
        except Exception as error:
            self._end(error)
        else:
            self._end(None)
        finally:
            if self._lock.held:
                self._after = time.monotonic() + _TURN
                self._lock.drop()

    async def _transact(self) -> None:
        room = self._open()
        try:
            for _ in range(_ROUNDS):
                if not self._asked or (room.only_looks and not self._all_look()):
                    return
                asked, self._asked = self._asked, []
                await asyncio.gather(*[_answer(room, request, future) for request, future in asked])
        finally:
            room.close()

    def _all_look(self) -> bool:
        return all(request.looks for request, _ in self._asked)

    def _open(self) -> OpenEngine:
        """An engine for some requests; where the disk is full, for those that only look: the others hear of it."""
        try:
            return OpenEngine.open_for_a_moment(self._path, self._namespace)
        except StorageError as error:
            if error.status != "RESOURCE_EXHAUSTED" or not os.path.exists(self._path):
                raise
            looks = [each for each in self._asked if each[0].looks]
            if not looks:
                raise
            others, self._asked = [each for each in self._asked if each not in looks], looks
            for _, future in others:
                if not future.done():
                    future.set_exception(StorageError(str(error), status=error.status))
            return OpenEngine.open_to_read(self._path, self._namespace, error)

    def _end(self, error: Exception | None) -> None:
        asked, self._asked = self._asked, []
        for _, future in asked:
            if future.done():
                continue
            if error is None:
                future.set_result(NoAnswer.BUSY)
            else:
                future.set_exception(error)


async def _answer(room: OpenEngine, request: s.Request[Any], future: asyncio.Future[Any]) -> None:
    answer: Any
    try:
        answer = await room.call(request)
    except EngineClosed:
        if room.failed is not None and is_permanent(room.failed):  # to ask again would end like this
            if not future.done():
                future.set_exception(StorageError(str(room.failed), status=room.failed.status))
            return
        answer = NoAnswer.BUSY
    except Exception as error:
        if not future.done():
            future.set_exception(error)
        return
    if not future.done():
        future.set_result(answer)


def _must_wait(request: s.Request[Any], answer: Any) -> bool:
    if request.needs_worker:
        return answer is not NoAnswer.BUSY
    match request, answer:
        case s.WaitForClose(), s.StillOpen():
            return True
        case s.GetHistory(wait_new=True), s.HistoryPage(events=(), next_page_token=token):
            return token != b""
        case _:
            return False
