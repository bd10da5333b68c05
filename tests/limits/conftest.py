"""Fixtures that select who keeps the limits: the embedded engine, or keeper workflows.

Keeper workflows are used on Temporal servers, and where a codec hides the messages of runs from the engine.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hourglass._embedded.limits.bursts import Bursts
from hourglass._embedded.limits.keepers import Keepers
from hourglass.testing import Environment


@pytest.fixture
def by_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let keeper workflows keep the limits, as if the engine could not read the messages of runs and clients."""
    monkeypatch.setattr(Keepers, "read", lambda *_: None)
    monkeypatch.setattr(Bursts, "debounce", lambda *_: None)


@pytest.fixture(params=["engine", "workflow"])
def kept_by(request: pytest.FixtureRequest) -> str:
    if request.param == "workflow":
        request.getfixturevalue("by_workflow")
    return str(request.param)


@pytest.fixture
def env() -> Iterator[Environment]:
    with Environment() as env:
        yield env
