"""Containers with one volume on one machine: processes with their own host names, process ids and paths.

`unshare` creates the namespaces, if this process may use it.
"""

from __future__ import annotations

import functools
import subprocess
from contextlib import ExitStack
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


def _container(name: str, volume: Path, role: str, processes_before: int = 0) -> Child:
    """Start a process that sees the volume at its own path. Its process id is above those of `processes_before` ended
    processes.
    """
    mounted = volume.parent / name
    mounted.mkdir()
    setup = (
        'hostname "$1"; mount --bind "$2" "$3"; for _ in $(seq "$4"); do (exit); done; shift 4; "$@"; exit $?'
    )
    within = (*_UNSHARE, "sh", "-ec", setup, "sh", name, str(volume), str(mounted), str(processes_before))
    return Child(role, mounted / f"orders{'-of-a-long-name' * 8}.db", within=within)


@pytest.mark.skipif(not _may_unshare(), reason="this process may make no namespaces")
def test_containers_share_a_file_on_a_volume(tmp_path: Path) -> None:
    """The second takes over when the first is killed; a client outside is served by both."""
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


@pytest.mark.skipif(not _may_unshare(), reason="this process may make no namespaces")
def test_attempts_in_other_containers_survive_the_owners_death(tmp_path: Path) -> None:
    """The next owner cannot see processes of other containers, and keeps their attempts until they claim them."""
    volume = tmp_path / "volume"
    volume.mkdir()
    with ExitStack() as stack:
        workers: list[Child] = []
        for name, processes_before in (("one", 0), ("two", 40), ("three", 90)):
            workers.append(stack.enter_context(_container(name, volume, "worker", processes_before)))
            assert workers[-1].line() == "ready"
        client = stack.enter_context(Client.connect(f"local:{next(volume.glob('*.db'))}"))
        folders = [tmp_path / f"attempts-{number}" for number in range(9)]
        for folder in folders:
            folder.mkdir()
        handles = [client.start_workflow(work.holding, str(folder), id=folder.name) for folder in folders]

        def first_attempts() -> dict[Path, int]:
            """Return the process of each first attempt by its folder, once all have begun."""
            began = {
                folder: int(found.read_text() or 0)
                for folder in folders
                if (found := folder / "attempt-1").exists()
            }
            return began if len(began) == len(folders) and all(began.values()) else {}

        process_of = until(first_attempts, "not all attempts begin")
        workers[0].kill()
        owner_process = min(process_of.values())
        assert len(set(process_of.values())) == 3
        until(
            lambda: any(worker.ask("standing") == "owner" for worker in workers[1:]), "no process takes over"
        )
        for folder in folders:
            (folder / "go").touch()
        for folder, handle in zip(folders, handles, strict=True):
            handle.result(timeout=60)
            if process_of[folder] != owner_process:
                assert not (folder / "attempt-2").exists(), "executed again, and its process lives"
