"""Temporal dev servers for the parts that need one."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from temporalio.client import Client

from hourglass.testing import dev_server as start_dev_server

from .report import NotHere


@contextmanager
def running_server() -> Iterator[str]:
    """Start a server for child processes and yield its address."""
    try:
        stack = start_dev_server()
        server = stack.__enter__()
    except Exception as error:
        raise NotHere(f"the Temporal dev server does not start: {error}") from error
    try:
        yield server.target
    finally:
        stack.__exit__(None, None, None)


@asynccontextmanager
async def dev_server() -> AsyncIterator[tuple[Client, int]]:
    """Start a server on a free port; yield a client and the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("temporal")), "server", "start-dev", "--headless"]
    command += ["--port", str(port), "--log-level", "never"]
    server = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    client = await Client.connect(f"127.0.0.1:{port}")
                    break
                except RuntimeError:
                    await asyncio.sleep(0.2)
        yield client, port
    finally:
        server.terminate()
        await server.wait()
