"""The clock, at last."""

from __future__ import annotations

import time as _time


def surcharge() -> int:
    return _time.monotonic_ns()  # caught: check HG101, watch
