"""`hourglass run`, `replay` and `doctor`: a workflow from a file to its result, histories against code, and what is wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import main
from hourglass import History

FLOWS = """
from dataclasses import dataclass

from hourglass import ApplicationError, RetryPolicy, activity, workflow


@activity.defn
def pack(item: str) -> str:
    return f"packed {item}"


@workflow.defn
def parcel(item: str) -> str:
    return pack(item)


@workflow.defn
def broken(item: str) -> str:
    pack(item)
    raise ValueError("no such item")


@workflow.defn
def fails(item: str) -> str:
    raise ApplicationError("sold out", type="SoldOut")


@dataclass
class Box:
    items: list[str]


@workflow.defn
def crate(box: Box) -> str:
    return pack(",".join(box.items))


@activity.defn(retry_policy=RetryPolicy(maximum_attempts=1))
def jam(item: str) -> str:
    raise ValueError("no tape") from OSError("the drawer is locked")


@workflow.defn
def unlucky(item: str) -> str:
    return jam(item)
"""


@pytest.fixture
def flows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a file of workflows, which is the working directory."""
    name = f"flows_{abs(hash(tmp_path)) % 10**8}"
    path = tmp_path / f"{name}.py"
    path.write_text(FLOWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOURGLASS_TARGET", raising=False)
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield path
    sys.modules.pop(name, None)


def test_run_shows_the_result(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A workflow runs to its end on the default target, a file, and its result is the output."""
    assert main(["run", f"{flows}:parcel", "book", "--id", "p-1"]) == 0
    assert capsys.readouterr().out.endswith("packed book\n")
    assert (flows.parent / "hourglass.db").exists()
    assert main(["run", f"{flows}:parcel", "book", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == "packed book"


def test_run_rejects_the_id_of_a_closed_workflow(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it did, such as a payment, would be done again: the advice names what shows it, and --again, which runs it."""
    command = ["run", f"{flows}:parcel", "book", "--id", "p-1"]
    assert main(command) == 0
    capsys.readouterr()
    assert main(command) == 2
    refused = capsys.readouterr()
    assert refused.out == ""
    assert "p-1 is already closed (completed at " in refused.err
    assert "--again" in refused.err
    assert "hourglass show p-1" in refused.err
    assert main([*command, "--again"]) == 0
    assert capsys.readouterr().out.endswith("packed book\n")
    assert main(["list", "WorkflowId = 'p-1'", "--count"]) == 0
    assert capsys.readouterr().out.strip() == "2"


def test_run_rejects_the_id_of_a_failed_workflow(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Part of it may have been done."""
    command = ["run", f"{flows}:fails", "x", "--id", "f-1"]
    assert main(command) == 1
    assert main(command) == 2
    assert "f-1 is already closed (failed at " in capsys.readouterr().err
    assert main([*command, "--again"]) == 1


def test_bug_ends_the_command_with_its_line(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A workflow that raises a ValueError ends with the line, not a hang."""
    assert main(["run", f"{flows}:broken", "book"]) == 1
    err = capsys.readouterr().err
    assert "no such item" in err
    line = FLOWS.splitlines().index('    raise ValueError("no such item")') + 1
    assert f'{flows.name}", line {line}' in err


def test_workflow_failure_is_shown(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A workflow that fails: exit code 1 and why."""
    assert main(["run", f"{flows}:fails", "x"]) == 1
    assert "error: the workflow failed: SoldOut: sold out\n  see hourglass why " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"), [("", "choose a workflow"), (":nothing", "no workflow 'nothing'")]
)
def test_file_with_several_workflows_needs_a_name(
    flows: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file with several workflows needs a name, and one that it has."""
    assert main(["run", f"{flows}{name}"]) == 2
    assert message in capsys.readouterr().err


def test_replay_detects_changed_code(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Histories from where they ran fit the code that made them, and not the code that was changed."""
    assert main(["run", f"{flows}:parcel", "book", "--id", "p-1"]) == 0
    assert main(["replay", "--query", "WorkflowType = 'parcel'", "--code", str(flows)]) == 0
    assert "1 of 1 fit" in capsys.readouterr().out
    changed = flows.with_name(f"{flows.stem}_changed.py")
    changed.write_text(FLOWS.replace("return pack(item)", "workflow.sleep(1); return pack(item)"))
    assert main(["replay", "--query", "WorkflowType = 'parcel'", "--code", str(changed)]) == 1
    out = capsys.readouterr().out
    assert "BREAKS  p-1" in out
    assert f"   at {changed.name}:" in out  # a path relative to the current folder
    assert changed.name in out
    sys.modules.pop(changed.stem, None)


def test_replay_rejects_files_that_are_no_history(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no history is said to be broken, a missing one is asked for wrongly."""
    (flows.parent / "bad.json").write_text("{}")
    assert main(["replay", "bad.json", "--code", str(flows)]) == 1
    assert "BROKEN  bad.json" in capsys.readouterr().out
    assert main(["replay", "none.json", "--code", str(flows)]) == 2
    assert main(["replay", "bad.json"]) == 2


def _of_typescript() -> str:
    """A run that asked for two activities at once, `first` before `second`, as TypeScript's SDK signs it."""
    queue: dict[str, Any] = {"taskQueue": {"name": "q"}}
    started = {"workflowType": {"name": "pair"}, "originalExecutionRunId": "r", "workflowId": "w", **queue}
    signed = {"sdkName": "temporal-typescript", "coreUsedFlags": [1]}
    asked = {"workflowTaskCompletedEventId": 4, **queue}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("workflowExecutionStarted", started),
        ("workflowTaskScheduled", queue),
        ("workflowTaskStarted", {"scheduledEventId": 2}),
        ("workflowTaskCompleted", {"scheduledEventId": 2, "startedEventId": 3, "sdkMetadata": signed}),
        ("activityTaskScheduled", {"activityId": "1", "activityType": {"name": "first"}, **asked}),
        ("activityTaskScheduled", {"activityId": "2", "activityType": {"name": "second"}, **asked}),
    ]
    events = [
        {"eventId": number, "eventType": name[0].upper() + name[1:], f"{name}EventAttributes": attributes}
        for number, (name, attributes) in enumerate(kinds, 1)
    ]
    return json.dumps({"events": events})


def test_replay_names_its_own_option(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An argument that changed is told with the option that allows it here, and that option does."""
    assert main(["run", f"{flows}:parcel", "book", "--id", "p-1"]) == 0
    changed = flows.with_name(f"{flows.stem}_changed.py")
    changed.write_text(FLOWS.replace("return pack(item)", "return pack(item + '!')"))
    asked = ["replay", "--query", "WorkflowType = 'parcel'", "--code", str(changed)]
    capsys.readouterr()
    assert main(asked) == 1
    assert "to permit it here too, use --no-arguments" in capsys.readouterr().out
    assert main([*asked, "--no-arguments"]) == 0
    sys.modules.pop(changed.stem, None)


PAIR = """
from hourglass import workflow

@workflow.defn
def pair() -> None:
    names = "second", "first"
    tasks = [workflow.start_activity(name, start_to_close_timeout=60) for name in names]
    workflow.gather(*tasks)
"""


def test_replay_reports_a_changed_order(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same things in another order: a worker would not continue, which is the exit code, but nothing else differs."""
    code = flows.with_name(f"{flows.stem}_pair.py")
    code.write_text(PAIR)
    folder = flows.parent / "recorded"
    folder.mkdir()
    (folder / "pair.json").write_text(_of_typescript())
    (folder / "pair.bin").write_bytes(History.from_json(_of_typescript()).encoded)
    assert main(["replay", str(folder), "--code", str(code)]) == 1
    out = capsys.readouterr().out
    assert out.count("BREAKS") == out.count("does the same as") == 2
    assert main(["replay", str(folder), "--code", str(code), "--json"]) == 1
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["ok"], each["same"], each["difference"]) for each in told] == [(False, True, None)] * 2
    sys.modules.pop(code.stem, None)


def test_doctor_command(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is there is said; a target that cannot be reached is wrong."""
    assert main(["run", f"{flows}:parcel", "book", "--quiet"]) == 0
    assert main(["doctor"]) == 0
    assert "ok    reachable" in capsys.readouterr().out
    assert main(["doctor", "--target", "127.0.0.1:1", "--json"]) == 1
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["check"] for each in findings if each["ok"] is False] == ["reachable"]


def test_wrong_number_of_arguments_starts_nothing(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments are checked before anything is started, and said in the words of the workflow."""
    assert main(["run", f"{flows}:parcel"]) == 2
    assert "workflow parcel is missing its argument 'item'" in capsys.readouterr().err
    assert not (flows.parent / "hourglass.db").exists()


def test_mistake_in_a_call_names_the_authors_line(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where our own code raised for the author's, the line is the author's."""
    wrong = flows.with_name(f"{flows.stem}_wrong.py")
    wrong.write_text(FLOWS.replace("return pack(item)", "return pack(itm=item)"))
    assert main(["run", f"{wrong}:parcel", "book"]) == 1
    err = capsys.readouterr().err
    assert "no argument 'itm'" in err
    assert f'{wrong.name}", line {FLOWS.splitlines().index("    return pack(item)") + 1}' in err
    sys.modules.pop(wrong.stem, None)


def test_arguments_of_a_wrong_type_start_nothing(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A value of a wrong form is said with its place in the argument, and makes neither a run nor a file."""
    assert main(["run", f"{flows}:crate", '{"items": "book"}']) == 2
    err = capsys.readouterr().err
    assert "argument 'box' of workflow crate: " in err
    assert "$.items" in err
    assert not (flows.parent / "hourglass.db").exists()


def test_number_for_a_str_parameter_is_a_str(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Orders have numbers for names: what the workflow takes decides, not what looks like JSON."""
    assert main(["run", f"{flows}:parcel", "4711", "--quiet"]) == 0
    assert capsys.readouterr().out == "packed 4711\n"


def test_failed_activity_is_named_with_its_error(flows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line: the activity, the exception, and what that began with."""
    assert main(["run", f"{flows}:unlucky", "x"]) == 1
    said = "the workflow failed: activity jam failed: ValueError: no tape (because OSError: the drawer is locked)"
    assert said in capsys.readouterr().err
