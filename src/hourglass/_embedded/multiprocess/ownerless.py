"""Requests of a client while no process owns the file: the client takes the lock for one short transaction.

Must not know: sockets, workers. With these transactions a workflow can be started, signalled or described during a
deployment. All requests that arrive during the transaction, or shortly afterwards, share one opening of the file. Only
the requested runs are loaded; no tasks are recovered and no timers fire. Requests that need a worker must wait for an
owner.
"""

from __future__ import annotations

import asyncio
import os
from enum import Enum
from time import monotonic
from typing import Any, TypeVar

from msgspec.structs import replace

from hourglass._contract import service as s
from hourglass._contract import workflows as wf
from hourglass._contract.activities import ActivityOutcome, WaitForActivity
from hourglass._contract.limits import AwaitBurst, BurstState
from hourglass._contract.progress import ProgressRead, ReadProgress
from hourglass._embedded.api.answering import EngineClosed
from hourglass._embedded.api.requests import answer
from hourglass._embedded.clock import Bell
from hourglass._embedded.engine import Engine
from hourglass._embedded.multiprocess.open_engine import OpenEngine
from hourglass._embedded.multiprocess.ownership import FileLock
from hourglass._embedded.store.store import StoreOpener, is_permanent
from hourglass.errors import StorageError

A = TypeVar("A")

_HOLD = 0.2
"""Seconds for which this process keeps the file while requests keep arriving. After that, other processes can acquire
the lock. Opening a file takes as long as several commits, so a client that starts many workflows in sequence opens the
file five times a second instead of once per request.
"""
_LINGER = 0.01
"""Seconds to wait for the next request before the file is closed."""
_TURN = 0.004
"""Seconds for which this process leaves the lock to other processes, which check the lock every few milliseconds."""

_EXISTENCE_FIRST = (wf.QueryWorkflow, wf.UpdateWorkflow)
"""Requests that wait for a worker only if the workflow exists; otherwise no worker would ever answer."""


class NoAnswer(Enum):
    """The reason why there is no answer yet."""

    BUSY = "another process currently holds the lock of the file"
    WAIT = "this request needs the owner of the file, and no process owns it"


class OwnerlessTransactions:
    """Transactions of this process on a file that no process owns."""

    def __init__(self, opener: StoreOpener, path: str, namespace: str) -> None:
        self._opener = opener
        self._path = path
        self._namespace = namespace
        self._lock = FileLock(path)  # a separate lock, which also excludes an owner in this process
        self._requests: list[tuple[s.Request[Any], asyncio.Future[Any]]] = []
        self._running: asyncio.Task[None] | None = None
        self._arrived = Bell()
        self._closing = False
        self._not_before = 0.0

    async def call(self, request: s.Request[A]) -> A | NoAnswer:
        form = _without_an_owner(request)
        if form is None or not self._may_open():
            return NoAnswer.WAIT
        if monotonic() < self._not_before:
            return NoAnswer.BUSY
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests.append((form, future))
        self._arrived.ring()
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run())
        outcome: A | NoAnswer = await future
        return NoAnswer.WAIT if _must_wait(request, outcome) else outcome

    async def close(self) -> None:
        self._closing = True
        self._arrived.ring()
        if self._running is not None:
            await asyncio.wait({self._running})

    def _may_open(self) -> bool:
        try:
            self._opener.check(self._path)
        except StorageError:
            return False  # this process can never open the file, but an owner in another process can answer
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
                self._not_before = monotonic() + _TURN
                self._lock.drop()

    async def _transact(self) -> None:
        engine, until = self._open(), monotonic() + _HOLD
        try:
            while self._requests and not (
                engine.read_only and not all(_reads(request) for request, _ in self._requests)
            ):
                waiting, self._requests = self._requests, []
                await asyncio.gather(*[_answer(engine, request, future) for request, future in waiting])
                remaining = min(_LINGER, until - monotonic())
                if remaining <= 0:
                    return
                if not self._requests and not self._closing:
                    await self._arrived.wait(remaining)
        finally:
            engine.close()

    def _open(self) -> OpenEngine:
        """Open an engine for the waiting requests. If the disk is full, open it for reads only, and fail the other
        requests.
        """
        path, namespace = self._path, self._namespace
        try:
            store = self._opener.open(path, namespace, briefly=True)
            return OpenEngine(Engine(store=store, namespace=namespace))
        except StorageError as error:
            reads = [waiting for waiting in self._requests if _reads(waiting[0])]
            if error.status != "RESOURCE_EXHAUSTED" or not reads or not os.path.exists(path):
                raise
            changes, self._requests = [waiting for waiting in self._requests if waiting not in reads], reads
            for _, future in changes:
                _settle(future, StorageError(str(error), status=error.status))
            store = self._opener.open_read_only(path, error)
            return OpenEngine(Engine(store=store, namespace=namespace), read_only=True)

    def _end(self, error: Exception | None) -> None:
        waiting, self._requests = self._requests, []
        for _, future in waiting:
            _settle(future, NoAnswer.BUSY if error is None else error)


async def _answer(engine: OpenEngine, request: s.Request[Any], future: asyncio.Future[Any]) -> None:
    try:
        _settle(future, await answer(engine.engine, request))
    except EngineClosed:
        failed = engine.failed
        if failed is not None and is_permanent(failed):  # a repetition would fail in the same way
            _settle(future, StorageError(str(failed), status=failed.status))
        else:
            _settle(future, NoAnswer.BUSY)
    except Exception as error:
        _settle(future, error)


def _settle(future: asyncio.Future[Any], outcome: object) -> None:
    if future.done():
        return  # the caller no longer waits
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def _reads(request: s.Request[Any]) -> bool:
    return request.effect is s.Effect.READ


def _without_an_owner(request: s.Request[Any]) -> s.Request[Any] | None:
    """Return the form of a request that an engine without workers can answer; None if there is none."""
    if isinstance(request, _EXISTENCE_FIRST):
        return wf.DescribeWorkflow(workflow_id=request.workflow_id, run_id=request.run_id)
    if request.needs_worker:
        return None
    # A request that would wait is answered with the current state instead.
    return replace(request, rpc_timeout=0.0) if request.waits else request


def _must_wait(request: s.Request[Any], answer: Any) -> bool:
    match request, answer:
        case ((wf.QueryWorkflow() | wf.UpdateWorkflow()), _):
            return answer is not NoAnswer.BUSY
        case wf.WaitForClose(), wf.StillOpen():
            return True
        case WaitForActivity(), ActivityOutcome(closed=False):
            return True
        case wf.GetHistory(wait_new=True), wf.HistoryPage(events=(), next_page_token=token):
            return token != b""
        case ReadProgress(wait_new=True), ProgressRead(items=()):
            return True
        case AwaitBurst(), BurstState(pending=True):
            return True
        case _:
            return False
