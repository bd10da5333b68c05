"""A call of another package."""

from __future__ import annotations

from hourglass import workflow

from .acts import note
from .far import pricing

# Bug `far_away`: a clock behind two calls, in another module of another package.


@workflow.defn
def far_away() -> str:
    return note(f"{pricing.price(100)} cents")  # caught: verify, replay
