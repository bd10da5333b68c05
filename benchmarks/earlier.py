"""An earlier version of Hourglass as one more subject: a checkout of it, given by `--against FOLDER`.

Its processes run the benchmarks of this version, with the package of that one: what both offer must be enough.
"""

from __future__ import annotations

import os
from pathlib import Path

SUFFIX = ", earlier"
"""What the name of a subject ends with, where the earlier version is meant."""

_VARIABLE = "HOURGLASS_BENCHMARKS_AGAINST"


def set_folder(folder: Path | None) -> None:
    """Measure against this checkout, or against none; children of this process know it, too."""
    if folder is None:
        os.environ.pop(_VARIABLE, None)
        return
    if not (folder / "src" / "hourglass" / "__init__.py").is_file():
        raise SystemExit(f"{folder} is no checkout of Hourglass: it has no src/hourglass")
    os.environ[_VARIABLE] = str(folder.resolve())


def with_earlier(*subjects: str) -> dict[str, str]:
    """These subjects, and, if an earlier version was given, the same of that one; by the name to show, what to run."""
    shown = {name: name for name in subjects}
    if _VARIABLE in os.environ:
        shown |= {f"{name}{SUFFIX}": name for name in subjects if name.startswith("Hourglass")}
    return shown


def environment(shown: str) -> dict[str, str]:
    """The environment of a subject's process: where it finds the package."""
    if not shown.endswith(SUFFIX):
        return dict(os.environ)
    return os.environ | {"PYTHONPATH": str(Path(os.environ[_VARIABLE]) / "src")}
