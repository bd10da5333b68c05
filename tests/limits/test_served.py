"""Who serves the workflows behind the limits: every worker, without being told."""

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
def mine() -> None:
    """A workflow of the author's."""


@pytest.mark.parametrize("name", ["hourglass.debounce", "hourglass.slots", "hourglass.throttle"])
def test_worker_serves_built_in_workflows(name: str) -> None:
    """They are found by their names, whatever the worker's workflows."""
    assert Resolver(workflows=[mine], built_in=BUILT_IN).workflow(name).name == name


def test_no_other_built_in_workflows() -> None:
    """Other names with our prefix are unknown."""
    assert sorted(BUILT_IN) == ["hourglass.debounce", "hourglass.slots", "hourglass.throttle"]
    with pytest.raises(UnknownTypeError):
        Resolver(workflows=[mine], built_in=BUILT_IN).workflow("hourglass.other")


def test_built_in_workflows_are_imported_on_demand() -> None:
    """A process that never imported the limits imports them with the first run of one."""
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
def test_keepers_upgrade_to_the_current_version(name: str) -> None:
    """A keeper outlives the version of the run that started it, and must not stay with workers that are gone."""
    assert BUILT_IN[name]().versioning_behavior is VersioningBehavior.AUTO_UPGRADE
