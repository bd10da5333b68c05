"""An activity's result survives the owner's death as long as the process that ran the activity lives."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.durability import shim
from tests.effort import cases
from tests.waiting import until

from hourglass import Client
from hourglass.errors import HourglassError

from . import work
from .children import Child, ready_worker

KILLS = cases(5, 100)


def executions(folder: Path) -> dict[str, list[tuple[str, int]]]:
    """Return the log of each activity by its name: `began` or `ended`, and the process."""
    log_by_name: dict[str, list[tuple[str, int]]] = {}
    log = folder / "log"
    for line in log.read_text().splitlines() if log.exists() else ():
        event, name, process_id = line.split()
        log_by_name.setdefault(name, []).append((event, int(process_id)))
    return log_by_name


def current_owner(children: list[Child]) -> Child:
    owners: list[Child] = []

    def look() -> bool:
        owners[:] = [child for child in children if child.ask("standing") == "owner"]
        return bool(owners)

    until(look, "no process owns the file")
    return owners[0]


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("owners", [1, 2], ids=["the owner", "the owner and the next one"])
def test_results_survive_the_death_of_the_owner(
    path: Path, client: Client, tmp_path: Path, owners: int, attempts: int
) -> None:
    """No attempt whose process lives fails or runs again. A next owner that is killed immediately does not know all
    surviving processes.
    """
    chance = random.Random(attempts)
    killed: set[int] = set()
    with ExitStack() as stack:
        children = [stack.enter_context(ready_worker(path)) for _ in range(4)]
        for kill in range(KILLS // owners):
            owner = current_owner(children)
            names = [f"{kill}-{number}" for number in range(6)]
            handles = {
                name: client.start_workflow(work.logging, str(tmp_path), name, attempts, id=name)
                for name in names
            }

            def ended_in_another_process(names: list[str] = names, owner: int = owner.pid) -> bool:
                log_by_name = executions(tmp_path)
                return any(
                    event == "ended" and process_id != owner
                    for name in names
                    for event, process_id in log_by_name.get(name, ())
                )

            until(ended_in_another_process, "no activity ends outside the owner's process")
            for number in range(owners):
                owner = current_owner(children)
                # A random moment for the kill, not a wait.
                time.sleep(chance.uniform(0, 0.003 if number == 0 else 0.01))
                owner.kill()
                killed.add(owner.pid)
                children.remove(owner)
            children += [stack.enter_context(ready_worker(path)) for _ in range(owners)]
            for name, handle in handles.items():
                try:
                    assert handle.result(timeout=60) == name
                    failed = False
                except HourglassError:
                    failed = True
                log_entries = executions(tmp_path).get(
                    name, ()
                )  # by no process, if the owner had just been given it
                starts = [process_id for event, process_id in log_entries if event == "began"]
                assert not failed or set(starts) <= killed, f"{name} failed, and its process lives"
                assert set(starts[:-1]) <= killed, f"{name} was executed again, and its process lives"


@pytest.mark.parametrize("workers", [1, 2])
def test_attempts_survive_a_failure_of_their_engine(
    path: Path, client: Client, tmp_path: Path, workers: int
) -> None:
    """The WAL is deleted, so that the engine is reopened, there or in another process."""
    folders = [tmp_path / f"attempts-{number}" for number in range(6)]
    with ExitStack() as stack:
        children = [stack.enter_context(ready_worker(path)) for _ in range(workers)]
        for folder in folders:
            folder.mkdir()
        handles = [client.start_workflow(work.holding, str(folder), id=folder.name) for folder in folders]
        until(lambda: all((folder / "attempt-1").exists() for folder in folders), "not all attempts begin")
        owner = current_owner(children)
        path.with_name(f"{path.name}-wal").unlink()
        until(lambda: "-wal or its index was deleted" in "".join(owner.log), "the owner does not notice")
        current_owner(children)
        for folder in folders:
            (folder / "go").touch()
        for folder, handle in zip(folders, handles, strict=True):
            handle.result(timeout=60)
            assert (folder / "executions").read_text() == "attempt 1\n", (
                "executed again, and its process lives"
            )


@pytest.mark.skipif(not shim.is_here(), reason="needs Linux and a C compiler")
def test_results_survive_a_sync_error_of_their_process(
    path: Path, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results wait for a full disk when the engine fails, and are stored by the next engine."""
    disk = shim.Shim(tmp_path / "control", path, seed=1)
    for name, value in disk.environment.items():
        monkeypatch.setenv(name, value)
    folders = [tmp_path / f"attempts-{number}" for number in range(6)]
    with ready_worker(path) as owner:
        for folder in folders:
            folder.mkdir()
        handles = [client.start_workflow(work.holding, str(folder), id=folder.name) for folder in folders]
        until(lambda: all((folder / "attempt-1").exists() for folder in folders), "not all attempts begin")
        disk.tell("disk-full", 1)
        for folder in folders:
            (folder / "go").touch()
        until(lambda: disk.hits("disk-full") > 0, "nothing is written")
        time.sleep(2.5)  # the owner asks once a second whether results are durable
        disk.tell("sync-error", 3)
        disk.tell("disk-full", 0)
        until(lambda: "is restarted" in "".join(owner.log), "the engine does not fail")
        for folder, handle in zip(folders, handles, strict=True):
            handle.result(timeout=60)
            assert (folder / "executions").read_text() == "attempt 1\n", (
                "executed again, and its process lives"
            )
