"""Retention of closed workflows in a file: the option of the client, and of `hourglass worker`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from hourglass import Client, Worker, workflow

from .command import SHOP, Command, until


@workflow.defn
def nods() -> str:
    return "yes"


def ids(target: str) -> list[str]:
    with Client.connect(target) as client:
        return [each.id for each in client.list_workflows()]


def test_retention_option_of_the_client(tmp_path: Path) -> None:
    target = f"local:{tmp_path / 'shop.db'}"
    with Client.connect(target) as client, Worker(client, workflows=[nods]):
        client.execute_workflow(nods, id="kept")
    with Client.connect(target, retention=timedelta(days=1)) as client, Worker(client, workflows=[nods]):
        client.execute_workflow(nods, id="kept-too")
        assert sorted(ids(target)) == ["kept", "kept-too"]
    with Client.connect(target, retention=0) as client, Worker(client, workflows=[nods]):
        until("all are forgotten", lambda: not list(client.list_workflows()))


def test_retention_option_of_the_worker(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    target = f"local:{tmp_path / 'shop.db'}"
    with Client.connect(target) as client, Worker(client, workflows=[nods]):
        client.execute_workflow(nods, id="old")
    assert ids(target) == ["old"]
    with Command(
        "worker", "shop", "--no-parent", "--retention", "0", "--target", target, cwd=tmp_path
    ) as worker:
        worker.wait_running_alone()
        until("it is forgotten", lambda: ids(target) == [])
