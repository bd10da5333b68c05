"""The supported releases of temporalio."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from temporalio.bridge.proto.workflow_commands import StartChildWorkflowExecution

from hourglass._evaluator.specs import ChildWorkflowSpec
from hourglass._temporal import specs, version
from hourglass.client import AutoUpgradeVersioningOverride
from hourglass.errors import UsageError


@pytest.mark.parametrize("installed", ["1.34.0", "1.34.1", "1.35", "1.35.0", "1.35.7", "1.35.0rc1"])
def test_supported_temporalio_releases_are_accepted(installed: str) -> None:
    assert version.incompatibility(installed, anyway=False) is None


@pytest.mark.parametrize("installed", ["1.33.9", "1.36.0", "1.350.0", "2.0", "1.3", "unknown"])
def test_unsupported_temporalio_releases_are_rejected_unless_overridden(installed: str) -> None:
    reason = version.incompatibility(installed, anyway=False)
    assert reason is not None
    assert installed in reason
    assert 'pip install "temporalio>=1.34,<1.36"' in reason
    assert version.ANYWAY in reason
    assert version.incompatibility(installed, anyway=True) is None


def test_missing_temporalio_is_reported_even_if_the_version_check_is_disabled() -> None:
    assert "not installed" in (version.incompatibility(None, anyway=True) or "")


def test_version_check_reads_the_environment_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    version.check()
    monkeypatch.setattr(version, "installed", lambda: "9.9")
    monkeypatch.delenv(version.ANYWAY, raising=False)
    with pytest.raises(UsageError, match=r"9\.9"):
        version.check()
    monkeypatch.setenv(version.ANYWAY, "0")
    with pytest.raises(UsageError, match=r"9\.9"):
        version.check()
    monkeypatch.setenv(version.ANYWAY, "1")
    version.check()


def test_package_dependency_matches_the_version_check() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert version.WANTED.strip('"') in project["dependencies"]


def test_child_option_unsupported_by_the_installed_temporalio_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(version, "installed", lambda: "1.34.2")
    monkeypatch.setattr(specs, "installed", version.installed)
    newer = {"versioning_override": (1, 35)}
    names = {"id_reuse_policy": "workflow_id_reuse_policy"}
    child = specs.SpecIn(ChildWorkflowSpec, StartChildWorkflowExecution, names, since=newer)
    message = StartChildWorkflowExecution()
    child.put(message, ChildWorkflowSpec(id_reuse_policy=2))
    assert message.workflow_id_reuse_policy == 2
    with pytest.raises(
        UsageError, match=r"versioning_override needs temporalio 1\.35 or newer, not 1\.34\.2"
    ):
        child.put(message, ChildWorkflowSpec(versioning_override=AutoUpgradeVersioningOverride()))


@pytest.mark.parametrize(
    ("installed", "expected"), [("1.34.9", False), ("1.35.0", True), ("2.0", True), ("unknown", True)]
)
def test_feature_check_compares_the_installed_release(
    monkeypatch: pytest.MonkeyPatch, installed: str, expected: bool
) -> None:
    """A release without a number counts as new."""
    monkeypatch.setattr(version, "installed", lambda: installed)
    assert version.has((1, 35)) is expected
