"""A temporary PostgreSQL server for tests, if PostgreSQL is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def postgres_programs() -> Path | None:
    """Return the directory of PostgreSQL's programs (the newest version), or None."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if installed:
        return installed[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).parent if on_path else None


@contextmanager
def postgres() -> Iterator[str]:
    """Start a PostgreSQL server on a socket in a temporary directory. Yield its SQLAlchemy URL."""
    programs = postgres_programs()
    assert programs is not None
    home = Path(tempfile.mkdtemp(prefix="hgpg-", dir="/tmp"))  # a socket's path must be short
    # PostgreSQL refuses to run as root.
    user = pwd.getpwnam("postgres") if os.getuid() == 0 else None
    if user is not None:
        os.chown(home, user.pw_uid, user.pw_gid)

    def run(*command: str) -> None:
        subprocess.run(
            command,
            check=True,
            cwd=home,
            user=user.pw_uid if user else None,
            group=user.pw_gid if user else None,
            extra_groups=[] if user else None,
            stdout=subprocess.DEVNULL,
        )

    data = str(home / "data")
    try:
        run(str(programs / "initdb"), "--auth=trust", "--username=hourglass", "--no-sync", "-D", data)
        options = f"-c listen_addresses='' -k {home} -c fsync=off -c max_connections=30"
        run(str(programs / "pg_ctl"), "-D", data, "-w", "-l", str(home / "log"), "-o", options, "start")
        try:
            yield f"postgresql+psycopg://hourglass@/postgres?host={home}"
        finally:
            run(str(programs / "pg_ctl"), "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)
