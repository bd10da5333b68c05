"""A clock behind two calls, in another module of another package."""

from __future__ import annotations

from hourglass import workflow

from .acts import note
from .far import pricing


@workflow.defn(name="far_away")
def bug() -> str:
    return note(f"{pricing.price(100)} cents")  # caught: verify, replay
