"""The engines on which interceptors are tested."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hourglass.testing import DevServer


@pytest.fixture(params=["memory", "file", pytest.param("server", marks=pytest.mark.server)])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the target of each engine."""
    if request.param == "server":
        server: DevServer = request.getfixturevalue("quick_server")
        yield server.target
    elif request.param == "memory":
        yield "local:"
    else:
        yield f"local:{tmp_path_factory.mktemp('i') / 'runs.db'}"
