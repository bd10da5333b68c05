"""`datetime.now` under another name, kept in a variable first."""

from __future__ import annotations

from datetime import datetime as moment

from hourglass import workflow

from .acts import note


@workflow.defn(name="aliased_now")
def bug() -> str:
    clock = moment.now
    today = clock().isoformat()  # caught: check HG101, watch
    return note(today)  # caught: verify, replay
