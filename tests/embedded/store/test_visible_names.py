"""Lists show the names of runs as they were given, whatever characters are in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hourglass.client import Client


@pytest.mark.parametrize("name", ["a\x00b", "q\"uo'te\\", "\\u0000", "\x01 \n \U0001f600"])
def test_id_with_a_null_character_is_listed(tmp_path: Path, name: str) -> None:
    """One with a zero in it, too: cut off there it would be the id of another workflow."""
    with Client.connect(f"local:{tmp_path}/runs.db") as client:
        client.start_workflow("any", id=name)
        assert [each.id for each in client.list_workflows()] == [name]
