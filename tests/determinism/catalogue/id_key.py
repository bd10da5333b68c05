"""Sorted by address: stable until the process ends."""

from __future__ import annotations

from dataclasses import dataclass

from hourglass import workflow

from .acts import note


@dataclass
class Item:
    name: str


@workflow.defn(name="id_key")
def bug(names: list[str]) -> list[str]:
    items = [Item(name) for name in names]
    items.sort(key=id)  # caught: check HG112
    return [note(item.name) for item in items]


arguments = (["a", "b", "c"],)
