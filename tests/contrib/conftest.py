from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from hourglass import Client

from .agent_calls import call_counts
from .databases import postgres, postgres_programs


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The address of one PostgreSQL server for all tests of this process."""
    if postgres_programs() is None:
        pytest.skip("PostgreSQL is not installed here")
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'orders.db'}"
        return
    url = request.getfixturevalue("postgres_url")
    yield url
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Client.connect("local:") as connected:
        yield connected


@pytest.fixture(params=["memory", pytest.param("server", marks=pytest.mark.server)])
def any_client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of the embedded engine, and one of a Temporal server."""
    target = "local:" if request.param == "memory" else request.getfixturevalue("quick_server").target
    with Client.connect(target) as connected:
        yield connected


@pytest.fixture(autouse=True)
def _reset_call_counts() -> None:
    call_counts.clear()
