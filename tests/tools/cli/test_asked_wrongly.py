"""What is asked for wrongly is a message and exit code 2: no traceback, no process that is started again and again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import main

from .command import SHOP, run

NOWHERE = ("--target", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("content", "said"),
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
def test_file_with_a_syntax_error_is_reported(
    content: str, said: list[str], parent: str, tmp_path: Path
) -> None:
    """The message names the author's line; no restart, no traceback."""
    (tmp_path / "broken.py").write_text(content)
    done = run("worker", "broken.py", parent, *NOWHERE, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "error: broken.py cannot be imported" in done.stderr
    assert all(each in done.stderr for each in said), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count(" started") == (parent == "--parent")


@pytest.mark.parametrize(
    ("source", "said"),
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
def test_missing_or_empty_module_is_reported(source: str, said: str, tmp_path: Path) -> None:
    """What is not there, holds nothing, or cannot be imported under its name."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "borrows.py").write_text("from shop import checkout\n")
    (tmp_path / "inner").mkdir()
    for name in ("empty.py", "inner/json.py", "two-words.py"):
        (tmp_path / name).write_text("")
    done = run("worker", source, *NOWHERE, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_traceback_option_shows_everything(tmp_path: Path) -> None:
    """`--traceback` shows everything, also behind the command."""
    (tmp_path / "broken.py").write_text("x = undefined\n")
    done = run("worker", "broken.py", "--no-parent", "--traceback", *NOWHERE, cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback (most recent call last)" in done.stderr
    assert "NameError" in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--target", "no spaces allowed"], "error: "),
        (["--target", "profile:nobody"], "error: "),
        (["--lanes", "0"], "lanes"),
        (["--what"], "--what"),
        (["--log", "xml"], "xml"),
        (["--target", "local:", "--status-address", "somewhere"], "status_address must be host:port"),
    ],
)
def test_wrong_options_are_rejected(options: list[str], said: str, tmp_path: Path) -> None:
    """Options are refused by name, before anything is restarted."""
    (tmp_path / "shop.py").write_text(SHOP)
    clean = dict.fromkeys(("HOURGLASS_TARGET", "TEMPORAL_ADDRESS"), "")
    done = run("worker", "shop.py", *options, cwd=tmp_path, **clean)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count(" started") <= 1


def test_help_is_quick_and_fits_80_columns(tmp_path: Path) -> None:
    """Help fits into 80 columns, names every option whole, and loads neither Temporal nor the engine."""
    code = (
        "import sys; from hourglass._tools.cli import main; code = main(sys.argv[1:]); "
        "print(*[name for name in sys.modules if name.startswith(('temporalio', 'google', 'hourglass._evaluator'))], sep='\\n', "
        "file=sys.stderr); sys.exit(code)"
    )
    for arguments in (["--help"], ["worker", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "COLUMNS": "80"},
        )
        assert done.returncode == 0
        assert done.stderr.strip() == ""
        assert max(map(len, done.stdout.splitlines())) <= 88
        assert "\x1b" not in done.stdout
    assert "--max-concurrent-local-activities" in done.stdout
    assert "--deadlock-timeout" in done.stdout


@pytest.mark.parametrize("group", [[], ["activity"], ["schedule"]], ids=["all", "activity", "schedule"])
def test_command_summaries_are_not_cut(group: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What each command does is said on its line in a whole sentence."""
    assert main([*group, "--help"]) == 0
    _, _, commands = capsys.readouterr().out.partition("Commands:\n")
    assert commands
    assert "..." not in commands


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` says which."""
    from hourglass import __version__

    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_missing_typer_is_reported() -> None:
    """The command's libraries are an extra; without them there is one line that says so."""
    code = "import sys; sys.modules['typer'] = None; from hourglass._tools.cli import main; sys.exit(main(['--help']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr == (
        "the hourglass command needs two more packages: pip install 'hourglass-temporal[cli]'\n"
    )


def test_closed_pipe_is_no_error() -> None:
    """`hourglass --help | head -0` complains about nothing."""
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "hourglass", "worker", "--help"],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.stderr == ""
