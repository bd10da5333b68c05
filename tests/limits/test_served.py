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
def test_a_worker_knows_them(name: str) -> None:
    """They are found by their names, whatever the worker was given."""
    assert Resolver(workflows=[mine], built_in=BUILT_IN).workflow(name).name == name


def test_there_are_no_others() -> None:
    """The list above is all, and other names of ours are unknown."""
    assert sorted(BUILT_IN) == ["hourglass.debounce", "hourglass.slots", "hourglass.throttle"]
    with pytest.raises(UnknownTypeError):
        Resolver(workflows=[mine], built_in=BUILT_IN).workflow("hourglass.other")


def test_they_are_loaded_when_they_are_asked_for() -> None:
    """A process that never imported the limits loads them with the first run of one, and not for any other name."""
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
def test_they_move_on_with_every_deploy(name: str) -> None:
    """A keeper outlives the version of the run that started it: it must not stay behind with workers that are gone."""
    assert BUILT_IN[name]().versioning_behavior is VersioningBehavior.AUTO_UPGRADE
