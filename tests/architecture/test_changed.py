"""`make test-changed` finds the test files that a change concerns, in a small repository and in this one."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

import pytest
from tests import changed

FILES = {
    "src/hourglass/__init__.py": "_HOMES = {'Client': 'hourglass.client'}\nif TYPE_CHECKING:\n    import hourglass._slow",
    "src/hourglass/client/__init__.py": "from hourglass.client._one import Client\nfrom hourglass.client._two import Other",
    "src/hourglass/client/_one.py": "def connect():\n    from hourglass import _evaluator",
    "src/hourglass/client/_two.py": "",
    "src/hourglass/_evaluator.py": "",
    "src/hourglass/_slow.py": "",
    "tests/conftest.py": "",
    "tests/waiting.py": "",
    "tests/a/conftest.py": "from hourglass import _slow",
    "tests/a/program.py": "from hourglass.client import Other",
    "tests/a/test_client.py": "from hourglass import Client",
    "tests/a/test_program.py": "PROGRAM = 'program.py'",
    "tests/b/test_module.py": "COMMAND = ['-m', 'tests.a.program']\nfrom waiting import until",
    "tests/b/test_fixture.py": "def test_it(hourglass_client): ...",
    "tests/b/test_page.py": "PAGE = 'README.md'",
}
"""A repository with the ways in which one file uses another."""


def _affected(*paths: str) -> set[str]:
    files = {path: changed.read(path, text) for path, text in FILES.items()}
    return {Path(path).stem for path in changed.affected_tests(files, paths)}


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("src/hourglass/_evaluator.py", {"test_client", "test_fixture"}),
        ("src/hourglass/client/_one.py", {"test_client", "test_fixture"}),
        ("src/hourglass/client/_two.py", {"test_program", "test_module"}),
        ("src/hourglass/client/__init__.py", {"test_client", "test_program", "test_module", "test_fixture"}),
        ("src/hourglass/_slow.py", {"test_client", "test_program"}),
        ("tests/a/program.py", {"test_program", "test_module"}),
        ("tests/a/conftest.py", {"test_client", "test_program"}),
        ("tests/waiting.py", {"test_module"}),
        ("tests/conftest.py", {"test_client", "test_program", "test_module", "test_fixture", "test_page"}),
        ("tests/a/golden/data.json", {"test_client", "test_program"}),
        ("tests/b/test_page.py", {"test_page"}),
        ("README.md", {"test_page"}),
        ("LICENSE", set()),
    ],
)
def test_changed_file_affects_the_tests_that_use_it(path: str, tests: set[str]) -> None:
    """Uses are re-exports, lazy and nested imports, programs, fixtures, conftest.py and file names."""
    assert _affected(path) == tests


def test_distance_of_a_test_is_its_number_of_imports_to_the_change() -> None:
    files = {path: changed.read(path, text) for path, text in FILES.items()}
    found = changed.affected_tests(files, ["src/hourglass/_evaluator.py", "tests/b/test_page.py"])
    assert found["tests/b/test_page.py"] == 0
    assert 0 < found["tests/a/test_client.py"] < 4


@cache
def _repository() -> dict[str, changed.File]:
    return changed.read_all()


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("src/hourglass/_evaluator/fibers.py", "tests/evaluator/test_dropping.py"),
        ("src/hourglass/_embedded/store/sqlite/database.py", "tests/embedded/store/test_backup.py"),
        ("src/hourglass/_tools/cli/why.py", "tests/tools/cli/test_why.py"),
        ("src/hourglass/_tools/web/templates/run.html", "tests/tools/web/test_app.py"),
        ("src/hourglass/converter/_pydantic.py", "tests/converter/test_pydantic.py"),
        ("src/hourglass/testing/plugin.py", "tests/architecture/test_exports.py"),
        ("tests/embedded/multiprocess/program.py", "tests/embedded/multiprocess/test_processes.py"),
        ("tests/compat/histories/any.json", "tests/compat/test_replay_comparisons.py"),
        ("docs/cli.md", "tests/docs/test_pages.py"),
        ("examples/checkout.py", "tests/examples/test_examples_run.py"),
        ("README.md", "tests/docs/test_readme.py"),
    ],
)
def test_change_in_this_repository_affects_its_known_test(path: str, test: str) -> None:
    assert test in changed.affected_tests(_repository(), [path])


def test_change_of_a_terminal_command_does_not_affect_evaluator_tests() -> None:
    found = changed.affected_tests(_repository(), ["src/hourglass/_tools/cli/why.py"])
    assert not [
        path
        for path in found
        if path.startswith(("tests/evaluator", "tests/worker/handles", "tests/supervision"))
    ]


def test_changes_of_a_branch_include_uncommitted_deleted_and_new_files(tmp_path: Path) -> None:
    """Later changes on main are not included."""

    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x", *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    git("init", "--initial-branch=main")
    for name in ("committed", "edited", "staged", "deleted", "same", "main"):
        (tmp_path / name).write_text("before")
    git("add", ".")
    git("commit", "-m", "first")
    git("checkout", "-b", "branch")
    (tmp_path / "committed").write_text("after")
    git("commit", "-am", "second")
    git("checkout", "main")
    (tmp_path / "main").write_text("after")
    git("commit", "-am", "third")
    git("checkout", "branch")
    (tmp_path / "staged").write_text("after")
    git("add", "staged")
    (tmp_path / "edited").write_text("after")
    (tmp_path / "deleted").unlink()
    (tmp_path / "new").write_text("after")
    found = changed.changes(changed.merge_base(tmp_path), tmp_path)
    assert found == {"committed", "edited", "staged", "deleted", "new"}
