"""A sample for an audit, drawn anew by every execution."""

from __future__ import annotations

import random

from hourglass import workflow

from .acts import note


@workflow.defn(name="randomness")
def bug() -> list[str]:
    picked = random.sample(range(1_000_000), 3)  # caught: check HG102, watch
    return workflow.gather(*[note.start(str(number)) for number in picked])  # caught: verify, replay
