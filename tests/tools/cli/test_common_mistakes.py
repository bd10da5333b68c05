"""Common mistakes: each is rejected with the correct usage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from hourglass import Client, Worker, workflow

from .command import until

go = workflow.Channel("go", str)


@workflow.defn
def waits() -> str:
    return go.receive()


@workflow.defn
def stumbles() -> int:
    return {"a": 1}["b"]


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, run_main: Run) -> Iterator[Run]:
    """Run a command on a file with one open run and a worker. Return exit code, stdout and stderr."""
    target = f"local:{tmp_path / 'm.db'}"

    with Client.connect(target) as client, Worker(client, workflows=[waits, stumbles]):
        client.start_workflow(waits, id="order-1")
        yield partial(run_main, target)


@pytest.mark.parametrize("name", ["app.py", "app.py:checkout", "./shop/app.py:checkout"])
def test_start_with_a_file_name_is_rejected_and_starts_nothing(name: str, run: Run, tmp_path: Path) -> None:
    code, _, message = run("start", name)
    assert code == 2
    file = name.partition(":")[0]
    assert f"hourglass worker {file} " in message
    assert f"hourglass start {'checkout' if ':' in name else 'NAME'} …" in message
    with Client.connect(f"local:{tmp_path / 'm.db'}") as client:
        assert int(client.count_workflows()) == 1


@pytest.mark.parametrize("command", ["signal", "query", "update"])
def test_message_command_with_swapped_name_and_id_suggests_the_order(command: str, run: Run) -> None:
    code, _, message = run(command, "order-1", "go")
    assert code == 1
    assert "workflow 'go' does not exist" in message
    assert "pass the name first, then the id: go order-1" in message


def test_message_command_with_two_unknown_names_suggests_no_order(run: Run) -> None:
    assert "pass the name first" not in run("query", "state", "nobody")[2]


@pytest.mark.parametrize("command", [["describe"], ["show"], ["terminate"], ["query", "state"]])
def test_unknown_run_id_of_a_known_workflow_names_the_latest_run(command: list[str], run: Run) -> None:
    code, _, message = run(*command, "order-1", "--run-id", "123")
    assert code == 1
    assert "order-1 has no run '123'" in message
    assert "the latest run is " in message


def test_id_together_with_a_query_is_rejected(run: Run) -> None:
    code, _, message = run("cancel", "order-1", "--query", "WorkflowType = 'waits'")
    assert code == 2
    assert "not both" in message


def test_query_of_a_parked_run_suggests_the_why_command(run: Run, tmp_path: Path) -> None:
    with Client.connect(f"local:{tmp_path / 'm.db'}") as client:
        handle = client.start_workflow(stumbles, id="bug-1")
        until("it is parked", lambda: handle.describe().parked)
    code, _, message = run("query", "state", "bug-1", "--timeout", "30")
    assert code == 1
    assert "see hourglass why bug-1" in message
