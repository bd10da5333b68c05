"""An idempotency key that is another one after a crash, which is when it matters."""

from __future__ import annotations

import uuid

from hourglass import workflow

from .acts import note


@workflow.defn(name="fresh_uuid")
def bug() -> str:
    key = str(uuid.uuid4())  # caught: check HG102, watch
    return note(key)  # caught: verify, replay
