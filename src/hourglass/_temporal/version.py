"""Which releases of `temporalio` we work with. It speaks before Core is loaded, and knows nothing of it.

`temporalio.bridge` calls itself unstable and changes between minor releases; a wrong one fails in strange
places much later, so it is refused by name at once.
"""

from __future__ import annotations

import os
from importlib import metadata

from hourglass.errors import UsageError

KNOWN = "1.35"
ANYWAY = "HOURGLASS_ANY_CORE"


def refusal(installed: str | None, anyway: bool) -> str | None:
    """Why this release of temporalio is not good enough, or None. `anyway` lets any release pass."""
    wanted = f'"temporalio>={KNOWN},<1.36"'
    if installed is None:
        return f"Temporal targets need the package temporalio, which is not installed: pip install {wanted}"
    if anyway or installed == KNOWN or installed.startswith(KNOWN + "."):
        return None
    return (
        f"temporalio {installed} is installed, and this release of Hourglass works with {KNOWN}.x: "
        f"pip install {wanted}, or set {ANYWAY}=1 to try it at your own risk"
    )


def installed() -> str | None:
    """The installed release of temporalio, or None."""
    try:
        return metadata.version("temporalio")
    except metadata.PackageNotFoundError:
        return None


def check() -> None:
    """Raise `UsageError` where the installed temporalio is not one that we know."""
    reason = refusal(installed(), os.environ.get(ANYWAY, "") not in ("", "0"))
    if reason is not None:
        raise UsageError(reason)
