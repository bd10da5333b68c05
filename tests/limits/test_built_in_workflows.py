"""The built-in workflows that keep limits, which every worker serves."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hourglass import workflow
from hourglass._built_in import BUILT_IN
from hourglass._worker.resolver import Resolver
from hourglass.errors import UnknownTypeError
from hourglass.workflow import VersioningBehavior


@workflow.defn
def own_workflow() -> None: ...


@pytest.mark.parametrize("name", ["hourglass.debounce", "hourglass.slots", "hourglass.throttle"])
def test_worker_resolves_built_in_workflows_by_name(name: str) -> None:
    assert Resolver(workflows=[own_workflow], built_in=BUILT_IN).workflow(name).name == name


def test_unknown_name_with_the_built_in_prefix_is_rejected() -> None:
    assert sorted(BUILT_IN) == ["hourglass.debounce", "hourglass.slots", "hourglass.throttle"]
    with pytest.raises(UnknownTypeError):
        Resolver(workflows=[own_workflow], built_in=BUILT_IN).workflow("hourglass.other")


def test_limits_are_imported_only_when_a_built_in_workflow_runs() -> None:
    program = """
import sys
from hourglass._built_in import BUILT_IN
from hourglass.worker import Worker
assert "checkout" not in BUILT_IN
assert "hourglass.limits" not in sys.modules
assert BUILT_IN["hourglass.slots"]().name == "hourglass.slots"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("name", sorted(BUILT_IN))
def test_keeper_workflows_use_auto_upgrade_versioning(name: str) -> None:
    """A keeper may outlive all workers of the version that started it."""
    assert BUILT_IN[name]().versioning_behavior is VersioningBehavior.AUTO_UPGRADE
