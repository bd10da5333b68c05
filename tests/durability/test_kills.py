"""Workers killed at random instants under load: what was acknowledged holds, and nothing that was recorded is done again."""

from __future__ import annotations

from pathlib import Path

from .audit import complaints
from .storm import Size, Storm


def test_killed_again_and_again(tmp_path: Path) -> None:
    """No start, signal or result is lost or doubled, every order ends right, the file is sound, every history replays."""
    storm = Storm(tmp_path, Size(workflows=60, kills=12), seed=1)
    told = storm.rage()
    found = complaints(told, storm.path, storm.notes)
    assert not found, "\n".join([*found[:20], storm.log.read_text()[-4000:]])
    assert told.kills == 12
    assert len(told.receipts) >= 60
