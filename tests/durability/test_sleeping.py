"""Workflows with distant timers stay in the file and use no memory until the timers are due."""

from __future__ import annotations

from pathlib import Path

from hourglass import Client, Worker, workflow
from hourglass._embedded.multiprocess import connection


@workflow.defn
def sleeper(seconds: float) -> int:
    workflow.sleep(seconds)
    return 7


def workflow_ids_in_memory(path: Path) -> list[str]:
    (host,) = [host for (_, host_path), host in connection._files.items() if host_path == str(path)]
    room = host.calls.engine
    assert room is not None
    return [record.run.started.workflow_id for record in room.engine.runs.records()]


def test_opening_a_file_loads_only_runs_with_due_timers(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    target = f"local:{path}"
    with Client.connect(target) as client, Worker(client, workflows=[sleeper]):
        for number in range(200):
            client.start_workflow(sleeper, 30 * 86_400.0, id=f"asleep-{number}")
        client.start_workflow(sleeper, 1.0, id="wakes")
        assert client.execute_workflow(sleeper, 0.0, id="last") == 7  # tasks are processed in order
    with Client.connect(target) as client, Worker(client, workflows=[sleeper]):
        assert set(workflow_ids_in_memory(path)) <= {"wakes"}
        assert client.get_workflow_handle("wakes").result(timeout=30) == 7
        assert set(workflow_ids_in_memory(path)) <= {"wakes"}
        assert client.count_workflows("ExecutionStatus = 'Running'") == 200
        client.get_workflow_handle("asleep-7").cancel()  # only the requested run is loaded
        assert set(workflow_ids_in_memory(path)) <= {"wakes", "asleep-7"}
        assert "asleep-7" in workflow_ids_in_memory(path)
