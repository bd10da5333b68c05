"""`hourglass run`, `replay` and `doctor`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import main
from hourglass import History

Capture = pytest.CaptureFixture[str]

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
def flows_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a file of workflows into a temporary working directory. Yield its path."""
    name = f"flows_{abs(hash(tmp_path)) % 10**8}"
    path = tmp_path / f"{name}.py"
    path.write_text(FLOWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOURGLASS_TARGET", raising=False)
    monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield path
    sys.modules.pop(name, None)


@pytest.fixture
def changed_file(flows_file: Path) -> Iterator[Callable[[str, str], Path]]:
    """Return a function that writes a changed copy of the workflows."""
    changed = flows_file.with_name(f"{flows_file.stem}_changed.py")

    def write(old: str, new: str) -> Path:
        changed.write_text(FLOWS.replace(old, new))
        return changed

    yield write
    sys.modules.pop(changed.stem, None)


def test_run_command_prints_the_result_and_uses_the_default_file(flows_file: Path, capsys: Capture) -> None:
    assert main(["run", f"{flows_file}:parcel", "book", "--id", "p-1"]) == 0
    assert capsys.readouterr().out.endswith("packed book\n")
    assert (flows_file.parent / "hourglass.db").exists()
    assert main(["run", f"{flows_file}:parcel", "book", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == "packed book"


def test_run_command_rejects_the_id_of_a_completed_workflow_unless_again(
    flows_file: Path, capsys: Capture
) -> None:
    """Its effects, such as a payment, would be repeated."""
    command = ["run", f"{flows_file}:parcel", "book", "--id", "p-1"]
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


def test_run_command_rejects_the_id_of_a_failed_workflow_unless_again(
    flows_file: Path, capsys: Capture
) -> None:
    command = ["run", f"{flows_file}:fails", "x", "--id", "f-1"]
    assert main(command) == 1
    assert main(command) == 2
    assert "f-1 is already closed (failed at " in capsys.readouterr().err
    assert main([*command, "--again"]) == 1


def test_run_command_of_a_parked_workflow_ends_with_the_line_of_the_bug(
    flows_file: Path, capsys: Capture
) -> None:
    assert main(["run", f"{flows_file}:broken", "book"]) == 1
    err = capsys.readouterr().err
    assert "no such item" in err
    line = FLOWS.splitlines().index('    raise ValueError("no such item")') + 1
    assert f'{flows_file.name}", line {line}' in err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fails", "error: the workflow failed: SoldOut: sold out\n  see hourglass why "),
        (
            "unlucky",
            "the workflow failed: activity jam failed: ValueError: no tape (because OSError: the drawer is locked)",
        ),
    ],
)
def test_run_command_prints_the_failure_of_the_workflow_and_its_root_cause(
    flows_file: Path, name: str, message: str, capsys: Capture
) -> None:
    assert main(["run", f"{flows_file}:{name}", "x"]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        ([""], ["choose a workflow"]),
        ([":nothing"], ["no workflow 'nothing'"]),
        ([":parcel"], ["workflow parcel is missing its argument 'item'"]),
        ([":crate", '{"items": "book"}'], ["argument 'box' of workflow crate: ", "$.items"]),
    ],
)
def test_run_command_with_a_missing_or_invalid_argument_starts_nothing(
    flows_file: Path, arguments: list[str], messages: list[str], capsys: Capture
) -> None:
    name, *values = arguments
    assert main(["run", f"{flows_file}{name}", *values]) == 2
    err = capsys.readouterr().err
    assert all(message in err for message in messages)
    assert not (flows_file.parent / "hourglass.db").exists()


def test_replay_command_detects_changed_code(
    flows_file: Path, changed_file: Callable[[str, str], Path], capsys: Capture
) -> None:
    assert main(["run", f"{flows_file}:parcel", "book", "--id", "p-1"]) == 0
    assert main(["replay", "--query", "WorkflowType = 'parcel'", "--code", str(flows_file)]) == 0
    assert "1 of 1 fit" in capsys.readouterr().out
    changed = changed_file("return pack(item)", "workflow.sleep(1); return pack(item)")
    assert main(["replay", "--query", "WorkflowType = 'parcel'", "--code", str(changed)]) == 1
    out = capsys.readouterr().out
    assert "BREAKS  p-1" in out
    assert f"   at {changed.name}:" in out  # a path relative to the current folder
    assert changed.name in out


def test_replay_command_reports_invalid_and_missing_histories(flows_file: Path, capsys: Capture) -> None:
    (flows_file.parent / "bad.json").write_text("{}")
    assert main(["replay", "bad.json", "--code", str(flows_file)]) == 1
    assert "BROKEN  bad.json" in capsys.readouterr().out
    assert main(["replay", "none.json", "--code", str(flows_file)]) == 2
    assert main(["replay", "bad.json"]) == 2


def _typescript_history() -> str:
    """Return the history of a run of TypeScript's SDK that scheduled the activities `first` and `second` in one task."""
    queue: dict[str, Any] = {"taskQueue": {"name": "q"}}
    started = {"workflowType": {"name": "pair"}, "originalExecutionRunId": "r", "workflowId": "w", **queue}
    signed = {"sdkName": "temporal-typescript", "coreUsedFlags": [1]}
    command = {"workflowTaskCompletedEventId": 4, **queue}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("workflowExecutionStarted", started),
        ("workflowTaskScheduled", queue),
        ("workflowTaskStarted", {"scheduledEventId": 2}),
        ("workflowTaskCompleted", {"scheduledEventId": 2, "startedEventId": 3, "sdkMetadata": signed}),
        ("activityTaskScheduled", {"activityId": "1", "activityType": {"name": "first"}, **command}),
        ("activityTaskScheduled", {"activityId": "2", "activityType": {"name": "second"}, **command}),
    ]
    events = [
        {"eventId": number, "eventType": name[0].upper() + name[1:], f"{name}EventAttributes": attributes}
        for number, (name, attributes) in enumerate(kinds, 1)
    ]
    return json.dumps({"events": events})


def test_replay_command_suggests_its_option_for_changed_arguments(
    flows_file: Path, changed_file: Callable[[str, str], Path], capsys: Capture
) -> None:
    assert main(["run", f"{flows_file}:parcel", "book", "--id", "p-1"]) == 0
    changed = changed_file("return pack(item)", "return pack(item + '!')")
    command = ["replay", "--query", "WorkflowType = 'parcel'", "--code", str(changed)]
    capsys.readouterr()
    assert main(command) == 1
    assert "to permit it here too, use --no-arguments" in capsys.readouterr().out
    assert main([*command, "--no-arguments"]) == 0


PAIR = """
from hourglass import workflow

@workflow.defn
def pair() -> None:
    names = "second", "first"
    tasks = [workflow.start_activity(name, start_to_close_timeout=60) for name in names]
    workflow.gather(*tasks)
"""


def test_replay_command_reports_changed_order_of_commands_as_equal_but_broken(
    flows_file: Path, capsys: Capture
) -> None:
    code = flows_file.with_name(f"{flows_file.stem}_pair.py")
    code.write_text(PAIR)
    folder = flows_file.parent / "recorded"
    folder.mkdir()
    (folder / "pair.json").write_text(_typescript_history())
    (folder / "pair.bin").write_bytes(History.from_json(_typescript_history()).encoded)
    assert main(["replay", str(folder), "--code", str(code)]) == 1
    out = capsys.readouterr().out
    assert out.count("BREAKS") == out.count("does the same as") == 2
    assert main(["replay", str(folder), "--code", str(code), "--json"]) == 1
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["ok"], each["same"], each["difference"]) for each in results] == [(False, True, None)] * 2
    sys.modules.pop(code.stem, None)


def test_doctor_command_reports_reachability(flows_file: Path, capsys: Capture) -> None:
    assert main(["run", f"{flows_file}:parcel", "book", "--quiet"]) == 0
    assert main(["doctor"]) == 0
    assert "ok    reachable" in capsys.readouterr().out
    assert main(["doctor", "--target", "127.0.0.1:1", "--json"]) == 1
    findings = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["check"] for each in findings if each["ok"] is False] == ["reachable"]


def test_run_command_shows_the_users_line_of_an_invalid_activity_call(
    flows_file: Path, changed_file: Callable[[str, str], Path], capsys: Capture
) -> None:
    faulty_file = changed_file("return pack(item)", "return pack(itm=item)")
    assert main(["run", f"{faulty_file}:parcel", "book"]) == 1
    err = capsys.readouterr().err
    assert "no argument 'itm'" in err
    assert f'{faulty_file.name}", line {FLOWS.splitlines().index("    return pack(item)") + 1}' in err


def test_run_command_passes_a_number_to_a_str_parameter_as_str(flows_file: Path, capsys: Capture) -> None:
    assert main(["run", f"{flows_file}:parcel", "4711", "--quiet"]) == 0
    assert capsys.readouterr().out == "packed 4711\n"
