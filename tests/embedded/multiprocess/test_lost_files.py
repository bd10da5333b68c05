"""A file that is replaced while an owner and a peer have it open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.polled import Polled

import hourglass
from hourglass._contract import workflows as wf
from hourglass._contract.handle import HandleBroken
from hourglass._embedded.store.store import FileLost

from ..store.run_changes import rows_of_sound_file
from .test_hosts import config, hosts, start


async def poll_on(handle: Any) -> None:
    while True:
        await handle.poll_activation()


def stored_workflow_ids(path: Path) -> set[str]:
    return set(rows_of_sound_file(path, "SELECT workflow_id FROM runs"))


def saved_copy(path: Path) -> Path:
    (copy,) = path.parent.glob(f"{path.name}.saved-*")
    return copy


async def test_backup_moved_over_the_file_stops_all_workers(tmp_path: Path) -> None:
    """The new file is not opened; the old one is saved."""
    path, backup = tmp_path / "a.db", tmp_path / "backup.db"

    async with hosts(path, 2) as (host_a, host_b):
        owners = Polled(await host_a.open_handle(config()))
        others = Polled(await host_b.open_handle(config()))
        await host_a.calls.call(start("before"))
        hourglass.backup(path, backup)
        await host_b.calls.call(start("after"))
        os.replace(backup, path)
        with pytest.raises(FileLost, match=r"was replaced by another file.*saved-"):
            await host_a.calls.call(start("late"))
        for handle in (owners, others):
            with pytest.raises(HandleBroken):
                await poll_on(handle)
        for host in (host_a, host_b):
            with pytest.raises(FileLost):
                await host.open_handle(config())
            with pytest.raises(FileLost):
                await host.calls.call(wf.DescribeWorkflow(workflow_id="before"))
    assert stored_workflow_ids(path) == {"before"}
    assert stored_workflow_ids(saved_copy(path)) >= {"before", "after"}


async def test_backup_copied_into_the_file_stops_all_workers(tmp_path: Path) -> None:
    """A peer does not take over the restored file, which has the same inode."""
    path, backup = tmp_path / "a.db", tmp_path / "backup.db"

    async with hosts(path, 2) as (host_a, host_b):
        handles = [Polled(await host.open_handle(config())) for host in (host_a, host_b)]
        await host_a.calls.call(start("before"))
        hourglass.backup(path, backup)
        await host_b.calls.call(start("after"))
        path.write_bytes(backup.read_bytes())
        with pytest.raises(FileLost, match="another program has written to it"):
            await host_a.calls.call(start("late"))
        for handle in handles:
            with pytest.raises(HandleBroken):
                await poll_on(handle)
        with pytest.raises(FileLost, match=r"the owner of .* reported"):
            await host_b.open_handle(config())
    assert stored_workflow_ids(path) == {"before"}
