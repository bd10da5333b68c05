"""What a client does by itself while no process owns the file: it takes the lock for one short transaction.

Must not know: sockets, workers. So a workflow can be started, signalled or looked at during a deploy. All that
is asked in the meantime shares one opening of the file. Only the runs that are asked for are loaded; nothing in
flight is recovered, no timer is served. What needs a worker must wait for an owner.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

from hourglass._contract import schedules as schedules
from hourglass._contract import service as changes
from hourglass._contract import service as deployments
from hourglass._contract import service as s
from hourglass._contract import service as watch
from hourglass._embedded.clients.requests import LOOKS
from hourglass._embedded.sharing.open_engine import EngineClosed, OpenEngine
from hourglass._embedded.sharing.ownership import FileLock
from hourglass._embedded.store import fork_safety
from hourglass._embedded.store.disk_faults import is_permanent
from hourglass.errors import StorageError

_ROUNDS = 20  # so often in a row what has come meanwhile is done too; then others have a chance at the lock
_TURN = 0.004
"""How long this process leaves the lock to others, in seconds: they look for it every few milliseconds."""


def _as_it_is(request: Any) -> Any:
    return request


def _at_once(request: Any) -> Any:
    """Requests that wait: how it is now, as an answer and not as an error."""
    return msgspec.structs.replace(request, rpc_timeout=0.0)


ALONE: Mapping[type[s.Request[Any]], Callable[[Any], Any]] = {
    s.StartWorkflow: _as_it_is,
    s.SignalWorkflow: _as_it_is,
    s.CancelWorkflow: _as_it_is,
    s.TerminateWorkflow: _as_it_is,
    s.DescribeWorkflow: _as_it_is,
    s.ListWorkflows: _as_it_is,
    s.CountWorkflows: _as_it_is,
    s.CompleteActivity: _as_it_is,
    s.HeartbeatActivity: _as_it_is,
    s.WaitForClose: _at_once,
    s.GetHistory: _at_once,
    changes.ResetWorkflow: _as_it_is,
    schedules.CreateSchedule: _as_it_is,
    schedules.DescribeSchedule: _as_it_is,
    schedules.UpdateSchedule: _as_it_is,
    schedules.PatchSchedule: _as_it_is,
    schedules.DeleteSchedule: _as_it_is,
    schedules.ListSchedules: _as_it_is,
    watch.LastSeen: _as_it_is,
    watch.GetPollers: _as_it_is,
    deployments.SetCurrentVersion: _as_it_is,
    deployments.DescribeDeployment: _as_it_is,
}
"""What can be asked without an owner, and in which form."""

NEEDS_A_WORKER: frozenset[type[s.Request[Any]]] = frozenset(
    {s.QueryWorkflow, changes.UpdateWorkflow, changes.PollUpdate, changes.UpdateWithStart}
)
"""What must wait for an owner."""


def _whether_it_is_there(request: Any) -> Any:
    return s.DescribeWorkflow(workflow_id=request.workflow_id, run_id=request.run_id)


_LOOKED_FOR: Mapping[type[s.Request[Any]], Callable[[Any], Any]] = {
    s.QueryWorkflow: _whether_it_is_there,
    changes.UpdateWorkflow: _whether_it_is_there,
}
"""What waits for a worker only if the workflow exists: else no worker would ever answer."""


_LOOKS = LOOKS | {watch.GetPollers, deployments.DescribeDeployment}
"""What can be asked even if the file cannot be written."""


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
        form = ALONE.get(type(request)) or _LOOKED_FOR.get(type(request))
        if form is None or not self._may_open():
            return NoAnswer.WAIT
        if time.monotonic() < self._after:
            return NoAnswer.BUSY
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.append((form(request), future))
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
        return all(type(request) in _LOOKS for request, _ in self._asked)

    def _open(self) -> OpenEngine:
        """An engine for some requests; where the disk is full, for those that only look: the others hear of it."""
        try:
            return OpenEngine.open_for_a_moment(self._path, self._namespace)
        except StorageError as error:
            if error.status != "RESOURCE_EXHAUSTED" or not os.path.exists(self._path):
                raise
            looks = [each for each in self._asked if type(each[0]) in _LOOKS]
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
    if type(request) in _LOOKED_FOR:
        return answer is not NoAnswer.BUSY
    match request, answer:
        case s.WaitForClose(), s.StillOpen():
            return True
        case s.GetHistory(wait_new=True), s.HistoryPage(events=(), next_page_token=token):
            return token != b""
        case _:
            return False
