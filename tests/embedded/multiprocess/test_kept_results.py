"""An activity's result survives the owner's death as long as the process that ran the activity lives."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shared.db"


@pytest.fixture
def client(path: Path) -> Iterator[Client]:
    with Client.connect(f"local:{path}") as client:
        yield client


def executions(folder: Path) -> dict[str, list[tuple[str, int]]]:
    """What each activity logged, by its name: `began` or `ended`, and the process."""
    found: dict[str, list[tuple[str, int]]] = {}
    log = folder / "log"
    for line in log.read_text().splitlines() if log.exists() else ():
        what, name, process_id = line.split()
        found.setdefault(name, []).append((what, int(process_id)))
    return found


def current_owner(children: list[Child]) -> Child:
    owners: list[Child] = []

    def look() -> bool:
        owners[:] = [child for child in children if child.ask("standing") == "owner"]
        return bool(owners)

    until(look, "no process owns the file")
    return owners[0]


@pytest.mark.parametrize("attempts", [1, 3])
@pytest.mark.parametrize("owners", [1, 2], ids=["the owner", "the owner and the next one"])
def test_results_survive_the_owners_death_just_after_the_activity_ended(
    path: Path, client: Client, tmp_path: Path, owners: int, attempts: int
) -> None:
    """No attempt whose process lives fails or is executed again, however briefly before the kill it ended. A next owner that is
    killed at once, too, has not heard of all processes that outlived the first.
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

            def one_ended_elsewhere(names: list[str] = names, owner: int = owner.pid) -> bool:
                found = executions(tmp_path)
                return any(
                    what == "ended" and process_id != owner
                    for name in names
                    for what, process_id in found.get(name, ())
                )

            until(one_ended_elsewhere, "no activity ends outside the owner's process")
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
                ran = executions(tmp_path).get(name, ())  # by no process, if the owner had just been given it
                began = [process_id for what, process_id in ran if what == "began"]
                assert not failed or set(began) <= killed, f"{name} failed, and its process lives"
                assert set(began[:-1]) <= killed, f"{name} was executed again, and its process lives"


@pytest.mark.parametrize("workers", [1, 2])
def test_attempts_survive_a_failure_of_their_engine(
    path: Path, client: Client, tmp_path: Path, workers: int
) -> None:
    """The log is deleted, so that the owner's engine is restarted, there or in another process: its attempts are not lost."""
    folders = [tmp_path / f"attempts-{number}" for number in range(6)]
    with ExitStack() as stack:
        children = [stack.enter_context(ready_worker(path)) for _ in range(workers)]
        for folder in folders:
            folder.mkdir()
        handles = [client.start_workflow(work.holding, str(folder), id=folder.name) for folder in folders]
        until(lambda: all((folder / "attempt-1").exists() for folder in folders), "not all attempts begin")
        owner = current_owner(children)
        (tmp_path / "shared.db-wal").unlink()
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
    """Results that wait for a full disk when the engine fails are kept for the next one: no attempt is executed again."""
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
