"""Processes on one file, killed by signals: clients, takeover, workers of several processes, requests without an owner."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from tests.waiting import until

from hourglass import Client
from hourglass.errors import WorkflowAlreadyStartedError

from ..store.run_changes import rows_of_sound_file
from . import work
from .children import Child, ready_worker


def new_id() -> str:
    return uuid.uuid4().hex


def test_client_without_a_worker_uses_the_owner(path: Path, client: Client) -> None:
    with ready_worker(path) as worker:
        assert worker.ask("standing") == "owner"
        assert client.execute_workflow(work.twice, 5, id=new_id()) == 7
        handle = client.start_workflow(work.Tally.run, id="tally")
        for text in ("a", "b"):
            handle.signal(work.Tally.note, text)
        assert handle.query(work.Tally.count) == 2
        with pytest.raises(WorkflowAlreadyStartedError) as caught:
            client.start_workflow(work.Tally.run, id="tally")
        assert (caught.value.workflow_id, caught.value.run_id) == ("tally", handle.run_id)
        handle.signal(work.Tally.stop)
        assert handle.result(timeout=30) == ["a", "b"]
        assert len(list(client.list_workflows())) == 2
        assert worker.ask("stop") == "stopped"
        assert len(list(client.list_workflows())) == 2, "requests work without an owner"


def test_another_worker_takes_over_when_the_owner_is_killed(path: Path, client: Client) -> None:
    """The second worker continues every run, and pending waits return their results."""
    with ready_worker(path) as first, ready_worker(path) as second:
        assert second.ask("standing") == f"working for process {first.pid}"
        handle = client.start_workflow(work.Tally.run, id="tally")
        handle.signal(work.Tally.note, "before")
        assert handle.query(work.Tally.count) == 1
        first.kill()
        handle.signal(work.Tally.note, "after")
        assert handle.query(work.Tally.count) == 2
        until(lambda: second.ask("standing") == "owner", "the second does not own the file")
        handle.signal(work.Tally.stop)
        assert handle.result(timeout=30) == ["before", "after"]
    assert any("this process took over" in line for line in second.log)  # read to its end


def test_worker_takes_over_when_the_owner_shuts_down(path: Path, client: Client) -> None:
    with ready_worker(path) as first, ready_worker(path) as second:
        assert first.ask("stop") == "stopped"
        assert client.execute_workflow(work.twice, 1, id=new_id()) == 3
        # The worker reports what it serves asynchronously, perhaps after the first result.
        until(lambda: second.ask("standing") == "owner", "the second does not own the file")
        with ready_worker(path) as third:
            assert third.ask("standing") == f"working for process {second.pid}"
            assert second.ask("stop") == "stopped"
            assert client.execute_workflow(work.twice, 2, id=new_id()) == 4
            until(lambda: third.ask("standing") == "owner", "the third does not own the file")


def test_workers_of_different_queues_share_a_file(path: Path, client: Client) -> None:
    with ready_worker(path, "a", "b") as first, ready_worker(path, "c") as second:
        assert second.ask("standing") == f"working for process {first.pid}"
        for queue in ("a", "b", "c"):
            assert client.execute_workflow(work.twice, 1, id=new_id(), task_queue=queue) == 3
        with ready_worker(path, "b", "c"):
            first.kill()
            assert client.execute_workflow(work.twice, 2, id=new_id(), task_queue="c") == 4
            assert client.execute_workflow(work.twice, 2, id=new_id(), task_queue="b") == 4


def test_clients_start_and_signal_workflows_without_a_worker(path: Path, client: Client) -> None:
    """The next worker executes what is due."""
    with ready_worker(path) as first:
        handle = client.start_workflow(work.Tally.run, id="tally")
        first.kill()
    started = [client.start_workflow(work.twice, number, id=f"w{number}") for number in range(10)]
    handle.signal(work.Tally.note, "during")
    handle.signal(work.Tally.stop)
    doomed = client.start_workflow(work.Tally.run, id="doomed")
    doomed.terminate("enough")
    assert client.count_workflows() == 12
    with ready_worker(path):
        assert [run.result(timeout=30) for run in started] == [number + 2 for number in range(10)]
        assert handle.result(timeout=30) == ["during"]
    assert rows_of_sound_file(path)


def test_race_for_ownership_has_one_winner(path: Path) -> None:
    with Child("race", path) as one, Child("race", path) as two:
        assert [one.line(), two.line()] == ["ready", "ready"]
        for number in range(50):
            for process in (one, two):
                process.tell(str(number))
            assert sorted([one.line(), two.line()]) == ["owner", "working"], number
            for process in (one, two):
                process.tell("close")
            assert [one.line(), two.line()] == ["closed", "closed"]


def test_repeated_kills_of_the_owner_lose_no_workflow(path: Path) -> None:
    """Four forked web processes start workflows while the owner is killed repeatedly."""
    runs_per_child = 12
    workers = [ready_worker(path), ready_worker(path)]
    with Child("web", path, 4, runs_per_child) as web:
        assert web.line() == "parent 3"
        for _ in range(4):
            owner = next(worker for worker in workers if worker.ask("standing") == "owner")
            owner.kill()
            owner.__exit__(None, None, None)
            workers.remove(owner)
            until(lambda: workers[0].ask("standing") == "owner", "no process took over")
            workers.append(ready_worker(path))
        assert web.line() == "codes [0, 0, 0, 0]"
        assert web.ended() == 0
    with Client.connect(f"local:{path}") as client:
        assert client.count_workflows() == 4 * runs_per_child + 1
        assert client.count_workflows("ExecutionStatus = 'Completed'") == 4 * runs_per_child + 1
    for worker in workers:
        worker.__exit__(None, None, None)
    assert rows_of_sound_file(path)


def test_forked_child_of_an_owner_is_a_client(path: Path, client: Client) -> None:
    """The child must not keep the lock of the killed owner."""
    with ready_worker(path) as first, ready_worker(path) as second:
        _, child, result = first.ask("fork").split()
        assert result == "42"
        first.process.kill()  # its child lives on, with all that it inherited
        first.process.wait()
        assert client.execute_workflow(work.twice, 1, id=new_id()) == 3, (
            f"the lock is held by the child {child}"
        )
        until(lambda: second.ask("standing") == "owner", "the second does not own the file")
        assert first.ask("again") == "again 62"
        refusal = first.ask("own")
        assert refusal.startswith("refused: StorageError"), refusal
        assert "forked" in refusal


def test_remote_worker_leaves_no_thread(path: Path) -> None:
    with ready_worker(path), ready_worker(path) as second:
        assert second.ask("stop") == "stopped"
        assert second.ask("threads") == "MainThread hourglass-control"
        assert second.ask("leave") == "leaving"
        assert second.ended() == 0


@pytest.mark.parametrize("role", ["leave", "leave_waiting"])
def test_interpreter_exits_with_worker_and_wait_open(path: Path, role: str) -> None:
    with Child(role, path) as child:
        assert child.line() == "done"
        assert child.ended() == 0
        assert not [line for line in child.log if "Traceback" in line], child.log


def test_interpreter_exits_with_a_remote_worker_open(path: Path) -> None:
    with ready_worker(path) as first, ready_worker(path) as second:
        assert second.ask("leave") == "leaving"
        assert second.ended() == 0
        assert first.ask("standing") == "owner"
