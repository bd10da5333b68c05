"""Unusual inputs and output streams: a message and an exit code, never a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from command_line import forget_consoles, main
from hourglass.client import Client

from .command import SHOP

UNDECODABLE = os.fsdecode(b"\xff\xfe")
BAD_HISTORIES = {
    "cut.json": b'{"events": [',
    "numbers.json": b'{"events": [1, 2]}',
    "empty.json": b"[]",
    "five.json": b"5",
    "null.json": b'{"events": null}',
    "odd.json": b'{"events":[{"eventId":"x","eventTime":"nonsense","eventType":7}]}',
    "deep.json": b"[" * 100_000,
    "binary.json": b"\xff\xfe\x00\x01",
    "nothing.json": b"",
}

INPUTS: tuple[tuple[str, ...], ...] = (
    *((command, name) for command in ("show",) for name in BAD_HISTORIES),
    *(("replay", "shop.py", name) for name in BAD_HISTORIES),
    ("show", "folder.json"),
    ("show", "missing.json"),
    ("show", "/"),
    ("show", UNDECODABLE),
    ("show", "w", "--target", "local:good.db", "--html", "/nonexistent/page.html"),
    ("show", "w", "--target", "local:good.db", "--svg", "folder.json"),
    ("show", "w", "--target", "local:good.db", "--rows", "9" * 30),
    ("list", "--target", "local:good.db", "--limit", "9" * 30),
    ("list", "--target", "local:good.db", "--limit", "-1"),
    ("list", "--target", "local:good.db", "(" * 3000),
    ("list", "--target", "local:good.db", "StartTime > '9999-99-99'"),
    ("list", "--target", "local:good.db", UNDECODABLE),
    ("list", "--target", "local:junk.db"),
    ("list", "--target", "local:folder.json"),
    ("list", "--target", "local:/nonexistent/x.db"),
    ("list", "--target", f"local:{'a' * 5000}"),
    ("list", "--target", "host"),
    ("list", "--target", "host:99999999999"),
    ("list", "--target", "[::1"),
    ("list", "--target", "localhost:٣"),
    ("list", "--target", UNDECODABLE),
    ("list", "--target", "profile:nothing"),
    ("list", "--codec", "os:nothing", "--target", "local:good.db"),
    ("list", "--codec", "os:path", "--target", "local:good.db"),
    ("list", "--codec", "os:getcwd", "--target", "local:good.db"),
    ("describe", "", "--target", "local:good.db"),
    ("describe", UNDECODABLE, "--target", "local:good.db"),
    ("describe", "a" * 5000, "--target", "local:good.db"),
    ("why", UNDECODABLE, "--target", "local:good.db"),
    ("start", "checkout", "[" * 100_000, "--target", "local:good.db"),
    ("start", "checkout", "9" * 6000, "--target", "local:good.db"),
    ("start", UNDECODABLE, "--target", "local:good.db"),
    ("signal", UNDECODABLE, "w", UNDECODABLE, "--target", "local:good.db"),
    ("reset", "w", "--event-id", "-1", "--target", "local:good.db"),
    ("reset", "w", "--event-id", "9" * 30, "--target", "local:good.db"),
    ("backup", "missing.db", "copy.db"),
    ("backup", "junk.db", "copy.db"),
    ("backup", "folder.json", "copy.db"),
    ("backup", "good.db", "/nonexistent/copy.db"),
    ("backup", "good.db", "."),
    ("backup", UNDECODABLE, "copy.db"),
    ("check", "binary.py"),
    ("check", "nul.py"),
    ("check", UNDECODABLE),
    ("run", "binary.py"),
    ("run", "nul.py"),
    ("run", "folder.py"),
    ("run", UNDECODABLE),
    ("worker", "nul.py", "--no-parent", "--target", "local:good.db"),
    ("worker", "shop.py", "--no-parent", "--target", "local:good.db", "--status-address", "nowhere"),
    ("worker", "shop.py", "--no-parent", "--target", "local:good.db", "--drain-timeout", "nan"),
    ("doctor", "--target", "local:junk.db"),
    ("doctor", "--target", "local:folder.json"),
    ("doctor", "--task-queue", UNDECODABLE, "--target", "local:good.db"),
    (UNDECODABLE,),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with valid and invalid files."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "shop.py").write_text(SHOP)
    (folder / "binary.py").write_bytes(b"\xff\xfe\x00\x01")
    (folder / "nul.py").write_bytes(b"x = 1\x00")
    (folder / "junk.db").write_bytes(b"this is no database " * 100)
    for name in ("folder.json", "folder.py"):
        (folder / name).mkdir()
    for name, data in BAD_HISTORIES.items():
        (folder / name).write_bytes(data)
    with Client.connect(f"local:{folder}/good.db") as client:
        client.start_workflow("checkout", "1", id="w", task_queue="nowhere")
    return folder


def input_id(arguments: tuple[str, ...]) -> str:
    return " ".join(each[:30] for each in arguments).encode("unicode_escape").decode()


@pytest.mark.parametrize("arguments", INPUTS, ids=input_id)
def test_unusual_input_has_a_specific_error_message(
    arguments: tuple[str, ...],
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(files)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("HOURGLASS_TARGET", raising=False)
    forget_consoles()
    code = main(list(arguments))
    output = capfd.readouterr()
    forget_consoles()
    assert code in (0, 1, 2)
    assert "Traceback" not in output.err
    assert "better message" not in output.err
    assert output.out + output.err


class UnexpectedError(Exception):
    pass


@pytest.mark.parametrize(
    "error", [UnexpectedError("sesame"), RecursionError("deep"), MemoryError(), OSError(28, "No space left")]
)
def test_unexpected_error_is_one_line_without_the_traceback_option(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raises() -> None:
        raise error

    monkeypatch.setitem(sys.modules, "surprising", SimpleNamespace(codec=raises))
    command = ["show", "order-1", "--target", "local:", "--codec", "surprising:codec"]
    for arguments, shown in ((command, False), ([*command, "--traceback"], True)):
        forget_consoles()
        assert main(arguments) == 1
        output = capsys.readouterr().err
        assert "error: " in output
        assert ("Traceback" in output) is shown
    forget_consoles()


@pytest.mark.skipif(os.name != "posix", reason="streams of POSIX")
@pytest.mark.parametrize("redirected", [">&-", "2>&-", ">&- 2>&- <&-", ">/dev/full", "2>/dev/full", "| true"])
@pytest.mark.parametrize("arguments", ["describe w --json --target local:good.db", "nonsense"])
def test_closed_or_full_output_streams_set_the_exit_code(
    redirected: str, arguments: str, files: Path
) -> None:
    if "/dev/full" in redirected and not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full here")
    ended = subprocess.run(
        ["sh", "-c", f'"$0" -m hourglass {arguments} {redirected}', sys.executable],
        cwd=files,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in ended.stdout + ended.stderr
    assert "Exception ignored" not in ended.stdout + ended.stderr
    wrong = "nonsense" in arguments
    full = redirected == ">/dev/full"
    assert ended.returncode == (0 if "|" in redirected else 2 if wrong else 1 if full else 0)


def test_show_on_an_ascii_stream_escapes_other_characters(files: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "hourglass", "show", "w", "--target", "local:good.db"],
        cwd=files,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert b"Traceback" not in ended.stderr
