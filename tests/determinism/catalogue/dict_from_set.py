"""A dict remembers the order of insertion: here, that of a set."""

from __future__ import annotations

from hourglass import workflow

from .acts import fetch


@workflow.defn(name="dict_from_set")
def bug(names: list[str]) -> int:
    wanted: set[str] = {name.lower() for name in names}
    sizes = dict.fromkeys(wanted, 0)  # caught: check HG104
    for name in sizes:
        sizes[name] = fetch(name)  # caught: replay
    return sum(sizes.values())


arguments = ([f"Name-{number}" for number in range(20)],)
