"""Limits are kept by the embedded engine itself, or by workflows: those of Temporal servers, and where a codec keeps the engine
from reading what runs say.
"""

from __future__ import annotations

import pytest

from hourglass._embedded.limits.bursts import Bursts
from hourglass._embedded.limits.keepers import Keepers


@pytest.fixture
def by_workflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workflows keep the limits, as if the engine could not read what runs and clients say."""
    monkeypatch.setattr(Keepers, "read", lambda *_: None)
    monkeypatch.setattr(Bursts, "debounce", lambda *_: None)


@pytest.fixture(params=["engine", "workflow"])
def kept_by(request: pytest.FixtureRequest) -> str:
    """Who keeps the limits."""
    if request.param == "workflow":
        request.getfixturevalue("by_workflow")
    return str(request.param)
