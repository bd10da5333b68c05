"""An entity that continues as new after each message, whose owner is killed again and again: each message counts once."""

from __future__ import annotations

from pathlib import Path

from .entities import Messages


def test_messages_to_an_entity_are_executed_once_across_owner_kills(tmp_path: Path) -> None:
    messages = Messages(tmp_path, kills=6, seed=1)
    report = messages.run(limit=60)
    assert not report.errors, "\n".join([*report.errors[:20], messages.log.read_text()[-4000:]])
    assert report.kills == 6
    assert report.updates >= 30
    assert report.signals >= 30
