"""Clients of both engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hourglass.client import Client
from hourglass.testing import DevServer


@pytest.fixture(params=["local", pytest.param("server", marks=pytest.mark.server)])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of the embedded engine, and one of a real server."""
    target = "local:"
    if request.param == "server":
        server: DevServer = request.getfixturevalue("quick_server")
        target = server.target
    with Client.connect(target) as client:
        yield client
