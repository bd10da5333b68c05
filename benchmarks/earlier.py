"""An earlier version of Hourglass as an additional subject: a checkout passed as `--against FOLDER`.

Its processes run the benchmarks of this version with the package of the earlier one, so they can use only what both offer.
"""

from __future__ import annotations

import os
from pathlib import Path

SUFFIX = ", earlier"
"""Suffix of the subject names of the earlier version."""

_VARIABLE = "HOURGLASS_BENCHMARKS_AGAINST"


def set_folder(folder: Path | None) -> None:
    """Set the checkout of the earlier version, or None. Child processes inherit it."""
    if folder is None:
        os.environ.pop(_VARIABLE, None)
        return
    if not (folder / "src" / "hourglass" / "__init__.py").is_file():
        raise SystemExit(f"{folder} is not a checkout of Hourglass: src/hourglass is missing")
    os.environ[_VARIABLE] = str(folder.resolve())


def with_earlier(*subjects: str) -> dict[str, str]:
    """Return the subject to run by display name, including those of the earlier version if one is set."""
    shown = {name: name for name in subjects}
    if _VARIABLE in os.environ:
        shown |= {f"{name}{SUFFIX}": name for name in subjects if name.startswith("Hourglass")}
    return shown


def environment(shown: str) -> dict[str, str]:
    """Return the environment variables of a subject's process, which select the version of the package."""
    if not shown.endswith(SUFFIX):
        return dict(os.environ)
    return os.environ | {"PYTHONPATH": str(Path(os.environ[_VARIABLE]) / "src")}
