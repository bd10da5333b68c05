"""Lists show workflow ids with any characters unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from hourglass.client import Client


@pytest.mark.parametrize("name", ["a\x00b", "q\"uo'te\\", "\\u0000", "\x01 \n \U0001f600"])
def test_workflow_id_with_special_characters_is_listed_unchanged(tmp_path: Path, name: str) -> None:
    """A null character must not cut it off."""
    with Client.connect(f"local:{tmp_path}/runs.db") as client:
        client.start_workflow("any", id=name)
        assert [summary.id for summary in client.list_workflows()] == [name]
