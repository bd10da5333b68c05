"""Two containers with one volume are one machine: processes with a host name, process numbers and paths of their own each.

What Docker makes of namespaces is made here by `unshare`, where this process may.
"""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import pytest
from tests.waiting import until

from hourglass import Client

from . import work
from .children import Child

_UNSHARE = ("unshare", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")


@functools.cache
def _may_unshare() -> bool:
    try:
        return subprocess.run([*_UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _container(name: str, volume: Path, role: str) -> Child:
    """A process that sees the volume at a path of its own, and is number 1, or near it, of a machine of that name."""
    mounted = volume.parent / name
    mounted.mkdir()
    setup = 'hostname "$1"; mount --bind "$2" "$3"; shift 3; exec "$@"'
    within = (*_UNSHARE, "sh", "-ec", setup, "sh", name, str(volume), str(mounted))
    return Child(role, mounted / f"orders{'-of-a-long-name' * 8}.db", within=within)


@pytest.mark.skipif(not _may_unshare(), reason="this process may make no namespaces")
def test_two_containers_on_one_volume(tmp_path: Path) -> None:
    """The second works for the first, and takes over when the first is killed; a client outside is served by both."""
    volume = tmp_path / "volume"
    volume.mkdir()
    with _container("one", volume, "worker") as first:
        assert first.line() == "ready"
        with _container("two", volume, "worker") as second:
            assert second.line() == "ready"
            assert second.ask("standing").startswith("working for process")
            with Client.connect(f"local:{next(volume.glob('*.db'))}") as client:
                assert client.execute_workflow(work.twice, 5, id="by the first") == 7
                first.kill()
                assert client.execute_workflow(work.twice, 6, id="by the second") == 8
                until(lambda: second.ask("standing") == "owner", "the second does not own the file")
