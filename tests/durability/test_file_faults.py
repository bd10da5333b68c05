"""Replaced, linked and damaged files of running workers: a few here, many by `python -m tests.durability.file_faults`."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.effort import THOROUGH

from . import file_faults

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs record locks and mounts of Linux")

SHORT = {
    file_faults.NAMES: ("linked_and_allowed",),
    file_faults.REPLACED: ("replaced", "copied_into"),
    file_faults.LOGS: ("log_deleted",),
}


def is_possible(name: str) -> bool:
    """Return whether this fault can be tested here; mounting needs permission."""
    return name != "mounted" or not subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode


@pytest.mark.parametrize("group", file_faults.FILE_FAULTS)
def test_replaced_linked_or_damaged_file_loses_no_acknowledged_start_silently(group: str) -> None:
    wanted = file_faults.FILE_FAULTS[group] if THOROUGH else SHORT[group]
    names = [name for name in wanted if is_possible(name)]
    violations = [
        line for name in names for _, lines in file_faults.run_rounds(group, 1, 1, name) for line in lines
    ]
    assert not violations, "\n".join(violations)
