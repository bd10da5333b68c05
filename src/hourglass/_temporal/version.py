"""Which releases of `temporalio` we work with. It speaks before Core is loaded, and knows nothing of it.

`temporalio.bridge` calls itself unstable and changes between minor releases; a wrong one fails in strange
places much later, so it is refused by name at once.
"""

from __future__ import annotations

import os
import re
from importlib import metadata

from hourglass.errors import UsageError

OLDEST, NEWEST = (1, 34), (1, 35)
"""The minor releases that the tests of the contract hold for, the first and the last. What differs is asked for by `has`: before
1.35 a runtime that is dropped may wait for ever for its threads, and Core's command for a child has no `versioning_override`.
Core of 1.33 writes no order into the markers of local activities, and none of the groups of their events; with 1.31 no workflow
task is completed.
"""

WANTED = f'"temporalio>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"'
_RANGE = " to ".join(dict.fromkeys(f"{major}.{minor}.x" for major, minor in (OLDEST, NEWEST)))
ANYWAY = "HOURGLASS_ANY_CORE"


def refusal(installed: str | None, anyway: bool) -> str | None:
    """Why this release of temporalio is not good enough, or None. `anyway` lets any release pass."""
    if installed is None:
        return f"Temporal targets need the package temporalio, which is not installed: pip install {WANTED}"
    if anyway or OLDEST <= release(installed) <= NEWEST:
        return None
    return (
        f"temporalio {installed} is installed, and this release of Hourglass works with {_RANGE}: "
        f"pip install {WANTED}, or set {ANYWAY}=1 to try it at your own risk"
    )


def release(version: str) -> tuple[int, int]:
    """The major and minor number of a release; (0, 0) for what has none."""
    parts = re.match(r"(\d+)\.(\d+)(?=\.|$|[a-z])", version)
    return (int(parts[1]), int(parts[2])) if parts else (0, 0)


def installed() -> str | None:
    """The installed release of temporalio, or None."""
    try:
        return metadata.version("temporalio")
    except metadata.PackageNotFoundError:
        return None


def has(since: tuple[int, int]) -> bool:
    """Whether the installed temporalio is of this release or a newer one; True for one that is let pass though it is unknown."""
    found = release(installed() or "")
    return found == (0, 0) or found >= since


def check() -> None:
    """Raise `UsageError` where the installed temporalio is not one that we know."""
    reason = refusal(installed(), os.environ.get(ANYWAY, "") not in ("", "0"))
    if reason is not None:
        raise UsageError(reason)
