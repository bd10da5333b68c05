"""A shard from the hash of a string, which every process computes with a seed of its own."""

from __future__ import annotations

from hourglass import workflow

from .acts import note


@workflow.defn(name="hash_bucket")
def bug(order: str) -> str:
    shard = hash(order)  # caught: check HG112
    return note(f"shard {shard}")  # caught: replay


arguments = ("order-1",)
