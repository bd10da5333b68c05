"""How hard tests search that can search for ever: enough for every change, and more with HOURGLASS_THOROUGH=1.

Must not know what is searched. What a test shows is the same either way; only the number of its random cases differs.
"""

from __future__ import annotations

import os

THOROUGH = os.environ.get("HOURGLASS_THOROUGH", "") not in ("", "0")


def cases(usual: int, thorough: int) -> int:
    """How many random cases to try."""
    return thorough if THOROUGH else usual
