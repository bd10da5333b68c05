"""A switch in the environment of the process, which is another one after a deploy."""

from __future__ import annotations

import os

from hourglass import workflow

from .acts import charge, note


@workflow.defn(name="environment")
def bug() -> str:
    if os.environ.get("CATALOGUE") == "first":  # caught: check HG105
        note("strict")
    return charge(100)  # caught: replay
