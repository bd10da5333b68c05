"""A step that is to happen "only once", and so never fits its own history."""

from __future__ import annotations

from hourglass import workflow

from .acts import charge, note


@workflow.defn(name="replay_branch")
def bug() -> str:
    if not workflow.is_replaying():  # caught: check HG114
        note("only once")
    return charge(100)  # caught: replay
