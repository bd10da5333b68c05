"""The messages between a worker and a child process for activities, and their frames on a socket.

Must not know: how functions are found (see `process_names`). A frame consists of a length in four bytes and a
MessagePack message of this length. A child that announces a frame above the limit is disconnected. Values of
user code are only sent as payloads.
"""

from __future__ import annotations

import socket
import struct
import threading
from typing import TypeAlias

import msgspec

from hourglass._contract.handle import (
    ActivityDeferred,
    ActivityOk,
    ActivityResult,
    ActivityTask,
    AttemptCancelled,
    AttemptFailed,
)
from hourglass._evaluator.specs import Payloads
from hourglass.converter import Payload
from hourglass.errors import HourglassError

_HEAD = struct.Struct(">I")
_CHUNK = 1 << 18
_LARGEST = 1 << 30  # applies even if payloads have no limit
_AROUND = 1 << 20  # bytes of a message in addition to its payloads


class Setup(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The first message to a child: the parent's import path, script and converter."""

    path: list[str]
    argv: list[str]
    main: str = ""
    converter: str = ""
    payload_limit: int | None = None


class RunAttempt(msgspec.Struct, frozen=True, tag=True):
    """A request to run an attempt."""

    number: int
    function: str
    task: ActivityTask


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """A request to cancel an attempt."""

    number: int
    reason: str


class Beat(msgspec.Struct, frozen=True, tag=True):
    """A heartbeat of the attempt."""

    number: int
    details: Payloads


class Published(msgspec.Struct, frozen=True, tag=True):
    """An item that the attempt published."""

    number: int
    name: str
    value: Payload


class Done(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The end of an attempt. Exactly one of the four results is set."""

    number: int
    ok: ActivityOk | None = None
    failed: AttemptFailed | None = None
    cancelled: AttemptCancelled | None = None
    deferred: ActivityDeferred | None = None

    @property
    def result(self) -> ActivityResult | None:
        return self.ok or self.failed or self.cancelled or self.deferred


ToChild: TypeAlias = Setup | RunAttempt | Cancel
ToParent: TypeAlias = Beat | Published | Done

to_child = msgspec.msgpack.Decoder(ToChild)
to_parent = msgspec.msgpack.Decoder(ToParent)


def done(number: int, result: ActivityResult) -> Done:
    match result:
        case ActivityOk():
            return Done(number=number, ok=result)
        case AttemptFailed():
            return Done(number=number, failed=result)
        case AttemptCancelled():
            return Done(number=number, cancelled=result)
        case ActivityDeferred():
            return Done(number=number, deferred=result)


class FrameTooLarge(HourglassError):
    """The other end announced a message above the size limit."""


def frame_limit(payload_limit: int | None) -> int:
    """Return the size limit for messages of a child whose payloads have this limit."""
    return _LARGEST if payload_limit is None else min(2 * payload_limit + _AROUND, _LARGEST)


class ProcessChannel:
    """One end of the socket. Any thread may send. Only one thread may receive, and messages above `limit` bytes
    are rejected.
    """

    def __init__(self, sock: socket.socket, limit: int | None = None) -> None:
        self.sock = sock
        self._limit = limit
        self._lock = threading.Lock()
        self._buffer = bytearray()

    def send(self, message: msgspec.Struct) -> None:
        """Send a message. Raise OSError if the other end is closed."""
        data = msgspec.msgpack.encode(message)
        with self._lock:
            self.sock.sendall(_HEAD.pack(len(data)))
            self.sock.sendall(data)

    def receive(self, *flags: int) -> list[bytes] | None:
        """Return the messages that have arrived completely, still encoded. Return None at the end of the
        connection.

        Raise `FrameTooLarge` as soon as a message above the limit is announced.
        """
        chunk = self.sock.recv(_CHUNK, *flags)
        if not chunk:
            return None
        self._buffer += chunk
        return self._frames()

    def close(self) -> None:
        self.sock.close()

    def _frames(self) -> list[bytes]:
        frames: list[bytes] = []
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
            frames.append(bytes(self._buffer[start + _HEAD.size : end]))
            start = end
        del self._buffer[:start]
        return frames
