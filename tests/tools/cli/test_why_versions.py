"""`hourglass why` with worker versions: the version that a run needs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from command_line import main
from hourglass import Client, Worker, workflow
from hourglass.testing import DevServer
from hourglass.worker import VersioningBehavior, WorkerDeploymentConfig, WorkerDeploymentVersion

Capture = pytest.CaptureFixture[str]

go = workflow.Channel("go", str)


@workflow.defn(versioning_behavior=VersioningBehavior.PINNED)
def waits_pinned() -> None:
    go.receive()


def versioned_worker(client: Client, deployment: str, build_id: str) -> Worker:
    config = WorkerDeploymentConfig(WorkerDeploymentVersion(deployment, build_id))
    return Worker(client, deployment, workflows=[waits_pinned], deployment_config=config)


def wait_for_finding(target: str, workflow_id: str, text: str, capsys: Capture) -> dict[str, Any]:
    """Repeat `hourglass why` until the first finding contains the text."""
    deadline = time.monotonic() + 30
    while True:
        capsys.readouterr()
        main(["why", workflow_id, "--target", target, "--json"])
        found: dict[str, Any] = json.loads(capsys.readouterr().out)["findings"][0]
        if text in found["what"]:
            return found
        assert time.monotonic() < deadline, found


def check_missing_current_version(client: Client, target: str, deployment: str, capsys: Capture) -> None:
    """Check the finding before a version is current, and after."""
    with versioned_worker(client, deployment, "1"):
        handle = client.start_workflow(waits_pinned, task_queue=deployment)
        found = wait_for_finding(target, handle.id, "waits for a worker without a version", capsys)
        assert found["cause"] == "no_version"
        assert found["details"] == [f"workers of version {deployment}.1 poll the queue"]
        client.set_current_version(deployment, "1")
        wait_for_finding(target, handle.id, "waits for signal", capsys)


def test_why_reports_that_no_worker_version_is_current(tmp_path: Path, capsys: Capture) -> None:
    target = f"local:{tmp_path / 'v.db'}"
    with Client.connect(target) as client:
        check_missing_current_version(client, target, "shop", capsys)


@pytest.mark.server
def test_why_reports_that_no_worker_version_is_current_on_a_server(
    quick_server: DevServer, capsys: Capture
) -> None:
    with Client.connect(quick_server.target) as client:
        check_missing_current_version(client, quick_server.target, "why-versions", capsys)


def test_why_command_names_the_version_that_a_pinned_or_new_run_waits_for(
    tmp_path: Path, capsys: Capture
) -> None:
    target = f"local:{tmp_path / 'v.db'}"
    with Client.connect(target) as client:
        with versioned_worker(client, "shop", "1"):
            client.set_current_version("shop", "1")
            handle = client.start_workflow(waits_pinned, task_queue="shop")
            wait_for_finding(target, handle.id, "waits for signal", capsys)
        with versioned_worker(client, "shop", "2"):
            new = client.start_workflow(waits_pinned, task_queue="shop")
            found = wait_for_finding(target, new.id, "waits for version shop.1, which is current", capsys)
            assert (
                found["do"][0]["text"] == "Start a worker of version shop.1, with the code of that version:"
            )
            client.set_current_version("shop", "2")
            handle.signal(go, "")
            found = wait_for_finding(target, handle.id, "is pinned to version shop.1", capsys)
            assert found["details"] == ["workers of version shop.2 poll the queue"]
