"""`backup`: a copy of an engine's file, taken while it is in use.

Must not know: runs, events, the store. Invariants: the file is only read, by SQLite, whoever owns it; what is
copied is one moment of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from hourglass._embedded.stores import database, inherited
from hourglass._embedded.stores.file_copy import copy_database
from hourglass._embedded.stores.standstill import WORK

__all__ = ["backup"]


def backup(
    file: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Copy the file of an embedded engine while it is in use, by this process or others.

        hourglass.backup("orders.db", "/backups/orders-monday.db")

    The copy holds everything that was acknowledged before the call, passes SQLite's integrity check, and can be
    opened as `local:` file itself. A file that is there already is only replaced with `overwrite=True`.
    `progress` hears again and again how many of how many pages are copied. Raises `StorageError`.
    """
    path = os.path.abspath(os.fspath(file))
    with WORK:
        connection = database.connect_read_only(path)
    try:
        copy_database(
            connection,
            os.path.abspath(os.fspath(dest)),
            overwrite=overwrite,
            source=path,
            progress=progress,
        )
    finally:
        with WORK:
            inherited.close(connection)
