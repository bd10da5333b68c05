"""The default of a worker's `verify` option, from the environment."""

from __future__ import annotations

import pytest

from hourglass._worker.tree.plan import VERIFY_VARIABLE, checked_verify, checked_watch
from hourglass.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"), [("always", "always"), ("off", "off"), ("0.25", 0.25), ("", 0.0), (None, 0.0)]
)
def test_environment_sets_the_default_of_verify(
    monkeypatch: pytest.MonkeyPatch, text: str | None, expected: str | float
) -> None:
    monkeypatch.delenv(VERIFY_VARIABLE, raising=False)
    if text is not None:
        monkeypatch.setenv(VERIFY_VARIABLE, text)
    assert checked_verify(None) == expected


def test_explicit_verify_overrides_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERIFY_VARIABLE, "always")
    assert checked_verify("off") == "off"
    assert checked_verify(0.5) == 0.5


@pytest.mark.parametrize("text", ["sometimes", "2", "-1", "nan"])
def test_invalid_verify_variable_is_rejected_by_name(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VERIFY_VARIABLE, text)
    with pytest.raises(UsageError, match=VERIFY_VARIABLE):
        checked_verify(None)


def test_watch_defaults_to_warn_if_everything_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERIFY_VARIABLE, "always")
    assert checked_watch(None, checked_verify(None)) == "warn"
    assert checked_watch(None, checked_verify("off")) is None


def test_test_suite_sets_verify_to_always() -> None:
    assert checked_verify(None) == "always"
