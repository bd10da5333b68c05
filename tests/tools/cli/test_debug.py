"""`hourglass debug`: a run step by step, a single event, JSON, and comparison with other code."""

from __future__ import annotations

import importlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from command_line import main
from hourglass.testing import Environment

Capture = pytest.CaptureFixture[str]

FLOWS = """
from hourglass import activity, workflow


@activity.defn
def pack(item: str) -> str:
    return f"packed {item}"


@workflow.defn
def parcel(item: str) -> str:
    first = pack(item)
    workflow.sleep(60)
    second = pack(first)
    return second
"""


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write a history, and flows_debugged.py, the code that produced it."""
    (tmp_path / "flows_debugged.py").write_text(FLOWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("flows_debugged")
    with Environment() as env:
        handle = env.start_workflow(module.parcel, "cup")
        assert handle.result() == "packed packed cup"
        handle.history().to_file("history.json")
    _forget_modules()
    yield "history.json"
    _forget_modules()


def _forget_modules() -> None:
    for name in [each for each in sys.modules if each.startswith("flows_debugged")]:
        del sys.modules[name]


def test_debug_without_terminal_lists_events_and_commands_of_each_step(history: str, capsys: Capture) -> None:
    assert main(["debug", history, "--code", "flows_debugged.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=3)[3] for line in lines] == [
        "run started parcel -> schedule activity pack",
        "activity completed pack -> start timer of 60 s",
        "timer fired of 60 s -> schedule activity pack",
        "activity completed pack -> complete run",
    ]


def test_debug_at_an_event_shows_source_variables_changes_and_commands(history: str, capsys: Capture) -> None:
    assert main(["debug", history, "--code", "flows_debugged.py", "--at", "12"]) == 0
    out = capsys.readouterr().out
    assert "step 2 of 4" in out
    assert "flows_debugged.py:13 in parcel" in out
    assert ">   13 |     workflow.sleep(60)" in out
    assert "changed parcel: first: (not set) -> 'packed cup'" in out
    assert "first = 'packed cup'" in out
    assert "command start timer of 60 s  (flows_debugged.py:13)" in out


def test_debug_json_contains_every_step_with_its_fibers(history: str, capsys: Capture) -> None:
    assert main(["debug", history, "--code", "flows_debugged.py", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["error"] is None
    assert [len(each["fibers"] or ()) for each in document["moments"]] == [1, 1, 1, 0]


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        (
            "flows_debugged_new.py",
            "workflow.sleep(60)",
            "pack('tape')",
            [
                "the first difference is at step 2",
                "command start timer of 60 s  (flows_debugged.py:13)",
                "command schedule activity pack  (flows_debugged_new.py:13)",
                "the code matches the history",
                "what if does not match the history",
            ],
        ),
        ("flows_debugged_same.py", "second", "last", ["the same in all 4 steps"]),
        ("changed/flows_debugged.py", "sleep(60)", "sleep(61)", ["start timer of 61 s"]),
        (
            "flows_debugged_other.py",
            "pack(first)",
            "pack('another')",
            [
                "the first difference is at step 3",
                "what if does not match the history: arguments of activity pack",
            ],
        ),
    ],
    ids=["other step", "same", "same name of the file", "other arguments"],
)
def test_debug_what_if_shows_the_first_different_step(
    history: str, capsys: Capture, name: str, old: str, new: str, expected: list[str]
) -> None:
    Path("changed").mkdir()
    Path(name).write_text(FLOWS.replace(old, new))
    is_same = "the same in all 4 steps" in expected
    assert main(["debug", history, "--code", "flows_debugged.py", "--what-if", name]) == (not is_same)
    out = capsys.readouterr().out
    assert [text for text in expected if text not in out] == []
    assert ("the same in all" in out) is is_same


def test_debug_what_if_at_an_event_shows_both_versions(history: str, capsys: Capture) -> None:
    Path("flows_debugged_new.py").write_text(FLOWS.replace("workflow.sleep(60)", "pack('tape')"))
    options = ["--code", "flows_debugged.py", "--what-if", "flows_debugged_new.py", "--at", "12"]
    command = ["debug", history, *options]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert out.count("event 9") == 2 or out.count("step 2 of") == 2
    assert "step 1 of" not in out
    assert main([*command, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [len(document[each]["moments"]) for each in ("code", "what_if")] == [1, 1]


def test_debug_rejects_an_unknown_event(history: str, capsys: Capture) -> None:
    assert main(["debug", history, "--code", "flows_debugged.py", "--at", "999"]) == 2
    assert "event 999 does not exist: this history has" in capsys.readouterr().err


def test_debug_requires_the_code_option(history: str, capsys: Capture) -> None:
    assert main(["debug", history]) == 2
    assert "--code" in capsys.readouterr().err


class PseudoTerminal:
    """A program on a pseudo terminal."""

    def __init__(self, *words: str) -> None:
        ours, theirs = pty.openpty()
        call = [sys.executable, "-m", "hourglass", *words]
        environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm", "PYTHONPATH": os.getcwd()}
        self.process = subprocess.Popen(
            call, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
        )
        os.close(theirs)
        self._ours = ours
        self.seen = ""

    def read_until(self, text: str) -> str:
        """Read until the text is printed. Return the output before it."""
        while text not in self.seen:
            self.seen += os.read(self._ours, 65_536).decode(errors="replace")
        output, _, self.seen = self.seen.partition(text)
        return output

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(history: str) -> Iterator[PseudoTerminal]:
    terminal_process = PseudoTerminal("debug", history, "--code", "flows_debugged.py")
    yield terminal_process
    terminal_process.close()


PROMPT = "q quit > "


def test_debugger_keys_step_forward_back_list_and_quit(terminal: PseudoTerminal) -> None:
    assert "step 1 of" in terminal.read_until(PROMPT)
    terminal.type("\n")
    assert "step 2 of" in terminal.read_until(PROMPT)
    terminal.type("p\n")
    assert "step 1 of" in terminal.read_until(PROMPT)
    terminal.type("l\n")
    assert "schedule activity pack" in terminal.read_until(PROMPT)
    terminal.type("q\n")
    assert terminal.process.wait(30) == 0


def test_ctrl_c_ends_the_debugger_with_exit_code_130(terminal: PseudoTerminal) -> None:
    terminal.read_until(PROMPT)
    for _ in range(30):
        # A signal between the prompt and the wait for a line is heard with the next key, or the next signal.
        os.killpg(terminal.process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            assert terminal.process.wait(2) == 130
            return
    raise AssertionError("it continues")
