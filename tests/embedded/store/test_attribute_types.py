"""Search attributes are known from their first use: their types are kept with the file, and hold for all that comes after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hourglass import Client
from hourglass.converter import SearchAttributeKey
from hourglass.errors import ServiceError


def start(client: Client, attributes: Any) -> None:
    """Start a workflow that nobody runs."""
    client.start_workflow("any", task_queue="idle", search_attributes=attributes)


@pytest.mark.parametrize("target", ["memory", "file"])
def test_first_value_determines_the_attribute_type(target: str, tmp_path: Path) -> None:
    """A number where a text was is refused, with the type that it must have; on a file also after it was closed."""
    where = "local:" if target == "memory" else f"local:{tmp_path / 'runs.db'}"
    with Client.connect(where) as client:
        start(client, {"Region": "eu", "Weight": 1.5})
        start(client, [SearchAttributeKey.for_text("Region").value_set("us")])  # the value counts
        with pytest.raises(ServiceError, match=r"Region of type Keyword: 5 .*its first use"):
            start(client, {"Region": 5})
        assert client.count_workflows("Region = 'eu'") == 1
    if target == "file":
        with Client.connect(where) as client:
            with pytest.raises(ServiceError, match="Weight of type Double: heavy"):
                start(client, {"Weight": "heavy"})
            start(client, {"Weight": 3})


def test_rejected_start_determines_no_attribute_type() -> None:
    """Only what was taken says a type."""
    with Client.connect("local:") as client:
        with pytest.raises(ServiceError):
            start(client, {"Region": 5, "WorkflowId": "mine"})
        start(client, {"Region": "eu"})


def test_number_and_size_of_attributes_are_limited() -> None:
    """A hundred attributes, two kilobytes each and forty together: what is beyond is refused."""
    with Client.connect("local:") as client:
        start(client, {f"N{number}": number for number in range(100)})
        with pytest.raises(ServiceError, match="number of search attributes 101 exceeds limit 100"):
            start(client, {f"N{number}": number for number in range(101)})
        start(client, {"Text": "x" * 2046})
        with pytest.raises(ServiceError, match="value size 2049 exceeds size limit 2048"):
            start(client, {"Text": "x" * 2047})
        with pytest.raises(ServiceError, match="total size of search attributes"):
            start(client, {f"T{number}": "x" * 2000 for number in range(21)})
