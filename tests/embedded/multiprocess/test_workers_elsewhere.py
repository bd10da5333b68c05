"""Workers in processes that do not own the file: all that a worker does, and what happens when such a process ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import until

from hourglass import Client
from hourglass.errors import UpdateFailedError, WorkflowFailedError

from . import work
from .children import ready_worker


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.db"


@pytest.fixture
def client(path: Path) -> Iterator[Client]:
    with Client.connect(f"local:{path}") as connected:
        yield connected


def test_remote_worker_supports_every_feature(path: Path, client: Client) -> None:
    """The owner serves another queue: activities, retries, local ones, children, timers, signals, queries, updates and the
    next run are all done by the process that serves this one.
    """
    with ready_worker(path, "the owner's"), ready_worker(path) as second:
        handle = client.start_workflow(work.Journey.run, False, id="journey")
        handle.signal(work.Journey.note, "one")
        with pytest.raises(UpdateFailedError, match="say something"):
            handle.execute_update(work.Journey.change, "")
        assert handle.query(work.Journey.count) == 1
        assert handle.execute_update(work.Journey.change, "two") == 2
        current = client.get_workflow_handle("journey")
        until(lambda: current.describe().run_id != handle.run_id, "there is no next run")
        current.signal(work.Journey.note, "three")
        current.signal(work.Journey.note, "four")
        assert handle.result(timeout=60) == [*[second.pid] * 5, 3]


def test_remote_activity_is_cancelled(path: Path, client: Client, tmp_path: Path) -> None:
    """Its cancellation crosses the processes, and so does what it answers."""
    with ready_worker(path, "the owner's"), ready_worker(path) as second:
        handle = client.start_workflow(work.holding, str(tmp_path), id="holding")
        until((tmp_path / "attempt-1").exists, "the activity does not begin")
        handle.cancel()
        with pytest.raises(WorkflowFailedError):
            handle.result(timeout=60)
        assert (tmp_path / "attempt-1").read_text() == str(second.pid)


def test_work_of_a_killed_worker_continues(path: Path, client: Client, tmp_path: Path) -> None:
    """Its attempt is tried again in another process, which knows where it stood; its run goes on there, and answers."""
    with ready_worker(path, "the owner's") as owner, ready_worker(path) as second:
        handle = client.start_workflow(work.holding, str(tmp_path), id="holding")
        until((tmp_path / "attempt-1").exists, "the activity does not begin")
        tally = client.start_workflow(work.Tally.run, id="tally")
        assert tally.query(work.Tally.count) == 0
        with ready_worker(path) as third:
            assert owner.ask("processes").split() == [str(each.pid) for each in (owner, second, third)]
            second.kill()
            assert tally.query(work.Tally.count) == 0, "it was with the one that was killed"
            until((tmp_path / "attempt-2").exists, "it is not tried again")
            assert (tmp_path / "attempt-2").read_text() == str(third.pid)
            (tmp_path / "go").touch()
            assert handle.result(timeout=60) == second.pid, "what it reported last is known"
            until(lambda: str(second.pid) not in third.ask("tree"), "the killed process is shown")
            assert f"process {third.pid}, this one  works (queues: default" in third.ask("tree")


def test_process_with_older_code_receives_known_types(path: Path, client: Client) -> None:
    """A workflow that only one of two processes knows goes there each time; none fails on the way."""
    with ready_worker(path), ready_worker(path, "default", "newer") as newer:
        for number in range(8):
            handle = client.start_workflow(work.newcomer, id=f"newcomer-{number}")
            assert handle.result(timeout=60) == newer.pid
            kinds = {event["eventType"] for event in handle.history().events}
            assert "EVENT_TYPE_WORKFLOW_TASK_FAILED" not in kinds


@pytest.mark.parametrize("politely", [True, False])
def test_attempt_outlives_the_owner(path: Path, client: Client, tmp_path: Path, politely: bool) -> None:
    """When the owner ends, killed or in order, an attempt in another process goes on: its result counts, and no second
    attempt is made.
    """
    with (
        ready_worker(path, "the owner's") as owner,
        ready_worker(path) as second,
        ready_worker(path, "another") as third,
    ):
        handle = client.start_workflow(work.holding, str(tmp_path), id="holding")
        until((tmp_path / "attempt-1").exists, "the activity does not begin")
        until(
            lambda: second.ask("processes").count(" ") == third.ask("processes").count(" ") == 2,
            "they do not know of each other",
        )
        if politely:
            assert owner.ask("stop") == "stopped"
        else:
            owner.kill()
        until(lambda: "owner" in (second.ask("standing"), third.ask("standing")), "nobody took over")
        until(lambda: handle.describe().status.name == "RUNNING", "it is not known any more")
        (tmp_path / "go").touch()
        assert handle.result(timeout=60) == 0
        assert not (tmp_path / "attempt-2").exists()
        assert (tmp_path / "attempt-1").read_text() == str(second.pid)


def test_surviving_attempt_ends_with_its_process(path: Path, client: Client, tmp_path: Path) -> None:
    """The next owner knows which process has it, and gives it to another when that one dies."""
    with (
        ready_worker(path, "the owner's") as owner,
        ready_worker(path) as second,
        ready_worker(path, "another") as third,
    ):
        handle = client.start_workflow(work.holding, str(tmp_path), id="holding")
        until((tmp_path / "attempt-1").exists, "the activity does not begin")
        owner.kill()
        until(lambda: "owner" in (second.ask("standing"), third.ask("standing")), "nobody took over")
        with ready_worker(path):
            second.kill()
            until((tmp_path / "attempt-2").exists, "it is not tried again")
            (tmp_path / "go").touch()
            assert handle.result(timeout=60) == second.pid
