"""`hourglass debug`: a run step by step in a terminal, one moment, as JSON, and beside other code."""

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
    """A history in a file, beside the code that wrote it: flows_debugged.py."""
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


def test_steps_are_listed_without_a_terminal(history: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each: its history event, its events and its commands."""
    assert main(["debug", history, "--code", "flows_debugged.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=3)[3] for line in lines] == [
        "run started parcel -> schedule activity pack",
        "activity completed pack -> start timer of 60 s",
        "timer fired of 60 s -> schedule activity pack",
        "activity completed pack -> complete run",
    ]


def test_moment_of_an_event_is_shown_in_full(history: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The line with its source, the variables, what has changed, the commands."""
    assert main(["debug", history, "--code", "flows_debugged.py", "--at", "12"]) == 0
    out = capsys.readouterr().out
    assert "step 2 of 4" in out
    assert "flows_debugged.py:13 in parcel" in out
    assert ">   13 |     workflow.sleep(60)" in out
    assert "changed parcel: first: (not set) -> 'packed cup'" in out
    assert "first = 'packed cup'" in out
    assert "command start timer of 60 s  (flows_debugged.py:13)" in out


def test_json_contains_all_moments(history: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` writes every moment with its fibers."""
    assert main(["debug", history, "--code", "flows_debugged.py", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["error"] is None
    assert [len(each["fibers"] or ()) for each in document["moments"]] == [1, 1, 1, 0]


def test_what_if_shows_the_first_difference(history: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The history is replayed on other code; the first step that differs is shown for both versions."""
    Path("flows_debugged_new.py").write_text(FLOWS.replace("workflow.sleep(60)", "pack('tape')"))
    asked = ["debug", history, "--code", "flows_debugged.py", "--what-if", "flows_debugged_new.py"]
    assert main(asked) == 1
    out = capsys.readouterr().out
    assert "the first difference is at step 2" in out
    assert "command start timer of 60 s  (flows_debugged.py:13)" in out
    assert "command schedule activity pack  (flows_debugged_new.py:13)" in out
    assert "the code matches the history" in out
    assert "what if does not match the history" in out


def test_what_if_without_a_difference(history: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Code that only reads otherwise is the same."""
    Path("flows_debugged_same.py").write_text(FLOWS.replace("second", "last"))
    asked = ["debug", history, "--code", "flows_debugged.py", "--what-if", "flows_debugged_same.py"]
    assert main(asked) == 0
    assert "the same in all 4 steps" in capsys.readouterr().out


def test_what_if_loads_a_file_of_the_same_name(history: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed copy of the file in another folder is that copy, not the file that is loaded already."""
    Path("changed").mkdir()
    Path("changed/flows_debugged.py").write_text(FLOWS.replace("sleep(60)", "sleep(61)"))
    asked = ["debug", history, "--code", "flows_debugged.py", "--what-if", "changed/flows_debugged.py"]
    assert main(asked) == 1
    assert "start timer of 61 s" in capsys.readouterr().out


def test_what_if_detects_different_arguments(history: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps that look alike and hold other arguments: the walks part there, and nothing says that they are the same."""
    Path("flows_debugged_other.py").write_text(FLOWS.replace("pack(first)", "pack('another')"))
    asked = ["debug", history, "--code", "flows_debugged.py", "--what-if", "flows_debugged_other.py"]
    assert main(asked) == 1
    out = capsys.readouterr().out
    assert "the same in all" not in out
    assert "the first difference is at step 3" in out
    assert "what if does not match the history: arguments of activity pack" in out


def test_what_if_at_an_event_shows_both(history: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With an event both walks are shown there, as text and as JSON."""
    Path("flows_debugged_new.py").write_text(FLOWS.replace("workflow.sleep(60)", "pack('tape')"))
    asked = [
        "debug",
        history,
        "--code",
        "flows_debugged.py",
        "--what-if",
        "flows_debugged_new.py",
        "--at",
        "12",
    ]
    assert main(asked) == 1
    out = capsys.readouterr().out
    assert out.count("event 9") == 2 or out.count("step 2 of") == 2
    assert "step 1 of" not in out
    assert main([*asked, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [len(document[each]["moments"]) for each in ("code", "what_if")] == [1, 1]


def test_unknown_event_is_rejected(history: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An event after the last is a usage error, which says how many there are."""
    assert main(["debug", history, "--code", "flows_debugged.py", "--at", "999"]) == 2
    assert "event 999 does not exist: this history has" in capsys.readouterr().err


def test_code_must_be_named(history: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without code there is nothing to walk through."""
    assert main(["debug", history]) == 2
    assert "--code" in capsys.readouterr().err


class Terminal:
    """A program on a terminal of its own."""

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

    def until(self, text: str) -> str:
        """Wait until a text is written. Return the output before it."""
        while text not in self.seen:
            self.seen += os.read(self._ours, 65_536).decode(errors="replace")
        found, _, self.seen = self.seen.partition(text)
        return found

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def close(self) -> None:
        """Take the terminal away."""
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def terminal(history: str) -> Iterator[Terminal]:
    opened = Terminal("debug", history, "--code", "flows_debugged.py")
    yield opened
    opened.close()


PROMPT = "q quit > "


def test_step_by_step_in_a_terminal(terminal: Terminal) -> None:
    """Forward, back, the list, the end."""
    assert "step 1 of" in terminal.until(PROMPT)
    terminal.type("\n")
    assert "step 2 of" in terminal.until(PROMPT)
    terminal.type("p\n")
    assert "step 1 of" in terminal.until(PROMPT)
    terminal.type("l\n")
    assert "schedule activity pack" in terminal.until(PROMPT)
    terminal.type("q\n")
    assert terminal.process.wait(30) == 0


def test_ctrl_c_ends_the_debugger(terminal: Terminal) -> None:
    """As it ends every program: 130, without a traceback."""
    terminal.until(PROMPT)
    for _ in range(30):
        # A signal between the prompt and the wait for a line is heard with the next key, or the next signal.
        os.killpg(terminal.process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            assert terminal.process.wait(2) == 130
            return
    raise AssertionError("it continues")
