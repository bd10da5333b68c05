"""Pytest fixtures, available wherever Hourglass and pytest are installed.

- `hourglass_env`: an `Environment` for each test, with workflows on virtual time.
- `hourglass_async_env`: an `AsyncEnvironment` for each `async def` test, with any plugin that runs these tests.
- `hourglass_server`: a real Temporal dev server for the test session, started on first use.
- `hourglass_client`: a client of this server, for each test.
- `hourglass_task_queue`: a unique task queue name for each test, so that tests do not receive each other's tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

__all__ = [
    "hourglass_async_env",
    "hourglass_client",
    "hourglass_env",
    "hourglass_server",
    "hourglass_task_queue",
]

if TYPE_CHECKING:
    from hourglass.client import Client
    from hourglass.testing import AsyncEnvironment, DevServer, Environment


@pytest.fixture
def hourglass_env() -> Iterator[Environment]:
    """Return an open `Environment` on virtual time."""
    from hourglass.testing import Environment

    with Environment() as env:
        yield env


@pytest.fixture
def hourglass_async_env() -> Iterator[AsyncEnvironment]:
    """Workflows on virtual time, for `async def` tests. Needs no event loop fixture, because the environment is opened
    without await.
    """
    from hourglass.testing import Environment

    env = Environment().open_async()
    try:
        yield env
    finally:
        env.close()


@pytest.fixture(scope="session")
def hourglass_server() -> Iterator[DevServer]:
    """A real in-memory Temporal dev server on a free loopback port."""
    from hourglass.testing import dev_server

    with dev_server() as server:
        yield server


@pytest.fixture
def hourglass_client(hourglass_server: DevServer) -> Iterator[Client]:
    """A client of the Temporal dev server."""
    from hourglass.client import Client

    with Client.connect(hourglass_server.target, namespace=hourglass_server.namespace) as client:
        yield client


@pytest.fixture
def hourglass_task_queue() -> str:
    """A task queue name that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
