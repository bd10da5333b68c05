"""Files in the order in which the file system lists them, and as many as there are by then."""

from __future__ import annotations

import os

from hourglass import workflow

from .acts import note


@workflow.defn(name="directory_order")
def bug(folder: str) -> list[str]:
    names = os.listdir(f"{folder}/inbox")  # caught: check HG106, watch
    return [note(name) for name in names]  # caught: replay


arguments = ("{folder}",)
