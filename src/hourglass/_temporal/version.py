"""Supported releases of `temporalio`, checked before Core is loaded.

`temporalio.bridge` is documented as unstable and changes between minor releases. An unsupported release fails much
later and in unrelated places, so it is rejected at import.
"""

from __future__ import annotations

import os
import re
from importlib import metadata

from hourglass.errors import UsageError

OLDEST, NEWEST = (1, 34), (1, 35)
"""The oldest and newest minor releases that the contract tests cover.

Use `has` for differences between them: before 1.35 dropping a runtime may wait forever for its threads, and Core's
command for a child has no `versioning_override`. Core of 1.33 writes neither the order nor the event groups into
markers of local activities; with 1.31 no workflow task completes.
"""

WANTED = f'"temporalio>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}"'
_RANGE = " to ".join(dict.fromkeys(f"{major}.{minor}.x" for major, minor in (OLDEST, NEWEST)))
ANYWAY = "HOURGLASS_ANY_CORE"


def incompatibility(installed: str | None, anyway: bool) -> str | None:
    """Return the reason why this release of temporalio is not supported, or None if it is. With `anyway`, any
    installed release is accepted.
    """
    if installed is None:
        return f"Temporal targets need the package temporalio, which is not installed: run `pip install {WANTED}`"
    if anyway or OLDEST <= release(installed) <= NEWEST:
        return None
    return (
        f"temporalio {installed} is installed, but this release of Hourglass needs {_RANGE}: run `pip install "
        f"{WANTED}`, or set {ANYWAY}=1 to use the installed version at your own risk"
    )


def release(version: str) -> tuple[int, int]:
    """Return the major and minor number of a version, or (0, 0) if it has none."""
    parts = re.match(r"(\d+)\.(\d+)(?=\.|$|[a-z])", version)
    return (int(parts[1]), int(parts[2])) if parts else (0, 0)


def installed() -> str | None:
    """Return the installed release of temporalio, or None."""
    try:
        return metadata.version("temporalio")
    except metadata.PackageNotFoundError:
        return None


def has(since: tuple[int, int]) -> bool:
    """Whether the installed temporalio is this release or newer; True for an unparsable version."""
    current = release(installed() or "")
    return current == (0, 0) or current >= since


def check() -> None:
    """Raise `UsageError` if the installed temporalio is not supported."""
    reason = incompatibility(installed(), os.environ.get(ANYWAY, "") not in ("", "0"))
    if reason is not None:
        raise UsageError(reason)
