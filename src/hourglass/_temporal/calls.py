"""A call: which RPC, its message, and how to read the answer. Every request becomes one; pure data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.message import Message

ORDINARY = 10.0
"""Seconds for a call that the server answers at once."""

PATIENT = 30.0
"""Seconds for a call that a worker has to answer."""

LONG_POLL = 65.0
"""Seconds for a call that the server holds open; it gives up by itself after 20."""


class Scope(NamedTuple):
    """What every call needs to know of its connection."""

    namespace: str
    identity: str


class Call(NamedTuple):
    """One RPC. `late` answers instead of a timeout, for calls where waiting in vain is normal. Without `retry` a server
    that is not there is an error at once, and not after `timeout`.
    """

    rpc: str
    message: Message
    read: Callable[[bytes], Any]
    timeout: float = ORDINARY
    late: Any = None
    retry: bool = True


def put_execution(execution: Any, workflow_id: str, run_id: str) -> None:
    """Name a run in a message."""
    execution.workflow_id = workflow_id
    execution.run_id = run_id
