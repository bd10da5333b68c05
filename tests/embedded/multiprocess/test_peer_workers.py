"""Workers in processes that do not own the file: all features, and the end of such a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.waiting import until

from hourglass import Client
from hourglass.errors import UpdateFailedError, WorkflowFailedError

from . import work
from .children import ready_worker


def test_remote_worker_supports_every_feature(path: Path, client: Client) -> None:
    """The owner serves another queue."""
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
    with ready_worker(path, "the owner's"), ready_worker(path) as second:
        handle = client.start_workflow(work.holding, str(tmp_path), id="holding")
        until((tmp_path / "attempt-1").exists, "the activity does not begin")
        handle.cancel()
        with pytest.raises(WorkflowFailedError):
            handle.result(timeout=60)
        assert (tmp_path / "attempt-1").read_text() == str(second.pid)


def test_tasks_of_a_killed_remote_worker_continue(path: Path, client: Client, tmp_path: Path) -> None:
    """Another process retries its attempt with the heartbeat details."""
    with ready_worker(path, "the owner's") as owner, ready_worker(path) as second:
        handle = client.start_workflow(work.holding, str(tmp_path), id="holding")
        until((tmp_path / "attempt-1").exists, "the activity does not begin")
        tally = client.start_workflow(work.Tally.run, id="tally")
        assert tally.query(work.Tally.count) == 0
        with ready_worker(path) as third:
            assert owner.ask("processes").split() == [str(each.pid) for each in (owner, second, third)]
            second.kill()
            assert tally.query(work.Tally.count) == 0, "the killed process had the run"
            until((tmp_path / "attempt-2").exists, "the attempt is not retried")
            assert (tmp_path / "attempt-2").read_text() == str(third.pid)
            (tmp_path / "go").touch()
            assert handle.result(timeout=60) == second.pid, "the heartbeat details are kept"
            until(lambda: str(second.pid) not in third.ask("tree"), "the killed process is shown")
            assert f"process {third.pid}, this one  works (queues: default" in third.ask("tree")


def test_process_with_older_code_receives_only_known_types(path: Path, client: Client) -> None:
    with ready_worker(path), ready_worker(path, "default", "newer") as newer:
        for number in range(8):
            handle = client.start_workflow(work.newcomer, id=f"newcomer-{number}")
            assert handle.result(timeout=60) == newer.pid
            kinds = {event["eventType"] for event in handle.history().events}
            assert "EVENT_TYPE_WORKFLOW_TASK_FAILED" not in kinds


@pytest.mark.parametrize("gracefully", [True, False])
def test_attempt_survives_the_end_of_the_owner(
    path: Path, client: Client, tmp_path: Path, gracefully: bool
) -> None:
    """The result of the attempt counts, and no second attempt is made."""
    with (
        ready_worker(path, "the owner's") as owner,
        ready_worker(path) as second,
        ready_worker(path, "another") as third,
    ):
        handle = client.start_workflow(work.holding, str(tmp_path), id="holding")
        until((tmp_path / "attempt-1").exists, "the activity does not begin")
        until(
            lambda: second.ask("processes").count(" ") == third.ask("processes").count(" ") == 2,
            "the workers do not know each other",
        )
        if gracefully:
            assert owner.ask("stop") == "stopped"
        else:
            owner.kill()
        until(lambda: "owner" in (second.ask("standing"), third.ask("standing")), "no process took over")
        until(lambda: handle.describe().status.name == "RUNNING", "the run is lost")
        (tmp_path / "go").touch()
        assert handle.result(timeout=60) == 0
        assert not (tmp_path / "attempt-2").exists()
        assert (tmp_path / "attempt-1").read_text() == str(second.pid)


def test_surviving_attempt_is_retried_when_its_process_dies(
    path: Path, client: Client, tmp_path: Path
) -> None:
    with (
        ready_worker(path, "the owner's") as owner,
        ready_worker(path) as second,
        ready_worker(path, "another") as third,
    ):
        handle = client.start_workflow(work.holding, str(tmp_path), id="holding")
        until((tmp_path / "attempt-1").exists, "the activity does not begin")
        owner.kill()
        until(lambda: "owner" in (second.ask("standing"), third.ask("standing")), "no process took over")
        with ready_worker(path):
            second.kill()
            until((tmp_path / "attempt-2").exists, "the attempt is not retried")
            (tmp_path / "go").touch()
            assert handle.result(timeout=60) == second.pid
