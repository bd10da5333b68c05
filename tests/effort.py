"""The number of random cases that tests draw; HOURGLASS_THOROUGH=1 selects more."""

from __future__ import annotations

import os

THOROUGH = os.environ.get("HOURGLASS_THOROUGH", "") not in ("", "0")


def cases(usual: int, thorough: int) -> int:
    """Return the number of random cases to draw."""
    return thorough if THOROUGH else usual
