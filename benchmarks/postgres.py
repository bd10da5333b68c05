"""A PostgreSQL of its own for the peers that want one: Debian's, in a folder that goes away with the block.

PostgreSQL does not run as root: there its processes belong to `postgres`, or to `nobody`.
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
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
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
    raise NotHere("PostgreSQL does not run as root, and there is no other user")


@contextmanager
def postgres() -> Iterator[str]:
    """A server with its usual settings (every commit is synced), on a socket in its own folder; gives the URL of a database."""
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
    """The bytes of the tables and indexes of such a server, after a checkpoint; its log has a size of its own."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        found = connection.execute("SELECT sum(pg_database_size(datname)) FROM pg_database").fetchone()
    assert found is not None
    return int(found[0])


def _can_enter(folder: Path, user: int) -> bool:
    return subprocess.run(["test", "-x", str(folder)], user=user).returncode == 0


def _run(user: int | None, *command: object) -> None:
    done = subprocess.run(
        [str(each) for each in command],
        user=user,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        cwd="/",
    )
    if done.returncode:
        raise NotHere(f"PostgreSQL does not start: {done.stderr.strip()[-300:]}")
