"""What a worker and a process beside it say to each other: messages as data, and frames on a socket.

A frame is four bytes of length and that many bytes of MessagePack; a child that announces more than it could have to say is
not listened to. No object of the user's travels, only
payloads; a function travels as `module:qualified.name`, which the parent takes from what its resolver found.
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import TypeAlias

import msgspec

from hourglass._contract.handle import (
    ActivityCancelled,
    ActivityDeferred,
    ActivityFailed,
    ActivityOk,
    ActivityResult,
    ActivityTask,
)
from hourglass._engine.events import Payloads
from hourglass.errors import HourglassError

_HEAD = struct.Struct(">I")
_CHUNK = 1 << 18
_LARGEST = 1 << 30  # also where payloads have no limit
_AROUND = 1 << 20  # a message is its payloads, and what stands around them


class Setup(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How the child finds what the parent finds: its import path, its script, its converter's class."""

    path: list[str]
    argv: list[str]
    main: str = ""
    converter: str = ""
    payload_limit: int | None = None


class Job(msgspec.Struct, frozen=True, tag=True):
    """Run an attempt."""

    number: int
    function: str
    task: ActivityTask


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """An attempt was asked to stop."""

    number: int
    reason: str


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The attempt made a heartbeat."""

    number: int
    details: Payloads


class Done(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The attempt has ended, in one of four ways."""

    number: int
    ok: ActivityOk | None = None
    failed: ActivityFailed | None = None
    cancelled: ActivityCancelled | None = None
    deferred: ActivityDeferred | None = None

    @property
    def result(self) -> ActivityResult | None:
        """The way it ended."""
        return self.ok or self.failed or self.cancelled or self.deferred


ToChild: TypeAlias = Setup | Job | Cancel
ToParent: TypeAlias = Beat | Done

to_child = msgspec.msgpack.Decoder(ToChild)
to_parent = msgspec.msgpack.Decoder(ToParent)


def done(number: int, result: ActivityResult) -> Done:
    """A result as a message."""
    match result:
        case ActivityOk():
            return Done(number=number, ok=result)
        case ActivityFailed():
            return Done(number=number, failed=result)
        case ActivityCancelled():
            return Done(number=number, cancelled=result)
        case ActivityDeferred():
            return Done(number=number, deferred=result)


class FrameTooLarge(HourglassError):
    """The other end announced a message that is larger than it could be."""


def frame_limit(payload_limit: int | None) -> int:
    """The largest message of a child whose payloads may be so large."""
    return _LARGEST if payload_limit is None else min(2 * payload_limit + _AROUND, _LARGEST)


class Channel:
    """One end of the socket. Any thread may send; one thread receives, and takes no message larger than `limit`."""

    def __init__(self, sock: socket.socket, limit: int | None = None) -> None:
        self.sock = sock
        self._limit = limit
        self._lock = threading.Lock()
        self._buffer = bytearray()

    def send(self, message: ToChild | ToParent) -> None:
        """Send a message; raises OSError if nobody listens any more."""
        data = msgspec.msgpack.encode(message)
        with self._lock:
            self.sock.sendall(_HEAD.pack(len(data)))
            self.sock.sendall(data)

    def receive(self, *flags: int) -> list[bytes] | None:
        """The messages that have come, still encoded: perhaps none, if only a part of one has; None at the end. Raises
        `FrameTooLarge` as soon as one is announced that is.
        """
        chunk = self.sock.recv(_CHUNK, *flags)
        if not chunk:
            return None
        self._buffer += chunk
        return self._frames()

    def close(self) -> None:
        """Hang up."""
        self.sock.close()

    def _frames(self) -> list[bytes]:
        found: list[bytes] = []
        start = 0
        while len(self._buffer) >= start + _HEAD.size:
            (length,) = _HEAD.unpack_from(self._buffer, start)
            if self._limit is not None and length > self._limit:
                raise FrameTooLarge(
                    f"a message of {length:,} bytes was announced, more than the limit of {self._limit:,}"
                )
            end = start + _HEAD.size + length
            if len(self._buffer) < end:
                break
            found.append(bytes(self._buffer[start + _HEAD.size : end]))
            start = end
        del self._buffer[:start]
        return found
