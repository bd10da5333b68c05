"""Histories of the embedded engine in the hands of others: Temporal's own Python SDK, its command line, its web UI."""

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
    """Where the engines are."""
    file = tmp_path_factory.mktemp("elsewhere") / "runs.db"
    return {"memory": "local:", "file": f"local:{file}", "server": quick_server.target}


@pytest.fixture(scope="module")
def relays(targets: dict[str, str]) -> dict[str, tuple[str, History]]:
    """The same workflow, played on each engine: activities, signals, a timer."""
    played: dict[str, tuple[str, History]] = {}
    for name, target in targets.items():
        with Client.connect(target) as client:
            queue = f"elsewhere-{uuid.uuid4().hex[:8]}"
            with Worker(client, queue, workflows=[ours.relay], activities=[ours.act]):
                handle = client.start_workflow(ours.relay, task_queue=queue)
                for word in ("one", "two"):
                    handle.signal("baton", word)
                handle.result(timeout=60)
            played[name] = (handle.id, handle.history())
    return played


@pytest.mark.parametrize("engine", ["memory", "file"])
def test_temporalio_replays_our_history(engine: str, relays: dict[str, tuple[str, History]]) -> None:
    """`temporalio` reads our JSON and replays it on an equivalent workflow of its own; on another one it complains."""
    workflow_id, history = relays[engine]

    async def replay(text: str) -> BaseException | None:
        replayer = temporalio.worker.Replayer(
            workflows=[theirs.Relay], workflow_runner=temporalio.worker.UnsandboxedWorkflowRunner()
        )
        read = WorkflowHistory.from_json(workflow_id, text)
        result = await replayer.replay_workflow(read, raise_on_replay_failure=False)
        return result.replay_failure

    text = history.to_json()
    assert asyncio.run(replay(text)) is None
    # Not by indulgence: with another activity in its place the same replayer finds fault.
    assert asyncio.run(replay(text.replace('"name": "act"', '"name": "other"'))) is not None


def show(workflow_id: str, address: str) -> list[str]:
    """The command that shows a history as JSON."""
    names = ["--workflow-id", workflow_id, "--address", address]
    return [temporal_cli(), "workflow", "show", *names, "--output", "json"]


def shape(event: dict[str, Any]) -> set[str]:
    """The names of an event's fields and of its attributes, less what only a server has to say."""
    (attributes,) = [key for key in event if key.endswith("EventAttributes")]
    book_keeping = {"taskId", "version", "workerMayIgnore", "userMetadata"}
    return {key for key in event if key not in book_keeping} | {attributes}


@pytest.mark.parametrize("engine", ["memory", "file"])
def test_exported_json_matches_the_temporal_cli(
    engine: str, relays: dict[str, tuple[str, History]], targets: dict[str, str], tmp_path: Path
) -> None:
    """A file of ours is what `temporal workflow show --output json` writes of such a run, which is what the web UI imports:
    an object of events with the same names, numbers as text, times in UTC.
    """
    workflow_id, _ = relays["server"]
    shown = subprocess.run(
        show(workflow_id, targets["server"]),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    printed = json.loads(shown.stdout)
    file = tmp_path / "history.json"
    relays[engine][1].to_file(file)
    written = json.loads(file.read_text(encoding="utf-8"))
    assert printed.keys() == written.keys() == {"events"}
    names = {event["eventType"]: shape(event) for event in printed["events"]}
    for event in written["events"]:
        assert event["eventId"].isdigit()
        assert event["eventTime"].endswith("Z")
        assert shape(event) == names[event["eventType"]]


def test_json_of_the_temporal_cli_is_read(
    relays: dict[str, tuple[str, History]], targets: dict[str, str], tmp_path: Path
) -> None:
    """A history that `temporal` wrote to a file replays here."""
    workflow_id, _ = relays["server"]
    file = tmp_path / "shown.json"
    with file.open("w", encoding="utf-8") as out:
        subprocess.run(
            show(workflow_id, targets["server"]),
            stdout=out,
            timeout=60,
            check=True,
        )
    with Replayer(workflows=[ours.relay]) as replayer:
        assert replayer.replay(History.from_file(file)).ok
