"""State of a module, which all runs of a process share."""

from __future__ import annotations

import functools

from hourglass import workflow

from .acts import charge, fetch, note

# Bug `cached_activity`: `functools.cache` around an activity: what is remembered is not asked for, and the
# history asked for it.


@functools.cache  # caught: check HG113
def size(name: str) -> int:
    return fetch(name)  # caught: replay


@workflow.defn
def cached_activity() -> str:
    return charge(size("lamp"))  # caught: verify


# Bug `global_counter`: a number for each order, counted in a global: other runs and other processes count,
# too.

counter = 0


@workflow.defn
def global_counter() -> str:
    global counter
    counter += 1  # caught: check HG110
    return note(f"order {counter}")  # caught: check HG110, verify, replay


# Bug `module_cache`: a cache of results of an activity: only the first run of a process asks.

_rates: dict[str, int] = {}


def rate(currency: str) -> int:
    if currency not in _rates:  # caught: check HG110
        _rates[currency] = fetch(currency)  # caught: check HG110, verify, replay
    return _rates[currency]  # caught: check HG110


@workflow.defn
def module_cache() -> int:
    return rate("EUR") + rate("EUR")


EARLIER_RUNS = {"cached_activity": 1, "global_counter": 1, "module_cache": 1}
