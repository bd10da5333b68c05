"""How temporalio's calls are given: arguments one by one or as `args=[…]`, and None for an option that is not given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hourglass.errors import UsageError


def given_values(given: tuple[Any, ...], args: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments, given one by one or together."""
    if args and given:
        raise UsageError("arguments are given by position or as args=[…], not both")
    return given or tuple(args)


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given, in our terms: None is what they are without it."""
    said = {name: value for name, value in options.items() if value is not None}
    if "priority" in said:
        priority = said.pop("priority")
        said["priority_key"] = priority.priority_key or 0
        said["fairness_key"] = priority.fairness_key or ""
        said["fairness_weight"] = priority.fairness_weight or 0.0
    said.pop("versioning_intent", None)
    return said
