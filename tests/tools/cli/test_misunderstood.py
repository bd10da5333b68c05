"""What people try at first, from what other commands take: each is refused with the words that were meant."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from command_line import main
from hourglass import Client, Worker, workflow

from .command import until

go = workflow.Channel("go", str)


@workflow.defn
def waits() -> str:
    """Waits to continue."""
    return go.receive()


@workflow.defn
def stumbles() -> int:
    """Has a bug."""
    return {"a": 1}["b"]


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a command on a file with one open run, which a worker serves; gives the exit code and what it said on stderr."""
    target = f"local:{tmp_path / 'm.db'}"

    def command(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        return main([*arguments, "--target", target]), capsys.readouterr().err

    with Client.connect(target) as client, Worker(client, workflows=[waits, stumbles]):
        client.start_workflow(waits, id="order-1")
        yield command


@pytest.mark.parametrize("named", ["app.py", "app.py:checkout", "./shop/app.py:checkout"])
def test_file_as_a_workflow_name_is_rejected(named: str, run: Run, tmp_path: Path) -> None:
    """`start` takes a name, not a file as `run` does: nothing is started that no worker would ever know."""
    code, said = run("start", named)
    assert code == 2
    file = named.partition(":")[0]
    assert f"hourglass worker {file} " in said
    assert f"hourglass start {'checkout' if ':' in named else 'NAME'} …" in said
    with Client.connect(f"local:{tmp_path / 'm.db'}") as client:
        assert int(client.count_workflows()) == 1


@pytest.mark.parametrize("command", ["signal", "query", "update"])
def test_swapped_name_and_id_are_reported(command: str, run: Run) -> None:
    """Name and id the other way round: it says which comes first."""
    code, said = run(command, "order-1", "go")
    assert code == 1
    assert "workflow 'go' does not exist" in said
    assert "pass the name first, then the id: go order-1" in said


def test_swapped_name_and_id_of_unknown_workflows(run: Run) -> None:
    """Where neither is a workflow nothing is guessed."""
    assert "pass the name first" not in run("query", "state", "nobody")[1]


@pytest.mark.parametrize("command", [["describe"], ["show"], ["terminate"], ["query", "state"]])
def test_unknown_run_of_a_known_workflow(command: list[str], run: Run) -> None:
    """The workflow is known and the run is not: that is said, with the latest run."""
    code, said = run(*command, "order-1", "--run-id", "123")
    assert code == 1
    assert "order-1 has no run '123'" in said
    assert "the latest run is " in said


def test_id_together_with_a_filter_is_rejected(run: Run) -> None:
    """A workflow and a filter at once: which of the two is meant must be said."""
    code, said = run("cancel", "order-1", "--query", "WorkflowType = 'waits'")
    assert code == 2
    assert "not both" in said


def test_query_of_a_parked_run_suggests_why(run: Run, tmp_path: Path) -> None:
    """It cannot answer: what says why is named."""
    with Client.connect(f"local:{tmp_path / 'm.db'}") as client:
        handle = client.start_workflow(stumbles, id="bug-1")
        until("it is parked", lambda: handle.describe().parked)
    code, said = run("query", "state", "bug-1", "--timeout", "30")
    assert code == 1
    assert "see hourglass why bug-1" in said
