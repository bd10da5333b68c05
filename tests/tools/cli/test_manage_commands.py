"""`schedule`, `activity`, `result`, `export`, `fork`, `pause`, `resume` and `delete`, on a file with a worker in this
process.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.waiting import until

from command_line import main
from hourglass import ApplicationError, Client, Worker, activity, workflow

go = workflow.Channel("go", str)
entered = threading.Semaphore(0)
may_end = threading.Event()


@activity.defn
def pack(item: str) -> str:
    return f"{item} packed"


@activity.defn(start_to_close_timeout=60)
def broken() -> str:
    raise ApplicationError("broken", next_retry_delay=600)


@activity.defn(start_to_close_timeout=60)
def slow() -> str:
    entered.release()
    may_end.wait(30)
    return "slow"


@workflow.defn
def send(item: str) -> str:
    first = pack(item)
    return f"{first}, {go.receive()}, {pack('ribbon')}"


@workflow.defn
def stuck() -> str:
    return broken()


@workflow.defn
def slowly() -> str:
    return slow()


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, run_main: Run) -> Iterator[Run]:
    """Run a command on a file with a worker. Return exit code, stdout and stderr."""
    target = f"local:{tmp_path / 'shop.db'}"
    may_end.clear()

    with (
        Client.connect(target) as client,
        Worker(client, workflows=[send, stuck, slowly], activities=[pack, broken, slow]),
    ):
        yield partial(run_main, target)
        may_end.set()


def test_pause_resume_and_result_commands(run: Run) -> None:
    run("start", "send", "lamp", "--id", "s-1")
    assert run("pause", "s-1", "--reason", "a count")[1].startswith("paused s-1")
    assert "paused" in run("list")[1]
    assert run("pause", "s-1") == (1, "", "error: workflow is already paused.\n")
    run("signal", "go", "s-1", "now")
    assert json.loads(run("resume", "s-1", "--json")[1]) == {"id": "s-1"}
    assert run("result", "s-1") == (0, "lamp packed, now, ribbon packed\n", "")
    assert json.loads(run("result", "s-1", "--json")[1]) == "lamp packed, now, ribbon packed"
    assert run("result", "nobody")[0] == 1


def test_rejected_pause_with_traceback_option_prints_the_error_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that is its own cause would never end."""
    monkeypatch.setenv("HOURGLASS_TRACEBACK", "")
    code, _, said = run("pause", "nobody", "--traceback")
    assert (code, "Traceback" in said, "workflow 'nobody' does not exist" in said) == (1, True, True)


def test_result_command_times_out_and_reports_termination(run: Run) -> None:
    run("start", "send", "lamp", "--id", "s-1")
    code, _, err = run("result", "s-1", "--timeout", "0.05")
    assert (code, "did not end within 0.05 s" in err, "hourglass why s-1" in err) == (1, True, True)
    run("terminate", "s-1", "--reason", "enough")
    code, _, err = run("result", "s-1")
    assert (code, "was terminated: enough" in err) == (1, True)


def test_fork_command_and_export_of_replayable_histories(run: Run, tmp_path: Path) -> None:
    run("start", "send", "lamp", "--id", "s-1")
    run("signal", "go", "s-1", "now")
    run("result", "s-1")
    assert run("fork", "s-1", "--id", "s-2")[0] == 2
    assert run("fork", "s-1", "--before", "nothing", "--id", "s-2")[0] == 2
    made = json.loads(run("fork", "s-1", "--before", "pack", "--id", "s-2", "--json")[1])
    assert made["id"] == "s-2"
    run("signal", "go", "s-2", "later")
    assert run("result", "s-2")[1] == "lamp packed, later, ribbon packed\n"
    assert json.loads(run("export", "s-1")[1])["events"][0]["eventId"] == "1"
    assert run("export", "s-1", "--to", str(tmp_path / "one.json"))[0] == 0
    assert run("export", "--query", "WorkflowType = 'send'")[0] == 2
    code, out, _ = run("export", "--query", "WorkflowType = 'send'", "--to", str(tmp_path / "many"))
    assert (code, len(list((tmp_path / "many").iterdir())), "2 histories" in out) == (0, 2, True)
    assert (
        main(
            [
                "replay",
                str(tmp_path / "many"),
                str(tmp_path / "one.json"),
                "--code",
                "tests.tools.cli.test_manage_commands",
            ]
        )
        == 0
    )


def test_export_does_not_use_workflow_ids_as_paths(run: Run, tmp_path: Path) -> None:
    run("start", "send", "lamp", "--id", "../../evil/..")
    assert run("export", "--query", "WorkflowType = 'send'", "--to", str(tmp_path / "out"))[0] == 0
    (written,) = (tmp_path / "out").iterdir()
    assert written.is_file()
    assert "/" not in written.name


def test_activity_commands_list_complete_reset_and_fail(run: Run) -> None:
    run("start", "stuck", "--id", "b-1")
    until(lambda: "broken" in run("activity", "list", "b-1")[1].partition("\n")[2])
    until(lambda: json.loads(run("activity", "list", "b-1", "--json")[1])["attempt"] == 2)
    code, _, err = run("activity", "fail", "b-1", "broken", "-m", "no")
    assert (code, "waits for attempt 2" in err) == (1, True)
    code, _, err = run("activity", "complete", "b-1", "other", "1")
    assert (code, "broken (1)" in err) == (2, True)
    assert run("activity", "reset", "b-1", "broken")[1] == "broken (1) of b-1 is retried from attempt 1\n"
    assert run("activity", "complete", "b-1", "1", '"by hand"')[1] == "completed broken (1) of b-1\n"
    assert run("result", "b-1")[1] == "by hand\n"
    assert run("activity", "list", "b-1")[1] == "b-1 has no pending activities\n"
    run("start", "slowly", "--id", "b-2")
    assert entered.acquire(timeout=30)
    assert run("activity", "fail", "b-2", "slow", "-m", "the bank says no", "--type", "Declined")[0] == 0
    code, _, err = run("result", "b-2")
    assert (code, "the bank says no" in err) == (1, True)


def test_delete_command_needs_confirmation(run: Run) -> None:
    for number in range(3):
        run("start", "send", "lamp", "--id", f"s-{number}")
    code, _, err = run("delete", "s-0")
    assert (code, "is open and would be terminated" in err) == (2, True)
    assert run("delete", "s-0", "--yes")[0] == 0
    assert run("describe", "s-0")[0] == 1
    assert "permanently delete 2 workflows" in run("delete", "--query", "WorkflowType = 'send'")[2]
    assert run("delete", "--query", "WorkflowType = 'send'", "--yes")[1] == "deleted: 2 of 2\n"
    assert run("list")[1] == "no workflows\n"


@pytest.mark.parametrize("command", [("terminate",), ("cancel",), ("signal", "go"), ("delete",)])
def test_bulk_commands_exclude_internal_limit_workflows_unless_named(
    run: Run, command: tuple[str, ...]
) -> None:
    run("start", "send", "lamp", "--id", "shown")
    run("start", "hourglass.slots", "--id", "keeper", "--task-queue", "nobody")
    assert "would" in run(*command, "--query", "")[2]
    assert " 1 workflow" in run(*command, "--query", "")[2]
    assert " 1 workflow" in run(*command, "--query", "WorkflowType = 'hourglass.slots'")[2]
    assert run(*command, "--query", "", "--yes")[1].endswith(": 1 of 1\n")
    assert "keeper" in run("list", "--all")[1]


def test_schedule_commands_create_list_pause_trigger_backfill_and_delete(run: Run) -> None:
    made = ("schedule", "create", "daily", "send", "lamp", "--cron", "0 9 * * MON-FRI", "--every", "6h")
    assert run(*made)[1].startswith("created daily: every 6h, cron 0 9 * * MON-FRI; next at ")
    assert run(*made)[0] == 1
    listed = run("schedule", "list")[1]
    assert "every 6h, cron 0 9 * * 1-5" in listed
    assert run("schedule", "pause", "daily", "--note", "holidays")[0] == 0
    assert "paused: holidays" in run("schedule", "describe", "daily")[1]
    assert json.loads(run("schedule", "describe", "daily", "--json")[1])["state"]["paused"] is True
    assert run("schedule", "resume", "daily")[0] == 0
    assert run("schedule", "trigger", "daily", "--overlap", "allow-all")[0] == 0
    past = ("--from", "2026-01-01T00:00Z", "--to", "2026-01-01T12:00Z", "--overlap", "allow-all")
    assert run("schedule", "backfill", "daily", *past)[0] == 0
    until(lambda: run("list", "WorkflowType = 'send'", "--count")[1].strip() == "5")
    assert json.loads(run("schedule", "list", "--json")[1])["id"] == "daily"
    assert run("schedule", "delete", "daily")[0] == 2
    assert run("schedule", "delete", "daily", "--yes")[0] == 0
    assert run("schedule", "describe", "daily")[0] == 1
    assert run("schedule", "list")[1] == "no schedules\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("schedule", "create", "s", "send"), "set a time"),
        (("schedule", "create", "s", "send", "--every", "soon"), "--every must be a duration"),
        (("schedule", "create", "s", "send", "--every", "0s"), "--every must be a duration"),
        (("schedule", "create", "s", "send", "--cron", "whenever"), "whenever"),
        (
            ("schedule", "create", "s", "send", "--every", "1h", "--end-at", "later"),
            "--end-at must be a time",
        ),
        (("schedule", "backfill", "s", "--from", "2026-01-02", "--to", "2026-01-01"), "before"),
    ],
)
def test_schedule_command_rejects_invalid_times(run: Run, arguments: tuple[str, ...], message: str) -> None:
    code, _, err = run(*arguments)
    assert (code, message in err) == (2, True), err
