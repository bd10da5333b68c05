"""The dev server shared by the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from asynchronous import run_coroutine_test
from hourglass.testing import DevServer, dev_server

from . import live


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine functions with a time limit."""
    return run_coroutine_test(pyfuncitem, live.run)


@pytest.fixture(scope="session")
def server() -> Iterator[DevServer]:
    """A dev server in memory, with a search attribute."""
    with dev_server(search_attributes={"Colour": "Keyword"}) as running:
        yield running
