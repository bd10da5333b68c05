"""Files as people here call them: below the working folder by the short name, elsewhere by the whole one."""

from __future__ import annotations

import os
from pathlib import Path


def near(file: str) -> str:
    """A file's name, seen from here."""
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere; or the working folder is gone
        return file


def near_place(place: str) -> str:
    """A file and line, seen from here."""
    file, colon, line = place.rpartition(":")
    return f"{near(os.path.normpath(file))}{colon}{line}" if file else place
