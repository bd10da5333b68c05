"""The workflows that Hourglass itself brings along, which every worker serves: those that keep limits.

A program that debounces from its web process has workers that never heard of `hourglass.limits`; they serve it all the
same. What a name from the wire may load here is one module of ours, by a constant.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from hourglass._engine.definition import WorkflowDefinition

PREFIX = "hourglass."


def built_in(name: str) -> WorkflowDefinition | None:
    """The workflow of ours that has this type name; None for all others."""
    if not name.startswith(PREFIX):
        return None
    # They stand above us, and most workers never need them.
    found: Mapping[str, WorkflowDefinition] = import_module("hourglass.limits._served").SERVED
    return found.get(name)
