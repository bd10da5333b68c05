"""The two sides of an owner's socket: a server with answers set by a test, and connections to it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hourglass._contract import service as s
from hourglass._contract.handle import HandleConfig
from hourglass._embedded.activations.handle import EngineHandle
from hourglass._embedded.multiprocess import remote
from hourglass._embedded.multiprocess.remote import ConnectionLost, OwnerConnection
from hourglass._embedded.multiprocess.serving import OwnerInfo, OwnerServer
from hourglass.errors import ServiceError

Answer = Callable[[s.Request[Any]], Awaitable[Any]]


@asynccontextmanager
async def serve(path: Path, answer: Answer, **changes: Any) -> AsyncIterator[OwnerServer]:
    """Serve the requests of other processes for the owner of a file."""

    def no_worker(process_id: int, namespace: int, process_key: int, config: HandleConfig) -> EngineHandle:
        raise ServiceError("no worker may work here", status="PERMISSION_DENIED")

    server = OwnerServer(
        OwnerInfo(str(path), changes.get("namespace", "default"), os.getpid(), 5, answer, no_worker, answer)
    )
    await server.start()
    try:
        yield server
    finally:
        server.stop_listening()
        server.disconnect_all()


async def reach(path: Path, namespace: str = "default") -> OwnerConnection:
    """Connect to the owner of a file, which must exist."""
    found = await connect(path, namespace)
    assert found is not None
    return found


async def connect(path: Path, namespace: str = "default", **options: Any) -> OwnerConnection | None:
    """Connect to the owner of a file, or return None if there is none."""
    return await remote.connect(str(path), namespace, **options)


def connection_lost(match: str | None = None) -> AbstractContextManager[object]:
    """Expect that a request fails because its connection was lost."""
    return pytest.raises(ConnectionLost, match=match)
