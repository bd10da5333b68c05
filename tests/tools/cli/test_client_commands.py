"""Commands for workflows, on a file of the embedded engine with a worker in this process."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import until

from command_line import main
from hourglass import Client, RetryPolicy, Worker, activity, backup, workflow
from hourglass.client import Schedule, ScheduleActionStartWorkflow, ScheduleSpec

decision = workflow.Channel("decision", bool)
_declines = threading.Event()


@activity.defn
def charge(order: str) -> str:
    return f"charged {order}"


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01, maximum_interval=0.01))
def fails_while_declining(order: str) -> str:
    """Fails while `_declines` is set."""
    if _declines.is_set():
        raise RuntimeError("declined")
    return f"charged {order}"


@workflow.defn
def purchase(order: str) -> str:
    return fails_while_declining(order)


@workflow.defn
def checkout(order: str) -> str:
    @workflow.query
    def state() -> dict[str, str]:
        return {"order": order}

    return charge(order) if decision.receive() else "declined"


@workflow.defn
def broken() -> str:
    return {}["missing"]


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, run_main: Run) -> Iterator[Run]:
    """Run a command on a file with a worker. Return exit code, stdout and stderr."""
    target = f"local:{tmp_path / 'shop.db'}"

    with (
        Client.connect(target) as client,
        Worker(client, workflows=[checkout, broken, purchase], activities=[charge, fails_while_declining]),
    ):
        yield partial(run_main, target)


def test_start_list_query_describe_and_signal_commands(run: Run) -> None:
    code, out, _ = run("start", "checkout", "o-1", "--id", "order-1")
    assert (code, out.startswith("started order-1 (run ")) == (0, True)
    assert "order-1" in run("list")[1]
    assert json.loads(run("query", "state", "order-1")[1]) == {"order": "o-1"}
    assert "status         running" in run("describe", "order-1")[1]
    assert run("signal", "decision", "order-1", "true")[0] == 0
    with_wait = run("start", "checkout", "o-2", "--id", "order-2", "--json")
    assert json.loads(with_wait[1])["id"] == "order-2"


def test_json_option_prints_one_document_or_one_line_per_item(run: Run) -> None:
    run("start", "checkout", "o-1", "--id", "order-1")
    assert json.loads(run("describe", "order-1", "--json")[1])["workflow_type"] == "checkout"
    (line,) = run("list", "--json")[1].splitlines()
    assert json.loads(line)["id"] == "order-1"
    assert json.loads(run("list", "--count", "--json")[1]) == {"count": 1}
    assert json.loads(run("signal", "decision", "order-1", "false", "--json")[1])["signal"] == "decision"


def test_list_command_marks_and_filters_parked_runs(run: Run) -> None:
    run("start", "checkout", "o-1", "--id", "order-1")
    run("start", "broken", "--id", "order-2")
    row = "order-2  running, parked  broken"
    out = until(lambda: found if row in re.sub("  +", "  ", (found := run("list")[1])) else "", "no such row")
    assert re.search(r"order-1 +running +checkout", out)
    fields = {each["id"]: each for each in map(json.loads, run("list", "--json")[1].splitlines())}
    assert fields["order-2"]["status"] == "RUNNING"
    assert fields["order-2"]["reported_problems"] == [
        "category=WorkflowTaskFailed",
        "cause=WorkflowTaskFailedCauseWorkflowWorkerUnhandledFailure",
    ]
    assert fields["order-1"]["reported_problems"] == []
    assert (
        json.loads(run("describe", "order-2", "--json")[1])["reported_problems"][0]
        == "category=WorkflowTaskFailed"
    )
    parked = run("list", "--parked")[1]
    assert "running, parked" in parked
    assert "order-1" not in parked
    assert "order-2" in run("list", "TemporalReportedProblems = 'category=WorkflowTaskFailed'")[1]
    run("terminate", "order-2")
    assert re.search(r"order-2 +terminated +broken", run("list")[1])


def test_list_and_doctor_commands_report_stalled_runs(run: Run) -> None:
    """A failing activity, a parked run, and a queue without a worker."""
    assert run("doctor")[0] == 0
    _declines.set()
    run("start", "checkout", "o-1", "--id", "well")
    run("start", "purchase", "o-2", "--id", "failing")
    run("start", "broken", "--id", "parked")
    run("start", "checkout", "o-3", "--id", "alone", "--task-queue", "elsewhere")
    cases = (
        ("--failing", "failing", "activity fails", "hourglass list --failing"),
        ("--parked", "parked", "parked", "hourglass list --parked"),
        ("--no-worker", "alone", "no worker", "hourglass list --no-worker"),
    )
    for option, workflow_id, words, command in cases:
        row = rf"{workflow_id} +running, {words} "
        out = until(lambda row=row: found if re.search(row, found := run("list")[1]) else "", f"no {row}")
        assert re.search(r"well +running +checkout", out)
        lines = run("list", option)[1].splitlines()
        assert [line.split()[0] for line in lines[1:]] == [workflow_id]
        assert run("list", option, "--count")[1].strip() == "1"
        assert json.loads(run("list", option, "--json")[1])["problem"] == words
        if words != "no worker":
            assert f"running, {words}" in run("describe", workflow_id)[1]
            assert json.loads(run("describe", workflow_id, "--json")[1])["problem"] == words
        code, out, _ = run("doctor")
        assert code == 1
        assert re.search(rf"WRONG {words} +1 workflow .*: {command} --target", out)
    assert run("list", "--parked", "--failing")[0] == 2
    _declines.clear()
    until(lambda: "completed" in run("describe", "failing")[1], "it never completes")
    assert run("list", "--failing")[1] == "no activity keeps failing\n"
    run("terminate", "parked")
    run("terminate", "alone")
    assert run("doctor")[0] == 0


def test_terminate_by_query_needs_confirmation(run: Run) -> None:
    for number in range(3):
        run("start", "checkout", "o", "--id", f"order-{number}")
    code, _, err = run("terminate", "--query", "WorkflowType = 'checkout'")
    assert code == 2
    assert "3 workflows: confirm with --yes" in err
    code, out, _ = run("terminate", "--query", "WorkflowType = 'checkout'", "--yes", "--reason", "over")
    assert (code, "terminated: 3 of 3" in out) == (0, True)
    assert run("list", "ExecutionStatus = 'Terminated'", "--count")[1].strip() == "3"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("describe", "nobody"), 1, "workflow 'nobody' does not exist"),
        (("cancel",), 2, "pass a workflow id"),
        (("cancel", "a", "--query", "x = 1"), 2, "pass a workflow id"),
        (("list", "Nonsense = 1"), 1, "Nonsense"),
        (("query", "unknown", "order-1"), 1, "workflow 'order-1' does not exist"),
        (("reset", "nobody"), 1, "workflow 'nobody' does not exist"),
    ],
)
def test_command_error_is_one_line_on_stderr_with_exit_code(
    run: Run, arguments: tuple[str, ...], code: int, message: str
) -> None:
    actual_code, out, err = run(*arguments)
    assert (actual_code, out) == (code, "")
    assert message in err
    assert "Traceback" not in err


def test_backup_command_copies_a_file_in_use_and_replaces_only_on_request(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("start", "checkout", "o-1", "--id", "order-1")
    assert main(["backup", str(tmp_path / "shop.db"), str(tmp_path / "copy.db")]) == 0
    capsys.readouterr()
    assert main(["backup", str(tmp_path / "shop.db"), str(tmp_path / "copy.db")]) == 2
    message = f"error: {tmp_path / 'copy.db'} already exists: use --overwrite to replace it\n"
    assert capsys.readouterr().err == message
    assert main(["backup", str(tmp_path / "shop.db"), str(tmp_path / "copy.db"), "--overwrite"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["backup", str(tmp_path / "none.db"), str(tmp_path / "other.db")]) == 2
    capsys.readouterr()
    assert main(["list", "--json", "--target", f"local:{tmp_path / 'copy.db'}"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "order-1"


def test_backup_reports_progress_until_all_pages_are_copied(run: Run, tmp_path: Path) -> None:
    run("start", "checkout", "o-1", "--id", "order-1")
    progress: list[tuple[int, int]] = []
    backup(
        tmp_path / "shop.db", tmp_path / "copy.db", progress=lambda done, all: progress.append((done, all))
    )
    assert progress[-1][0] == progress[-1][1] > 0


ODD_FLOWS = """
from hourglass import workflow


@workflow.defn
def odd(x: float) -> float:
    return x * float("nan")
"""
PYTHON_REPR = re.compile(r"^<.*>$|\b\w+\(\w+=|^b'|object at 0x|\bdatetime\.")


def _texts(value: Any) -> list[str]:
    match value:
        case dict():
            return [text for each in value.values() for text in _texts(each)]
        case list():
            return [text for each in value for text in _texts(each)]
    return [value] if isinstance(value, str) else []


def test_json_output_contains_no_python_reprs_or_nan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, target = tmp_path / "odd_flows.py", f"local:{tmp_path / 'odd.db'}"
    code.write_text(ODD_FLOWS)
    assert main(["run", f"{code}:odd", "1", "--id", "odd-1", "--quiet", "--target", target]) == 0
    action = ScheduleActionStartWorkflow("odd", 2.5, memo={"why": 1}, task_timeout=timedelta(seconds=5))
    spec = ScheduleSpec(cron_expressions=["0 0 1 1 *"], time_zone_name="Europe/Berlin", jitter=3)
    with Client.connect(target) as client:
        client.create_schedule("yearly", Schedule(action, spec))
        memo = {"odd": float("inf"), "nested": {"a": [1]}}
        client.start_workflow("odd", 1, id="odd-2", task_queue="nowhere", memo=memo)

    def refuse(name: str) -> None:
        raise AssertionError(name)

    for command in (
        ["list"],
        ["list", "--count", "GROUP BY ExecutionStatus"],
        ["describe", "odd-1"],
        ["describe", "odd-2"],
        ["show", "odd-1"],
        ["why", "odd-1"],
        ["result", "odd-1"],
        ["schedule", "list"],
        ["schedule", "describe", "yearly"],
        ["activity", "list", "odd-2"],
        ["doctor"],
    ):
        capsys.readouterr()
        code = 1 if command == ["doctor"] else 0  # it reports the run that no worker takes
        assert main([*command, "--json", "--target", target]) == code
        text = capsys.readouterr().out
        lists = command[-1] == "list" or command in (["doctor"], ["activity", "list", "odd-2"])
        documents = [
            json.loads(each, parse_constant=refuse) for each in (text.splitlines() if lists else [text])
        ]
        if command[0] != "result":
            assert all(isinstance(each, dict) for each in documents), command
        assert not [each for found in documents for each in _texts(found) if PYTHON_REPR.search(each)], (
            command
        )
    assert main(["result", "odd-1", "--json", "--target", target]) == 0
    assert json.loads(capsys.readouterr().out) == "NaN"
