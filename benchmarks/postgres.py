"""A temporary PostgreSQL server for the peers that need one: the installed version, in a temporary folder.

PostgreSQL refuses to run as root: in that case its processes run as `postgres` or `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .report import NotHere


def _programs() -> Path:
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if programs:
        return programs[-1].parent
    installed = shutil.which("initdb")
    if installed is None:
        raise NotHere("PostgreSQL is not installed (apt-get install postgresql)")
    return Path(installed).parent


def _user() -> int | None:
    if os.getuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise NotHere("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")


@contextmanager
def postgres() -> Iterator[str]:
    """Start a server with default settings (every commit is synced) on a Unix socket. Yield the URL of a database."""
    programs, user = _programs(), _user()
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-pg-") as name:
        folder = Path(name).resolve()
        if user is not None:
            os.chown(folder, user, -1)
            if not _can_enter(folder, user):
                raise NotHere(f"PostgreSQL's user cannot enter {folder}")
        data = folder / "data"
        _run(user, programs / "initdb", "-D", str(data), "-U", "bench", "--auth=trust", "--no-instructions")
        options = f"-k {folder} -c listen_addresses='' -c unix_socket_permissions=0777 -c max_connections=200"
        _run(
            user,
            programs / "pg_ctl",
            "-D",
            str(data),
            "-o",
            options,
            "-l",
            str(folder / "log"),
            "-w",
            "start",
        )
        try:
            yield f"postgresql://bench@/postgres?host={folder}"
        finally:
            _run(user, programs / "pg_ctl", "-D", str(data), "-m", "immediate", "-w", "stop")


def size_of(url: str) -> int:
    """Return the size of all databases in bytes after a checkpoint, excluding the write-ahead log."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        row = connection.execute("SELECT sum(pg_database_size(datname)) FROM pg_database").fetchone()
    assert row is not None
    return int(row[0])


def _can_enter(folder: Path, user: int) -> bool:
    return subprocess.run(["test", "-x", str(folder)], user=user).returncode == 0


def _run(user: int | None, *command: object) -> None:
    process = subprocess.run(
        [str(argument) for argument in command],
        user=user,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        cwd="/",
    )
    if process.returncode:
        raise NotHere(f"PostgreSQL does not start: {process.stderr.strip()[-300:]}")
