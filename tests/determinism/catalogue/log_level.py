"""A step that is only done where the log is verbose."""

from __future__ import annotations

import logging

from hourglass import workflow

from .acts import charge, note

logger = logging.getLogger("determinism.catalogue")


@workflow.defn(name="log_level")
def bug() -> str:
    if logger.isEnabledFor(logging.DEBUG):  # caught: check HG114
        logger.debug("state: %s", note("the state, for the log"))
    return charge(100)  # caught: replay
