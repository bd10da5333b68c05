"""A thread of its own: what it has done when the workflow looks is anybody's guess."""

from __future__ import annotations

import threading

from hourglass import workflow

from .acts import note


@workflow.defn(name="own_thread")
def bug() -> str:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append("something"))  # caught: check HG108
    thread.start()  # caught: check HG108, watch
    thread.join()  # caught: check HG108, watch
    return note(",".join(found))
