"""Control characters in ids, names, memos and failures: no command prints them to a terminal."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.live import Live
from rich.text import Text

from command_line import main
from effort import cases
from hourglass import Client, RetryPolicy, Worker, activity, workflow
from hourglass._tools.cli import console, logs

HOSTILE = (
    "\x1b]0;owned\x07",  # sets a title
    "\x1b[2J\x1b[1;1H",  # clears the screen
    "\x9b31m",  # C1: the same, in one character
    "\x90q\x9c",  # a device control string
    "\u202egpj.exe",  # turns the line around
    "\u2066x\u2069",
    "\u200f",
    "\x7f\x08\r",
)
ALL = "".join(HOSTILE)

CONTROL_CHARACTERS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def control_characters(text: str) -> list[str]:
    """Return the characters that could control a terminal."""
    return CONTROL_CHARACTERS.findall(text)


# --- the function -----------------------------------------------------------------------------------------------------


@settings(max_examples=cases(200, 5000))
@given(st.text(st.characters()))
def test_clean_removes_control_characters_and_keeps_lines(text: str) -> None:
    assert control_characters(console.clean(text)) == []
    assert console.clean(text).count("\n") == text.count("\n")
    assert control_characters(console.one_line(text)) == []
    assert not set(console.one_line(text)) & {"\n", "\t"}


@settings(max_examples=cases(200, 5000))
@given(st.text(st.characters(blacklist_categories=("Cc", "Cf", "Cs", "Zl", "Zp"))))
def test_clean_keeps_letters_of_every_script_and_emoji(text: str) -> None:
    assert console.clean(text) == text
    assert console.clean("👩‍🚀 می‌خواهم café") == "👩‍🚀 می‌خواهم café"


@settings(max_examples=cases(200, 5000))
@given(
    st.recursive(st.text(st.characters()), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))
)
def test_json_text_escapes_control_characters(value: Any) -> None:
    text = console.json_text(value, indent=2)
    assert control_characters(text) == []
    assert json.loads(text) == value


# --- the door ---------------------------------------------------------------------------------------------------------


@settings(max_examples=cases(100, 2000))
@given(st.text(st.characters()), st.booleans(), st.booleans())
def test_console_output_contains_no_foreign_control_characters(
    text: str, terminal: bool, whole: bool
) -> None:
    out = console.Screen(file=io.StringIO(), force_terminal=terminal, color_system="standard", width=40)
    console._print(out, Text.assemble(("error: ", "bold red"), text), soft_wrap=whole)
    console._print(out, text, soft_wrap=whole)
    out.print({"memo": text})
    with Live(console=out, auto_refresh=False) as live:
        live.update(Text(text), refresh=True)
    file = out.file
    assert isinstance(file, io.StringIO)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    assert control_characters(shown.replace("\r", "")) == []


@pytest.mark.parametrize("colour", [True, False])
def test_pretty_log_contains_no_control_characters(colour: bool) -> None:
    try:
        raise ValueError(ALL)
    except ValueError:
        error_info = sys.exc_info()
    record = logging.LogRecord(f"hourglass.{ALL}", logging.WARNING, "f", 1, "run %s", (ALL,), error_info)
    text = logs.PrettyFormatter(colour=colour).format(record)
    assert control_characters(text.replace("\x1b[33m", "").replace("\x1b[0m", "")) == []
    assert "owned" in text
    assert control_characters(logs.PlainFormatter().format(record)) == []


def test_log_formatters_indent_continuation_lines() -> None:
    """Otherwise a newline in a message could forge a record."""
    forged = "a\n12:00:00 ERROR   runs: forged\r\n12:00:00 ERROR   runs: forged"
    try:
        raise ValueError(forged)
    except ValueError:
        error_info = sys.exc_info()
    record = logging.LogRecord(
        f"hourglass.{forged}", logging.WARNING, "f", 1, f"{forged} %s", (forged,), error_info
    )
    record.stack_info = forged
    for formatter in (logs.PrettyFormatter(colour=False), logs.PlainFormatter()):
        first, *others = formatter.format(record).split("\n")
        assert not first.startswith("12:00:00 ERROR   runs: forged")
        assert len(others) > 5
        assert all(line.startswith("    ") for line in others)


def test_json_log_escapes_control_characters() -> None:
    record = logging.LogRecord("hourglass", logging.WARNING, "f", 1, "run %s", (ALL,), None)
    text = logs.JsonFormatter().format(record)
    assert control_characters(text) == []
    assert json.loads(text)["message"] == f"run {ALL}"


def test_printed_traceback_contains_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    console._console.cache_clear()
    try:
        raise ValueError(ALL)
    except ValueError as error:
        console.trace(error)
    console._console.cache_clear()
    assert control_characters(capsys.readouterr().err) == []


# --- the commands -----------------------------------------------------------------------------------------------------

ID = f"order-{ALL}"


@activity.defn(name=f"charge{ALL}", retry_policy=RetryPolicy(initial_interval=3600))
def charge() -> None:
    raise ValueError(f"refused {ALL}\nby the bank")


@workflow.defn(name=f"checkout{ALL}")
def checkout() -> None:
    charge()


@workflow.defn(name=f"fails{ALL}", failure_exceptions=[ValueError])
def fails() -> None:
    raise ValueError(f"failed {ALL}")


@pytest.fixture(scope="module")
def hostile_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a file of two runs with hostile names: one waits for a retry, one failed."""
    folder = tmp_path_factory.mktemp("hostile")
    with (
        Client.connect(f"local:{folder}/x.db") as client,
        Worker(client, workflows=[checkout, fails], activities=[charge]),
    ):
        opened = client.start_workflow(checkout, id=ID, memo={f"note{ALL}": ALL}, static_summary=f"sum {ALL}")
        failed = client.start_workflow(fails, id=f"failed-{ALL}")
        while not (pending := opened.describe().pending_activities) or pending[0].last_failure is None:
            pass
        while failed.describe().close_time is None:
            pass
        (folder / "history.json").write_text(json.dumps({"events": opened.history().events}))
    return folder


COMMANDS = (
    ("list",),
    ("list", "--json"),
    ("list", f"WorkflowId = '{ALL}'"),
    ("list", f"nonsense {ALL}"),
    ("list", "GROUP BY WorkflowType", "--count"),
    ("describe", ID),
    ("describe", ID, "--json"),
    ("describe", f"nothing-{ALL}"),
    ("describe", ID, "--run-id", ALL),
    ("show", ID),
    ("show", ID, "--payloads"),
    ("show", ID, "--json"),
    ("show", f"failed-{ALL}"),
    ("show", "history.json"),
    ("show", f"{ALL}.json"),
    ("why", ID),
    ("why", ID, "--json"),
    ("why", f"failed-{ALL}"),
    ("why", f"nothing-{ALL}"),
    ("why", ID, "--code", f"{ALL}.py"),
    ("signal", f"s{ALL}", f"nothing-{ALL}"),
    ("query", f"q{ALL}", f"failed-{ALL}"),
    ("cancel", f"failed-{ALL}"),
    ("terminate", f"nothing-{ALL}"),
    ("reset", ID, "--before", ALL),
    ("doctor", "--task-queue", ALL),
    ("doctor", "--target", f"local:{ALL}"),
    ("list", "--target", f"host{ALL}:1:1"),
    ("list", "--limit", ALL),
    ("list", f"--{ALL}"),
    (ALL,),
    ("show", ID, "--codec", ALL),
    ("check", ALL),
    ("check", "--explain", ALL),
    ("backup", ALL, "copy.db"),
    ("replay", f"{ALL}.py", "history.json"),
    ("run", f"{ALL}.py"),
    ("--traceback", "show", f"{ALL}.json"),
)


@pytest.mark.parametrize(
    "arguments", COMMANDS, ids=lambda each: " ".join(each).encode("unicode_escape").decode()
)
def test_no_command_prints_control_characters(
    arguments: tuple[str, ...],
    hostile_runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(hostile_runs)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("HOURGLASS_TARGET", "local:x.db")
    console._console.cache_clear()
    code = main(list(arguments))
    output = capfd.readouterr()
    console._console.cache_clear()
    assert control_characters(output.out + output.err) == []
    assert code in (0, 1, 2)
    assert output.out + output.err
    assert ("Traceback" in output.err) is ("--traceback" in arguments)
    if "--json" in arguments:
        json.loads(output.out.splitlines()[0] if arguments[0] == "list" else output.out)


def test_newline_in_a_workflow_id_does_not_start_an_output_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOURGLASS_TARGET", "local:x.db")
    forged = "a\nforged  completed"
    with Client.connect("local:x.db") as client:
        client.start_workflow("checkout", id=forged, task_queue="nowhere")
    for arguments in (["list"], ["describe", forged], ["show", forged], ["why", forged]):
        console._console.cache_clear()
        main(arguments)
        output = capfd.readouterr().out
        assert output
        assert not any(line.startswith("forged") for line in output.splitlines()), arguments
    console._console.cache_clear()


@pytest.mark.skipif(os.name != "posix", reason="bytes as arguments are POSIX")
def test_argument_that_is_not_utf8_is_shown_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    undecodable = os.fsdecode(b"\xff.json")
    assert main(["show", undecodable]) == 2
    assert r"\udcff.json" in capfd.readouterr().err
