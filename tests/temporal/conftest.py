"""One real dev server for all tests of this directory that need one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hourglass.testing import DevServer, dev_server


@pytest.fixture(scope="session")
def server() -> Iterator[DevServer]:
    """A dev server in memory, with a search attribute."""
    with dev_server(search_attributes={"Colour": "Keyword"}) as running:
        yield running
