"""Web processes that were forked after connecting, and workers that die under them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .web import PROCESSES, ask_while_owners_die


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_owners_die_under_web_processes(tmp_path: Path) -> None:
    """Every request is answered rightly, once each, by four forked processes, whichever worker owns the file."""
    asked = ask_while_owners_die(tmp_path, kills=3, life=0.1)
    assert not asked.errors, [*asked.errors[:5], (tmp_path / "log").read_text()[-3000:]]
    assert len(asked.takeovers) == 3
    assert 1 <= len(asked.served_by) <= PROCESSES
