"""Frames on a socket: four bytes of length and that many bytes, both ways, on an event loop.

Must not know: what the bytes mean. A frame above the limit ends the connection before it is read; whoever gets
nothing sent that it reads is not read from either (`fair`), so that a peer cannot fill our memory with answers.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import cast

from hourglass._embedded.processes import descriptors, meeting

FRAME_LIMIT = 128 * 1024 * 1024
_HEAD = struct.Struct(">I")


class FrameStream(asyncio.Protocol):
    """One end of a connection. `on_frame` and `on_lost` are called on the loop; `on_lost` once, at the end."""

    def __init__(
        self,
        on_frame: Callable[[bytes], object],
        on_lost: Callable[[], object],
        *,
        on_made: Callable[[], object] | None = None,
        fair: bool = False,
    ) -> None:
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_made = on_made
        self._fair = fair
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1

    @property
    def is_open(self) -> bool:
        """Whether anything can still be said."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass
        self._descriptor = transport.get_extra_info("socket").fileno()
        descriptors.hold(self._descriptor)
        if self._on_made is not None:
            self._on_made()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended; its descriptor is closed after this."""
        descriptors.let_go(self._descriptor)
        self._transport = None
        self._on_lost()

    def data_received(self, data: bytes) -> None:
        """Hand on the frames that are complete."""
        buffer = self._buffer
        buffer += data
        start = 0
        while self.is_open and len(buffer) >= start + _HEAD.size:
            (length,) = _HEAD.unpack_from(buffer, start)
            if length > FRAME_LIMIT:
                self.abort()
                return
            end = start + _HEAD.size + length
            if len(buffer) < end:
                break
            frame = bytes(buffer[start + _HEAD.size : end])
            start = end
            self._on_frame(frame)
        del buffer[:start]

    def is_trusted(self, users: frozenset[int]) -> bool:
        """Whether the process at the other end runs as one of these users."""
        if self._transport is None:
            return False
        return meeting.is_trusted(self._transport.get_extra_info("socket"), users)

    def pause_writing(self) -> None:
        """The peer does not read: hear nothing more from it until it does."""
        if self._fair and self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer reads again."""
        if self._fair and self._transport is not None:
            self._transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Send a frame; nothing if the connection has ended."""
        if self._transport is not None and self.is_open:
            self._transport.write(_HEAD.pack(len(data)) + data)

    def close(self) -> None:
        """Send what is queued and hang up."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Hang up at once."""
        if self._transport is not None:
            self._transport.abort()
