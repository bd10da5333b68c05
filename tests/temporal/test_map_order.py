"""Protobuf's maps have no order of their own: what workflow code sees of them is sorted by name."""

from __future__ import annotations

import random

from temporalio.api.common.v1 import Header

from hourglass._temporal.protos import payload_map_from, put_payload_map
from hourglass.converter import Payload


def test_maps_of_payloads_are_sorted_by_name() -> None:
    """However a map was filled, and whatever order protobuf iterates in, the names come sorted."""
    names = [f"name-{number:02}" for number in range(40)]
    for seed in range(5):
        header = Header()
        shuffled = random.Random(seed).sample(names, len(names))
        put_payload_map(header.fields, {name: Payload(b"1", "json/plain") for name in shuffled})
        assert list(payload_map_from(header.fields)) == names
