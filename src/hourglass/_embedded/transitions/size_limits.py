"""How large things may grow: Temporal's limits and, where a limit is passed, Temporal's words. Pure.

Must not know: the engine, transitions. They hold by default, so that a program that runs here also runs on a
server.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from hourglass._contract.service import Request
from hourglass._contract.workflows import CancelWorkflow, SignalWorkflow, StartWorkflow, UpdateWorkflow
from hourglass._embedded.transitions.run import Run
from hourglass._evaluator.specs import Spec
from hourglass._history.encoding import encode
from hourglass.converter import Failure, Payload
from hourglass.errors import ServiceError

TOO_MANY_EVENTS = "Workflow history count exceeds limit."
TOO_LARGE_HISTORY = "Workflow history size exceeds limit."
TOO_MANY_SIGNALS = "exceeded workflow execution limit for signal events"
TOO_LARGE_BLOB = "Blob data size exceeds limit."
TOO_LARGE_TRANSACTION = "Transaction size exceeds limit."

MEGABYTE = 1024 * 1024
FAR_TOO_LARGE = 1 << 60

logger = logging.getLogger("hourglass")

_encode = msgspec.msgpack.Encoder().encode


class Overgrown(Exception):
    """What a step writes is more than can be written at once: the run is ended instead, with this reason."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes in bytes, or how many."""

    blob_bytes: int = 2 * MEGABYTE
    history_events: int = 51_200
    history_bytes: int = 50 * MEGABYTE
    pending: int = 2_000
    held_events: int = 5_000
    """What may happen during one workflow task before it is failed. A server says 100, to spare its own memory; here
    that would make a run with hundreds of activities begin its task anew, from the whole history, again and again.
    """
    held_bytes: int = 25 * MEGABYTE
    """The same in bytes: what is held is written with every step of the run."""
    transaction_bytes: int = 100 * MEGABYTE
    """What one step of a run may write. It becomes one row, and a row of a store has less than a gigabyte."""
    updates_in_flight: int = 10
    updates: int = 2_000
    signals: int = 10_000
    name_bytes: int = 1_000
    """How long an id, the name of a type, a task queue or a signal may be."""
    attributes: int = 100
    attribute_bytes: int = 2 * 1024
    attributes_bytes: int = 40 * 1024
    payloads_warn: int = 512 * 1024
    """From so many bytes of values on, of one request or command, a warning is logged; 0: none is."""
    memo_warn: int = 2 * 1024
    """The same for a memo."""
    suggest_events: int = 4_096
    suggest_bytes: int = 4 * MEGABYTE

    def overgrown(self, run: Run) -> str:
        """Why a run must not go on; empty if it may."""
        if run.length > self.history_events:
            return TOO_MANY_EVENTS
        if run.history_size > self.history_bytes:
            return TOO_LARGE_HISTORY
        return ""

    def is_overgrown(self, length: int, size: int) -> bool:
        """The same of a run with so many events and bytes."""
        return length > self.history_events or size > self.history_bytes

    def check_step(self, size: int) -> None:
        """Raise `Overgrown` for a step that writes so many bytes, if that is more than can be written at once."""
        if size > self.transaction_bytes:
            raise Overgrown(
                f"{TOO_LARGE_TRANSACTION} (one step of this run writes more than {self.transaction_bytes} bytes)"
            )

    def check(self, request: Request[Any]) -> None:
        """Raise `ServiceError` for a request with a value that is too large, or a name that is too long."""
        try:
            whole = len(_encode(request))
        except (TypeError, ValueError, OverflowError):  # it holds what cannot be encoded as it is
            whole = FAR_TOO_LARGE
        if whole > min(self.name_bytes, self.blob_bytes):  # else nothing in it is too large, nor too long
            self._check_fields(request, _NAMES.get(type(request), _NO_NAMES))

    def _check_fields(self, said: msgspec.Struct, names: Mapping[str, str]) -> None:
        for name, value in zip(said.__struct_fields__, msgspec.structs.astuple(said), strict=True):
            # Most fields, of every request, say nothing, or are numbers.
            if not value or type(value) is float or isinstance(value, int):
                continue
            if isinstance(value, str):
                if name in names and self.is_too_long(value):
                    raise ServiceError(names[name], status="INVALID_ARGUMENT")
                continue
            if isinstance(value, Request):
                self.check(value)
                continue
            if isinstance(value, Spec):
                self._check_fields(value, names)
                continue
            size = blob_size(value)
            if size > self.blob_bytes:
                raise ServiceError(
                    f"{TOO_LARGE_BLOB} ({name}: {size} bytes, at most {self.blob_bytes} are allowed)",
                    status="INVALID_ARGUMENT",
                )
            if size > (self.memo_warn if name == "memo" else self.payloads_warn):
                self.warn(size, name, type(said).__name__)

    def warn(self, size: int, name: str, what: str) -> None:
        """Say that values are large, if that is wanted."""
        most = self.memo_warn if name == "memo" else self.payloads_warn
        if most and size > most:
            logger.warning(
                "the %s of %s take %s bytes, more than %s: keep large data elsewhere, and pass a reference to it; at most %s "
                "are allowed",
                name,
                what,
                f"{size:,}",
                f"{most:,}",
                f"{self.blob_bytes:,}",
            )

    def is_too_long(self, name: str) -> bool:
        """Whether a name is longer than one may be: in bytes, as a server counts."""
        return len(name) * 4 > self.name_bytes and len(name.encode(errors="replace")) > self.name_bytes


_NO_NAMES: Mapping[str, str] = {}
_NAMES: Mapping[type[Request[Any]], Mapping[str, str]] = {
    StartWorkflow: {
        "workflow_id": "WorkflowId length exceeds limit.",
        "workflow_type": "WorkflowType length exceeds limit.",
        "task_queue": "taskQueue length exceeds limit",
        "request_id": "RequestId length exceeds limit.",
        "signal_name": "SignalName length exceeds limit.",
    },
    SignalWorkflow: {
        "signal_name": "SignalName length exceeds limit.",
        "request_id": "RequestId length exceeds limit.",
    },
    CancelWorkflow: {"request_id": "RequestId length exceeds limit."},
    UpdateWorkflow: {"update_id": "UpdateId length exceeds limit."},
}
"""Names that may be too long, and what a server says then. One by which something is only looked up is just not
found.
"""


def blob_size(value: object) -> int:
    """How many bytes of encoded values a field of a request holds."""
    match value:
        case Payload():
            return len(value.data)
        case tuple():
            return sum(map(blob_size, value))
        case dict():
            return sum(map(blob_size, value.values()))
        case Failure():
            return encoded_size(value)
        case _:
            return 0


def encoded_size(value: object) -> int:
    """How many bytes something takes when it is stored."""
    return len(encode(value))
