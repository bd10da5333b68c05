"""Limits on sizes and counts: Temporal's values, and Temporal's messages for exceeding them. Pure.

Must not know: the engine, transitions. The limits apply by default, so that a program that runs here also runs on a
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
    """Raised for a change that is too large for one transaction. The run is terminated instead, with this reason."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on sizes, in bytes, and on counts."""

    blob_bytes: int = 2 * MEGABYTE
    history_events: int = 51_200
    history_bytes: int = 50 * MEGABYTE
    pending: int = 2_000
    held_events: int = 5_000
    """The number of events that may be held back during one workflow task before the task fails.

    A server allows 100 to save memory. Here, that would make a run with hundreds of activities repeat its task from the
    whole history many times.
    """
    held_bytes: int = 25 * MEGABYTE
    """The maximum total size of held events, in bytes. Held events are written with every change of the run."""
    transaction_bytes: int = 100 * MEGABYTE
    """The maximum size of one change of a run. The change becomes one row, and a row of a store must be smaller than a
    gigabyte.
    """
    updates_in_flight: int = 10
    updates: int = 2_000
    signals: int = 10_000
    name_bytes: int = 1_000
    """The maximum length of an id, of a workflow or activity type, and of the name of a task queue or signal."""
    attributes: int = 100
    attribute_bytes: int = 2 * 1024
    attributes_bytes: int = 40 * 1024
    payloads_warn: int = 512 * 1024
    """The size of the values of a request or command above which a warning is logged. 0 disables the warning."""
    memo_warn: int = 2 * 1024
    """The size of a memo above which a warning is logged. 0 disables the warning."""
    suggest_events: int = 4_096
    suggest_bytes: int = 4 * MEGABYTE

    def overgrown(self, run: Run) -> str:
        """Return the reason why a run has exceeded its limits and must not continue, or "" if it may continue."""
        if run.length > self.history_events:
            return TOO_MANY_EVENTS
        if run.history_size > self.history_bytes:
            return TOO_LARGE_HISTORY
        return ""

    def check_step(self, size: int) -> None:
        """Raise `Overgrown` if a change of this size is too large for one transaction."""
        if size > self.transaction_bytes:
            raise Overgrown(
                f"{TOO_LARGE_TRANSACTION} (one workflow task of this run writes more than {self.transaction_bytes} "
                "bytes)"
            )

    def check(self, request: Request[Any]) -> None:
        """Raise `ServiceError` if a value of the request is too large or a name is too long."""
        try:
            size = len(_encode(request))
        except (TypeError, ValueError, OverflowError):  # a value of the request cannot be encoded
            size = FAR_TOO_LARGE
        if size > min(
            self.name_bytes, self.blob_bytes
        ):  # otherwise no value is too large and no name too long
            self._check_fields(request, _NAMES.get(type(request), _NO_NAMES))

    def _check_fields(self, request: msgspec.Struct, names: Mapping[str, str]) -> None:
        for name, value in zip(request.__struct_fields__, msgspec.structs.astuple(request), strict=True):
            # Most fields of every request are empty, or numbers.
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
                    f"{TOO_LARGE_BLOB} ({name}: {size} bytes; at most {self.blob_bytes} are allowed)",
                    status="INVALID_ARGUMENT",
                )
            self.warn(size, name, type(request).__name__)

    def warn(self, size: int, name: str, what: str) -> None:
        """Log a warning about large values, if this warning is enabled."""
        most = self.memo_warn if name == "memo" else self.payloads_warn
        if most and size > most:
            logger.warning(
                "large %s of %s: %s bytes; the recommended maximum is %s and the limit is %s. Store large data "
                "elsewhere, and pass a reference to it",
                name,
                what,
                f"{size:,}",
                f"{most:,}",
                f"{self.blob_bytes:,}",
            )

    def is_too_long(self, name: str) -> bool:
        """Whether a name is too long. Its length is counted in bytes, as on a server."""
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
"""The names that are checked, with a server's messages. Names that are only looked up are not checked, because a name
that is too long is not found.
"""


def blob_size(value: object) -> int:
    """Return the total size of the encoded values in a field of a request."""
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
    """Return the size of a value in its stored encoding."""
    return len(encode(value))
