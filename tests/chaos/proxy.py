"""A TCP proxy that misbehaves on command: it resets connections, drops all traffic, or freezes some connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any

_CHUNK = 65536
_RESET = struct.pack("ii", 1, 0)  # linger for no time: closing sends a reset


class Proxy:
    """A TCP proxy before a server, on an event loop in a thread of its own."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._host, self._port = host, int(port)
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[Any]] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._thawed = asyncio.Event()
        self._frozen: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.accepted = 0

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._server = self._call(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def reset(self) -> int:
        """Reset every connection; return their number."""
        return int(self._call(self._reset()))

    def swallow(self) -> None:
        """Drop all traffic without closing connections."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def freeze(self) -> None:
        """Drop the traffic of the present connections; new ones work."""
        self._call(self._freeze())

    def let_through(self) -> None:
        """Let traffic through again."""
        self._loop.call_soon_threadsafe(self._open.set)
        self._loop.call_soon_threadsafe(self._thawed.set)

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _reset(self) -> int:
        writers = list(self._writers)
        for writer in writers:
            raw_socket: socket.socket | None = writer.get_extra_info("socket")
            if raw_socket is not None:
                with contextlib.suppress(OSError):  # closed meanwhile
                    raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        return len(writers) // 2

    async def _freeze(self) -> None:
        self._thawed.clear()
        self._frozen = set(self._writers)

    async def _stop(self) -> None:
        self._server.close()
        self._open.set()
        self._thawed.set()
        await self._reset()
        for pump in tuple(self._pumps):
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        assert me is not None
        self._pumps.add(me)
        self.accepted += 1
        try:
            await self._open.wait()
            there, back = await asyncio.open_connection(self._host, self._port)
            self._writers |= {writer, back}
            try:
                await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
            finally:
                self._writers -= {writer, back}
                back.close()
        except OSError:
            pass  # the server is away
        finally:
            self._pumps.discard(me)
            writer.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._open.wait()
                if writer in self._frozen:
                    await self._thawed.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
