"""Histories of the embedded engine in Temporal's own Python SDK, command line and web UI."""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
import temporalio.worker
from temporalio.client import WorkflowHistory

from hourglass.client import Client
from hourglass.replay import History, Replayer
from hourglass.testing import DevServer
from hourglass.worker import Worker
from interop import ours, theirs
from servers import temporal_cli

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def targets(quick_server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Connection targets of the engines."""
    file = tmp_path_factory.mktemp("elsewhere") / "runs.db"
    return {"memory": "local:", "file": f"local:{file}", "server": quick_server.target}


@pytest.fixture(scope="module")
def relay_histories(targets: dict[str, str]) -> dict[str, tuple[str, History]]:
    """Id and history of the same workflow on each engine, with activities, signals and a timer."""
    histories: dict[str, tuple[str, History]] = {}
    for name, target in targets.items():
        with Client.connect(target) as client:
            queue = f"elsewhere-{uuid.uuid4().hex[:8]}"
            with Worker(client, queue, workflows=[ours.relay], activities=[ours.act]):
                handle = client.start_workflow(ours.relay, task_queue=queue)
                for word in ("one", "two"):
                    handle.signal("baton", word)
                handle.result(timeout=60)
            histories[name] = (handle.id, handle.history())
    return histories


@pytest.mark.parametrize("engine", ["memory", "file"])
def test_temporalio_replays_history_of_the_embedded_engine(
    engine: str, relay_histories: dict[str, tuple[str, History]]
) -> None:
    workflow_id, history = relay_histories[engine]

    async def replay(text: str) -> BaseException | None:
        replayer = temporalio.worker.Replayer(
            workflows=[theirs.Relay], workflow_runner=temporalio.worker.UnsandboxedWorkflowRunner()
        )
        read = WorkflowHistory.from_json(workflow_id, text)
        result = await replayer.replay_workflow(read, raise_on_replay_failure=False)
        return result.replay_failure

    text = history.to_json()
    assert asyncio.run(replay(text)) is None
    # The replayer does detect differences: it rejects another activity in this place.
    assert asyncio.run(replay(text.replace('"name": "act"', '"name": "other"'))) is not None


def show_command(workflow_id: str, address: str) -> list[str]:
    """Return the command that shows a history as JSON."""
    names = ["--workflow-id", workflow_id, "--address", address]
    return [temporal_cli(), "workflow", "show", *names, "--output", "json"]


def field_names(event: dict[str, Any]) -> set[str]:
    """Return the names of an event's fields and attributes, without those that only a server writes."""
    (attributes,) = [key for key in event if key.endswith("EventAttributes")]
    book_keeping = {"taskId", "version", "workerMayIgnore", "userMetadata"}
    return {key for key in event if key not in book_keeping} | {attributes}


@pytest.mark.parametrize("engine", ["memory", "file"])
def test_exported_history_has_the_json_format_of_the_temporal_cli(
    engine: str, relay_histories: dict[str, tuple[str, History]], targets: dict[str, str], tmp_path: Path
) -> None:
    """The web UI of Temporal imports this format."""
    workflow_id, _ = relay_histories["server"]
    shown = subprocess.run(
        show_command(workflow_id, targets["server"]),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    printed = json.loads(shown.stdout)
    file = tmp_path / "history.json"
    relay_histories[engine][1].to_file(file)
    written = json.loads(file.read_text(encoding="utf-8"))
    assert printed.keys() == written.keys() == {"events"}
    names = {event["eventType"]: field_names(event) for event in printed["events"]}
    for event in written["events"]:
        assert event["eventId"].isdigit()
        assert event["eventTime"].endswith("Z")
        assert field_names(event) == names[event["eventType"]]


def test_history_exported_by_the_temporal_cli_replays(
    relay_histories: dict[str, tuple[str, History]], targets: dict[str, str], tmp_path: Path
) -> None:
    workflow_id, _ = relay_histories["server"]
    file = tmp_path / "shown.json"
    with file.open("w", encoding="utf-8") as stream:
        subprocess.run(
            show_command(workflow_id, targets["server"]),
            stdout=stream,
            timeout=60,
            check=True,
        )
    with Replayer(workflows=[ours.relay]) as replayer:
        assert replayer.replay(History.from_file(file)).ok
