"""Every engine that opens handles: in memory, on a file, in another process, with a codec, and a server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.embedded.multiprocess.hosts import host

from hourglass._contract.handle import Handle, HandleConfig
from hourglass._embedded.api.connection import connect_memory
from hourglass._embedded.multiprocess.connection import connect_file
from hourglass._temporal.connection import connect
from hourglass._worker.handles.codec_edge import CodecConnection
from hourglass.converter import Codec, default_converter

Call = Callable[[Any], Awaitable[Any]]
Open = Callable[[HandleConfig], Awaitable[Handle]]


class IdentityCodec(Codec):
    """A codec that leaves payloads as they are."""

    def encode(self, payloads: Any) -> Any:
        return list(payloads)

    def decode(self, payloads: Any) -> Any:
        return list(payloads)


@asynccontextmanager
async def opened(kind: str, path: Path, target: str) -> AsyncIterator[tuple[Open, Call]]:
    """Yield two functions: one opens a handle of this kind, the other calls its engine."""
    if kind == "memory":
        connection = await connect_memory()
        yield connection.open_handle, connection.call
        await connection.close()
    elif kind == "file":
        file = await connect_file(str(path))
        yield file.open_handle, file.call
        await file.close()
    elif kind == "another process":
        owner, other = (host(path) for _ in range(2))
        await owner.open_handle(HandleConfig(task_queue="the owner's"))
        yield other.open_handle, other.calls.call
        await other.close()
        await owner.close()
    elif kind == "codec":
        inner = CodecConnection(await connect_memory(), IdentityCodec(), default_converter)
        yield inner.open_handle, inner.call
        await inner.close()
    else:
        server = await connect(target)
        yield server.open_handle, server.call
        await server.close()
