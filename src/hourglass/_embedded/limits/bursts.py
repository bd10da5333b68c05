"""Debounced calls (`debounce` of `hourglass.limits`), by key: calls of a key in quick succession become one workflow.

The workflow starts once no call has arrived for a while, with the arguments of the last call. Must not know: requests,
handles, when a burst is over (see `hourglass._contract.limits`). Invariants: an answered call is durable, and so is the
id of its future workflow, which is assigned before the start. The start of the workflow and the end of its burst are one
change of the store.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

import msgspec

from hourglass._contract.limits import BURSTS, Burst, DebounceCall, KeptLimit, joined
from hourglass._contract.workflows import Started, StartWorkflow
from hourglass._embedded.clock import SECOND, Bell, later
from hourglass._embedded.runs.due_times import DueTimes
from hourglass._embedded.runs.runs import RunTable
from hourglass._embedded.runs.starting import check_room, start_workflow
from hourglass._embedded.store.store import NoteChange
from hourglass._evaluator.specs import Payloads, StartSpec
from hourglass._history.encoding import plain
from hourglass.converter import Payload
from hourglass.errors import ServiceError, StorageError

logger = logging.getLogger("hourglass.embedded")

NOTE = "limit/"
"""The common prefix of the names under which the store keeps limits."""

_RETRY_NS = 5 * SECOND
"""The delay before a failed start of a burst's workflow is retried."""
_REPEAT_NS = 60 * SECOND
"""The retention time of a finished burst. It is used to recognise calls that are repeated because their answer was lost."""
_MAX_TICKETS = 100
"""The number of a burst's tickets to remember, to recognise repeated calls."""


def keep_note(runs: RunTable, name: str, data: bytes) -> None:
    """Store the data of a limit, or delete the stored data if `data` is empty."""
    runs.keep_schedule(NoteChange(schedule_id=NOTE + plain(name), data=data))


class KeptBurst(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a key. They are pending and will become the workflow `becomes`, or that workflow has already started
    (`fired_ns` is set).
    """

    burst: Burst
    becomes: str
    calls: int = 1
    arguments: Payloads = ()
    headers: dict[str, Payload] = {}
    identity: str = ""
    due_ns: int = 0
    fired_ns: int = 0


_burst_decoder = msgspec.msgpack.Decoder(KeptBurst)
_call_decoder = msgspec.json.Decoder(DebounceCall)


class Bursts:
    """The debounced calls of an engine (see the module). Workflows are started only after `begin`."""

    def __init__(self, runs: RunTable) -> None:
        self._runs = runs
        self._bursts: dict[str, KeptBurst] = {}
        self._due = DueTimes(runs.clock, self._elapse)
        self.fired = Bell()
        """Rings when a burst was started or dropped."""

    def load(self, id: str, data: bytes) -> None:
        """Restore the stored state of a key. Raise `msgspec.MsgspecError` or `ValueError` for invalid data."""
        self._bursts[id] = stored = _burst_decoder.decode(data)
        self._due.set(id, 0 if stored.fired_ns else stored.due_ns)
        self._due.set_alarm()

    def unload(self, id: str) -> None:
        """Remove the state of a key from memory, because the state cannot be stored."""
        self._bursts.pop(id, None)
        self._due.set(id, 0)
        self._due.set_alarm()

    def debounce(self, request: StartWorkflow) -> Started | None:
        """Add a client's call to its burst. Return None if a workflow must handle the call.

        A workflow must handle it if the keeper workflow of the key is open, or if the engine cannot decode the call.
        """
        id = request.workflow_id
        if request.signal_name != "call" or not id.startswith(BURSTS) or not request.signal_arguments:
            return None
        first, *arguments = request.signal_arguments
        current = self._runs.current(id)
        if first.encoding != "json/plain" or (current is not None and current.run.is_open):
            return None
        try:
            call = _call_decoder.decode(first.data)
        except (msgspec.MsgspecError, ValueError):
            return None
        pending = self._bursts.get(id)
        if pending is not None and call.ticket in pending.burst.tickets:
            return Started("", started=False, becomes=pending.becomes)
        check_room(self._runs)
        if pending is not None and pending.fired_ns:
            pending = None
        now = self._runs.clock.now_ns()
        burst = joined(None if pending is None else pending.burst, call, now / SECOND)
        updated = KeptBurst(
            burst=_with_recent_tickets(burst),
            becomes=f"{call.prefix}:{self._runs.new_run_id()}" if pending is None else pending.becomes,
            calls=1 if pending is None else pending.calls + 1,
            arguments=tuple(arguments),
            headers=request.headers,
            identity=request.identity,
            due_ns=max(now, int(burst.due * SECOND)),
        )
        with self._runs.transaction():
            self._keep(id, updated)
        self._due.set_alarm()
        return Started("", started=pending is None, becomes=updated.becomes)

    def is_waiting(self, becomes: str, id: str) -> bool:
        """Whether the calls that will become the workflow `becomes` are still pending."""
        stored = self._bursts.get(id)
        return stored is not None and stored.becomes == becomes and not stored.fired_ns

    def _keep(self, id: str, stored: KeptBurst) -> None:
        self._bursts[id] = stored
        self._due.set(id, 0 if stored.fired_ns else stored.due_ns)
        keep_note(self._runs, id, msgspec.msgpack.encode(stored))

    def _fire(self, id: str, stored: KeptBurst, now: int) -> None:
        """Start the workflow of a burst, or schedule a retry if the store does not accept new workflows."""
        call = stored.burst.call
        request = StartWorkflow(
            workflow_id=stored.becomes,
            workflow_type=call.workflow,
            request_id=stored.becomes,
            arguments=stored.arguments,
            headers=stored.headers,
            identity=stored.identity,
            spec=StartSpec(
                task_queue=call.task_queue,
                execution_timeout=call.execution_timeout or 0.0,
                run_timeout=call.run_timeout or 0.0,
                task_timeout=call.task_timeout or 0.0,
            ),
        )
        with self._runs.transaction():
            try:
                check_room(self._runs)
                start_workflow(self._runs, request)
            except StorageError as error:
                logger.warning(
                    "the start of the debounced workflow %r failed and will be retried: %s",
                    stored.becomes,
                    error,
                )
                self._due.set(id, later(now, _RETRY_NS))
                return
            except ServiceError as error:
                logger.error(
                    "the debounced workflow %r cannot be started, and the start is not retried: %s",
                    stored.becomes,
                    error,
                )
                self._forget(id)
                return
            self._keep(id, msgspec.structs.replace(stored, arguments=(), headers={}, due_ns=0, fired_ns=now))

    def view(self, id: str = "") -> Iterator[KeptLimit]:
        """Yield the pending calls of a key, or of all keys."""
        for key, stored in self._bursts.items() if not id else ((id, self._bursts.get(id)),):
            if stored is not None and not stored.fired_ns:
                yield KeptLimit(key, calls=stored.calls, becomes=stored.becomes, due_ns=stored.due_ns)

    def drop(self, id: str) -> bool:
        """Drop the pending calls of a key. Return whether there were any."""
        stored = self._bursts.get(id)
        return stored is not None and not stored.fired_ns and self.forget(id)

    def forget(self, id: str) -> bool:
        """Remove a key, whether its calls are pending or finished. Return whether the key existed."""
        if id not in self._bursts:
            return False
        with self._runs.transaction():
            self._forget(id)
        self.fired.ring()
        self._due.set_alarm()
        return True

    def _forget(self, id: str) -> None:
        self._bursts.pop(id, None)
        self._due.set(id, 0)
        keep_note(self._runs, id, b"")

    def begin(self) -> None:
        if self._bursts:
            self._rebase()
        self._due.begin()

    def stop(self) -> None:
        self._due.stop()
        self.fired.ring()

    def realign(self) -> None:
        """Adjust the times after the clock has jumped. Calls that were made while the clock was ahead count as made now."""
        self._rebase()
        self._due.realign()

    def sweep(self) -> None:
        """Forget bursts whose workflows were started more than a minute ago."""
        now = self._runs.clock.now_ns()
        expired = [
            id
            for id, stored in self._bursts.items()
            if stored.fired_ns and stored.fired_ns + _REPEAT_NS <= now
        ]
        if expired:
            with self._runs.transaction():
                for id in expired:
                    self.forget(id)

    def _elapse(self) -> None:
        """Start the workflows of all due bursts. Called by the alarm."""
        now = self._runs.clock.now_ns()
        while (id := self._due.take(now)) is not None:
            self._fire(id, self._bursts[id], now)
        self._runs.queues.dispatch()
        self.fired.ring()

    def _rebase(self) -> None:
        now = self._runs.clock.now_ns()
        early = [entry for entry in self._bursts.items() if entry[1].burst.last * SECOND > now + SECOND]
        with self._runs.transaction():
            for id, stored in early:
                shift = stored.burst.last - now / SECOND
                burst = dataclasses.replace(
                    stored.burst, first=stored.burst.first - shift, last=stored.burst.last - shift
                )
                due_ns = max(now, int(burst.due * SECOND)) if stored.due_ns else 0
                fired_ns = min(stored.fired_ns, now)
                self._keep(id, msgspec.structs.replace(stored, burst=burst, due_ns=due_ns, fired_ns=fired_ns))


def _with_recent_tickets(burst: Burst) -> Burst:
    return Burst(burst.call, burst.first, burst.last, burst.tickets[-_MAX_TICKETS:])
