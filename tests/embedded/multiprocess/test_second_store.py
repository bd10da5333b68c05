"""A second kind of store is one package: several processes share it with the same locks and sockets as SQLite's file."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.polled import Polled

from hourglass._contract import workflows as wf
from hourglass._contract.handle import Handle, HandleBroken, HandleConfig, WorkKind
from hourglass._embedded import multiprocess as sharing
from hourglass._embedded.multiprocess.file_handle import FileHandle
from hourglass._embedded.multiprocess.shared_file import SharedFile
from hourglass._embedded.store.store import Store, StoreOpener
from hourglass._evaluator.commands import CompleteRun, Succeeded
from hourglass._evaluator.specs import StartSpec
from hourglass.converter import Payload
from hourglass.errors import StorageError

from ..memory_world import run_async
from ..store.simple_store import Disk, SimpleStore
from ..store.store_conformance import CHECKS, Check

PLACES = {"store", "search_attributes", "fork_safety"}
"""The parts of the package `store` that the multiprocess code may use: the interface, and forks."""


class DumbOpener:
    """Opens simple stores by path. Implements `StoreOpener`."""

    def __init__(self) -> None:
        self.disks: dict[str, Disk] = {}
        self.full = ""
        self.opened: list[str] = []

    def check(self, path: str) -> None:
        pass

    def open(self, path: str, namespace: str, *, briefly: bool = False) -> Store:
        if self.full:
            raise StorageError(self.full, status="RESOURCE_EXHAUSTED")
        self.opened.append("briefly" if briefly else "to own")
        return SimpleStore(self.disks.setdefault(path, Disk()))

    def open_read_only(self, path: str, why: StorageError) -> Store:
        self.opened.append("read only")
        return SimpleStore(self.disks[path])


class OfDumb:
    """A place for the conformance suite."""

    def __init__(self, opener: StoreOpener, path: Path) -> None:
        self._opener = opener
        self._path = str(path)

    def open(self) -> Store:
        return self._opener.open(self._path, "default")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_second_store_passes_the_conformance_suite(check: Check, tmp_path: Path) -> None:
    run_async(lambda: check(OfDumb(DumbOpener(), tmp_path / "a")))


def start(workflow_id: str) -> wf.StartWorkflow:
    spec = StartSpec(task_queue="q")
    return wf.StartWorkflow(workflow_id=workflow_id, workflow_type="t", request_id=workflow_id, spec=spec)


async def complete_one(handle: FileHandle) -> str:
    activation = await handle.poll_activation()
    done = CompleteRun(Payload(b'"done"', "json/plain"))
    await handle.complete_activation(Succeeded(activation.run_id, (done,)))
    return activation.run_id


async def poll_on(handle: Handle) -> None:
    while True:
        await handle.poll_activation()


async def test_several_processes_share_the_second_store(tmp_path: Path) -> None:
    """The requests are sent without an owner, with one, over its socket, and after a takeover."""
    opener = DumbOpener()
    one, two, client = (SharedFile(opener, str(tmp_path / "a"), "default") for _ in range(3))
    started = await client.calls.call(start("without an owner"))
    assert opener.opened == ["briefly"]
    handle = Polled(await one.open_handle(HandleConfig(task_queue="q", identity="one")))
    assert await complete_one(handle) == started.run_id
    handle.pause(WorkKind.WORKFLOWS)
    second = Polled(await two.open_handle(HandleConfig(task_queue="q", identity="two")))
    assert (one.status().role, two.status().role[:11]) == ("owner", "working for")
    over_the_socket = await client.calls.call(start("over the socket"))
    assert await complete_one(second) == over_the_socket.run_id, "the work comes over it, too"
    afterwards = await client.calls.call(start("afterwards"))
    waiting = asyncio.create_task(client.calls.call(wf.WaitForClose(workflow_id="afterwards")))
    handle.initiate_shutdown()
    await handle.finalize()
    with pytest.raises(HandleBroken):
        await poll_on(second)
    third = Polled(await two.open_handle(HandleConfig(task_queue="q", identity="two")))
    assert await complete_one(third) == afterwards.run_id
    assert isinstance(await waiting, wf.RunCompleted)
    assert two.status().role == "owner"
    assert opener.opened == ["briefly", "to own", "to own"]
    for each in (two, client, one):
        await each.close()


async def test_reads_are_answered_by_a_read_only_store(tmp_path: Path) -> None:
    """The opener cannot provide a writable store, and writes are rejected with the reason."""
    opener = DumbOpener()
    path = tmp_path / "a"
    path.touch()
    client = SharedFile(opener, str(path), "default")
    await client.calls.call(start("w"))
    opener.full = "its disk has no space"
    await asyncio.sleep(0.01)  # the store is closed after a moment without work
    assert (await client.calls.call(wf.CountWorkflows())).count == 1
    with pytest.raises(StorageError, match="its disk has no space"):
        await client.calls.call(start("another"))
    assert opener.opened == ["briefly", "read only"]
    await client.close()


def test_only_one_module_imports_a_store() -> None:
    folder = Path(str(sharing.__file__)).parent
    imports = {(path.name, name) for path in folder.glob("*.py") for name in _of_stores(path)}
    assert imports == {("connection.py", "sqlite.store")}


def test_second_store_imports_only_the_interface() -> None:
    path = Path(__file__).parents[1] / "store" / "simple_store.py"
    assert set(_of_stores(path)) == {"memory"}
    assert "sqlite" not in path.read_text().lower()


def _of_stores(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hourglass._embedded.store"):
            name = (node.module or "").removeprefix("hourglass._embedded.store").lstrip(".")
            yield from {name or each.name for each in node.names} - PLACES
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if "sqlite" in alias.name)
