"""A cache of results of an activity: only the first run of a process asks."""

from __future__ import annotations

from hourglass import workflow

from .acts import fetch

_rates: dict[str, int] = {}


def rate(currency: str) -> int:
    if currency not in _rates:  # caught: check HG110
        _rates[currency] = fetch(currency)  # caught: check HG110, verify, replay
    return _rates[currency]  # caught: check HG110


@workflow.defn(name="module_cache")
def bug() -> int:
    return rate("EUR") + rate("EUR")


earlier_runs = 1
