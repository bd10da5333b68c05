"""Retention of closed workflows in a file: the option of the client, and of `hourglass worker`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from hourglass import Client, Worker, workflow

from .command import SHOP, Command, until


@workflow.defn
def returns_yes() -> str:
    return "yes"


def workflow_ids(target: str) -> list[str]:
    with Client.connect(target) as client:
        return [each.id for each in client.list_workflows()]


def test_client_retention_option_deletes_expired_workflows_only(tmp_path: Path) -> None:
    target = f"local:{tmp_path / 'shop.db'}"
    with Client.connect(target) as client, Worker(client, workflows=[returns_yes]):
        client.execute_workflow(returns_yes, id="kept")
    with (
        Client.connect(target, retention=timedelta(days=1)) as client,
        Worker(client, workflows=[returns_yes]),
    ):
        client.execute_workflow(returns_yes, id="kept-too")
        assert sorted(workflow_ids(target)) == ["kept", "kept-too"]
    with Client.connect(target, retention=0) as client, Worker(client, workflows=[returns_yes]):
        until("all are forgotten", lambda: not list(client.list_workflows()))


def test_worker_retention_option_deletes_expired_workflows(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    target = f"local:{tmp_path / 'shop.db'}"
    with Client.connect(target) as client, Worker(client, workflows=[returns_yes]):
        client.execute_workflow(returns_yes, id="old")
    assert workflow_ids(target) == ["old"]
    with Command(
        "worker", "shop", "--no-parent", "--retention", "0", "--target", target, cwd=tmp_path
    ) as worker:
        worker.wait_until_ready()
        until("it is forgotten", lambda: workflow_ids(target) == [])
