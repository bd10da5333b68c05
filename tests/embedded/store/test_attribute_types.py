"""Types of search attributes are determined by their first values, and stored in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hourglass import Client
from hourglass.converter import SearchAttributeKey
from hourglass.errors import ServiceError


def start_workflow(client: Client, attributes: Any) -> None:
    client.start_workflow("any", task_queue="idle", search_attributes=attributes)


@pytest.mark.parametrize("target", ["memory", "file"])
def test_first_value_determines_the_attribute_type(target: str, tmp_path: Path) -> None:
    where = "local:" if target == "memory" else f"local:{tmp_path / 'runs.db'}"
    with Client.connect(where) as client:
        start_workflow(client, {"Region": "eu", "Weight": 1.5})
        start_workflow(client, [SearchAttributeKey.for_text("Region").value_set("us")])  # the value counts
        with pytest.raises(ServiceError, match=r"Region of type Keyword: 5 .*its first use"):
            start_workflow(client, {"Region": 5})
        assert client.count_workflows("Region = 'eu'") == 1
    if target == "file":
        with Client.connect(where) as client:
            with pytest.raises(ServiceError, match="Weight of type Double: heavy"):
                start_workflow(client, {"Weight": "heavy"})
            start_workflow(client, {"Weight": 3})


def test_rejected_start_determines_no_attribute_type() -> None:
    with Client.connect("local:") as client:
        with pytest.raises(ServiceError):
            start_workflow(client, {"Region": 5, "WorkflowId": "mine"})
        start_workflow(client, {"Region": "eu"})


def test_number_and_size_of_search_attributes_are_limited() -> None:
    with Client.connect("local:") as client:
        start_workflow(client, {f"N{number}": number for number in range(100)})
        with pytest.raises(ServiceError, match="number of search attributes 101 exceeds limit 100"):
            start_workflow(client, {f"N{number}": number for number in range(101)})
        start_workflow(client, {"Text": "x" * 2046})
        with pytest.raises(ServiceError, match="value size 2049 exceeds size limit 2048"):
            start_workflow(client, {"Text": "x" * 2047})
        with pytest.raises(ServiceError, match="total size of search attributes"):
            start_workflow(client, {f"T{number}": "x" * 2000 for number in range(21)})
