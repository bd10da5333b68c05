"""Invalid usage: a message and exit code 2, without traceback and without restarts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import main

from .command import SHOP, run_command

NOWHERE = ("--target", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = (\n", ["broken.py:1: SyntaxError: '(' was never closed", "x = (", "^"]),
        (
            "import hourglass\n\nx = undefined\n",
            ["broken.py:3: NameError: name 'undefined' is not defined", "x = undefined"],
        ),
        ("import nothing_of_this_name\n", ["broken.py:1: ModuleNotFoundError", "nothing_of_this_name"]),
        ("import sys\nsys.exit(3)\n", ["broken.py:2: SystemExit: 3"]),
        (
            "import json\njson.loads('{')\n",
            ["broken.py:2: JSONDecodeError", "json.loads('{')"],
        ),
    ],
)
@pytest.mark.parametrize("parent", ["--parent", "--no-parent"])
def test_worker_reports_a_file_that_fails_to_load_with_its_line(
    content: str, message: list[str], parent: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.py").write_text(content)
    process = run_command("worker", "broken.py", parent, *NOWHERE, cwd=tmp_path)
    assert process.returncode == 2, process.stderr
    assert "error: broken.py cannot be imported" in process.stderr
    assert all(each in process.stderr for each in message), process.stderr
    assert "Traceback" not in process.stderr
    assert process.stderr.count(" started") == (parent == "--parent")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.py", "file nowhere.py does not exist"),
        ("nowhere", "module 'nowhere' was not found"),
        ("not-a-name", "'not-a-name' is neither a Python file nor the name of a module"),
        ("empty.py", "empty.py has no workflow and no activity"),
        ("borrows.py", "it imports some from shop: pass that as well"),
        ("inner/json.py", "another module has this name"),
        ("two-words.py", "is not a Python identifier: rename the file"),
    ],
)
def test_worker_reports_missing_empty_or_unimportable_modules(
    source: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "borrows.py").write_text("from shop import checkout\n")
    (tmp_path / "inner").mkdir()
    for name in ("empty.py", "inner/json.py", "two-words.py"):
        (tmp_path / name).write_text("")
    process = run_command("worker", source, *NOWHERE, cwd=tmp_path)
    assert process.returncode == 2
    assert message in process.stderr
    assert "Traceback" not in process.stderr


def test_worker_traceback_option_prints_the_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("x = undefined\n")
    process = run_command("worker", "broken.py", "--no-parent", "--traceback", *NOWHERE, cwd=tmp_path)
    assert process.returncode != 0
    assert "Traceback (most recent call last)" in process.stderr
    assert "NameError" in process.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "no spaces allowed"], "error: "),
        (["--target", "profile:nobody"], "error: "),
        (["--lanes", "0"], "lanes"),
        (["--what"], "--what"),
        (["--log", "xml"], "xml"),
        (["--target", "local:", "--status-address", "somewhere"], "status_address must be host:port"),
    ],
)
def test_worker_rejects_invalid_options_before_any_restart(
    options: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    clean = dict.fromkeys(("HOURGLASS_TARGET", "TEMPORAL_ADDRESS"), "")
    process = run_command("worker", "shop.py", *options, cwd=tmp_path, **clean)
    assert process.returncode == 2, process.stderr
    assert message in process.stderr
    assert "Traceback" not in process.stderr
    assert process.stderr.count(" started") <= 1


def test_help_fits_80_columns_and_imports_neither_temporalio_nor_engine(tmp_path: Path) -> None:
    code = (
        "import sys; from hourglass._tools.cli import main; code = main(sys.argv[1:]); "
        "print(*[name for name in sys.modules if name.startswith(('temporalio', 'google', 'hourglass._evaluator'))], sep='\\n', "
        "file=sys.stderr); sys.exit(code)"
    )
    for arguments in (["--help"], ["worker", "--help"]):
        process = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "COLUMNS": "80"},
        )
        assert process.returncode == 0
        assert process.stderr.strip() == ""
        assert max(map(len, process.stdout.splitlines())) <= 88
        assert "\x1b" not in process.stdout
    assert "--max-concurrent-local-activities" in process.stdout
    assert "--deadlock-timeout" in process.stdout


@pytest.mark.parametrize("group", [[], ["activity"], ["schedule"]], ids=["all", "activity", "schedule"])
def test_help_shows_command_summaries_in_full(group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*group, "--help"]) == 0
    _, _, commands = capsys.readouterr().out.partition("Commands:\n")
    assert commands
    assert "..." not in commands


def test_version_option_prints_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    from hourglass import __version__

    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_missing_typer_names_the_cli_extra() -> None:
    code = "import sys; sys.modules['typer'] = None; from hourglass._tools.cli import main; sys.exit(main(['--help']))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert process.returncode == 1
    assert process.stderr == (
        "the hourglass command needs two more packages: pip install 'hourglass-temporal[cli]'\n"
    )


def test_help_into_a_closed_pipe_prints_no_error() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as closed:
        process = subprocess.run(
            [sys.executable, "-m", "hourglass", "worker", "--help"],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert process.stderr == ""
