"""The order of Protobuf maps as workflow code sees them."""

from __future__ import annotations

import random

from temporalio.api.common.v1 import Header

from hourglass._temporal.protos import payload_map_from, put_payload_map
from hourglass.converter import Payload


def test_payload_maps_are_sorted_by_name_whatever_their_insertion_order() -> None:
    names = [f"name-{number:02}" for number in range(40)]
    for seed in range(5):
        header = Header()
        shuffled = random.Random(seed).sample(names, len(names))
        put_payload_map(header.fields, {name: Payload(b"1", "json/plain") for name in shuffled})
        assert list(payload_map_from(header.fields)) == names
