"""What a worker verifies when it is not told: as the environment says."""

from __future__ import annotations

import pytest

from hourglass._worker.tree.plan import VERIFY_VARIABLE, checked_verify, checked_watch
from hourglass.errors import UsageError


@pytest.mark.parametrize(
    ("text", "chosen"), [("always", "always"), ("off", "off"), ("0.25", 0.25), ("", 0.0), (None, 0.0)]
)
def test_environment_sets_the_default_of_verify(
    monkeypatch: pytest.MonkeyPatch, text: str | None, chosen: str | float
) -> None:
    """A worker that is not told verifies what the variable says, and nothing without it."""
    monkeypatch.delenv(VERIFY_VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(VERIFY_VARIABLE, text)
    assert checked_verify(None) == chosen


def test_explicit_verify_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is told does as it is told."""
    monkeypatch.setenv(VERIFY_VARIABLE, "always")
    assert checked_verify("off") == "off"
    assert checked_verify(0.5) == 0.5


@pytest.mark.parametrize("text", ["sometimes", "2", "-1", "nan"])
def test_invalid_verify_variable_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """The message says where the nonsense comes from."""
    monkeypatch.setenv(VERIFY_VARIABLE, text)
    with pytest.raises(UsageError, match=VERIFY_VARIABLE):
        checked_verify(None)


def test_watcher_follows_the_verify_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where everything is verified because the environment says so, calls are watched as well."""
    monkeypatch.setenv(VERIFY_VARIABLE, "always")
    assert checked_watch(None, checked_verify(None)) == "warn"
    assert checked_watch(None, checked_verify("off")) is None


def test_suite_verifies_everything() -> None:
    """A worker that a test does not tell executes its runs twice."""
    assert checked_verify(None) == "always"
