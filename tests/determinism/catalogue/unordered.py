"""Orders that differ between processes, or change meanwhile."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from hourglass import workflow

from .acts import fetch, note

# Bug `as_completed_set`: tasks in a set: those that are done at the same time come out in the order of
# their addresses.


@workflow.defn
def as_completed_set(names: list[str]) -> list[str]:
    tasks = {fetch.start(name) for name in names}
    return [note(str(task.result())) for task in workflow.as_completed(tasks)]  # caught: check HG104


# Bug `changing_dict`: a loop that waits, over a dict that a signal changes meanwhile.


@workflow.defn
class changing_dict:
    def __init__(self) -> None:
        self.items: dict[str, int] = {"a": 1, "b": 2}

    @workflow.run
    def run(self) -> int:
        workflow.sleep(10)
        for name in self.items:  # caught: check HG115, parked
            workflow.sleep(10)
            note(name)
        return len(self.items)

    @workflow.signal
    def add(self, name: str) -> None:
        self.items[name] = 0


def drive_changing_dict(environment: Any, handle: Any) -> None:
    environment.after(seconds=15).signal(handle, "add", "c")


# Bug `dict_from_set`: a dict remembers the order of insertion: here, that of a set.


@workflow.defn
def dict_from_set(names: list[str]) -> int:
    wanted: set[str] = {name.lower() for name in names}
    sizes = dict.fromkeys(wanted, 0)  # caught: check HG104
    for name in sizes:
        sizes[name] = fetch(name)  # caught: replay
    return sum(sizes.values())


# Bug `directory_order`: files in the order in which the file system lists them, and as many as there are by
# then.


@workflow.defn
def directory_order(folder: str) -> list[str]:
    names = os.listdir(f"{folder}/inbox")  # caught: check HG106, watch
    return [note(name) for name in names]  # caught: replay


# Bug `hash_bucket`: a shard from the hash of a string, which every process computes with a seed of its own.


@workflow.defn
def hash_bucket(order: str) -> str:
    shard = hash(order)  # caught: check HG112
    return note(f"shard {shard}")  # caught: replay


# Bug `id_key`: sorted by address: stable until the process ends.


@dataclass
class Item:
    name: str


@workflow.defn
def id_key(names: list[str]) -> list[str]:
    items = [Item(name) for name in names]
    items.sort(key=id)  # caught: check HG112
    return [note(item.name) for item in items]


# Bug `set_order`: names without duplicates, in whatever order the process's hash seed gives.

NAMES = [f"name-{number}" for number in range(20)]


@workflow.defn
def set_order() -> list[str]:
    results = []
    for name in set(NAMES):  # caught: check HG104
        results.append(note(name))  # caught: replay
    return results


ARGUMENTS = {
    "as_completed_set": (["a", "bb", "ccc"],),
    "dict_from_set": ([f"Name-{number}" for number in range(20)],),
    "directory_order": ("{folder}",),
    "hash_bucket": ("order-1",),
    "id_key": (["a", "b", "c"],),
}


DRIVERS = {"changing_dict": drive_changing_dict}
