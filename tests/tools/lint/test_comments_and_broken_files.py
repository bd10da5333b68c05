"""What silences a finding, and what becomes of files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from hourglass._tools.lint import check

from .project import checked, expected, found, write


def test_comments_silence_findings(tmp_path: Path) -> None:
    """A comment silences its line, or some codes on it, and what a call on its line leads to; texts are no comments."""
    text = """
import time, random
def now():
    return time.time()
def both():
    time.time()
    random.random()  # HG102
@workflow.defn
def flow():
    time.time()  # hourglass: allow
    time.time()  # hourglass: allow HG101
    time.time()  # noqa: X1  hourglass: allow - not at the beginning of a comment # HG101
    random.random(), time.time()  # hourglass: allow HG101, HG102
    now()  # hourglass: allow
    both()  # hourglass: allow HG101
    print(
        time.time(),
        "x",
    )
    time.strftime(
        "%H"
    )  # hourglass:allow hg101
    a = "# hourglass: allow", time.time()  # HG101
"""
    text = text.replace('        time.time(),\n        "x"', '        time.time(),  # HG101\n        "x"')
    assert found(checked(tmp_path, text)) == expected(tmp_path)


def test_comment_with_another_code_silences_nothing(tmp_path: Path) -> None:
    """A comment for another code leaves the finding."""
    text = "import time\n@workflow.defn\ndef flow():\n    time.time()  # hourglass: allow HG104\n"
    assert [each.code for each in checked(tmp_path, text).findings] == ["HG101"]


BROKEN = {
    "not Python": (b"def f(:\n", 1, "invalid syntax"),
    "an open bracket": (b"x = 1\ny = (\n", 2, "was never closed"),
    "a null byte": (b"x = 1\0\n", 1, "null bytes"),
    "not UTF-8": (b"\n\nx = '\xff'\n", 1, "is not valid utf-8"),
    "an unknown encoding": (b"# coding: klingon\n", 1, "klingon"),
    "tabs and spaces": (b"if 1:\n\tx\n        y\n", 3, "TabError"),
    "too deep": (b"x = " + b"(" * 300 + b")" * 300, 1, "nested"),
}


@pytest.mark.parametrize(("content", "line", "said"), BROKEN.values(), ids=list(BROKEN))
def test_unparsable_file_is_reported_and_others_are_checked(
    content: bytes, line: int, said: str, tmp_path: Path
) -> None:
    """It is a finding of its own, with its line and reason; calls into it lead nowhere."""
    write(
        tmp_path,
        "import time\nimport broken\n@workflow.defn\ndef flow():\n    broken.f()\n    time.time()  # HG101\n",
    )
    (tmp_path / "broken.py").write_bytes(content)
    report = check([tmp_path], base=tmp_path)
    assert found(report) == expected(tmp_path) | {("broken.py", line, "HG001")}
    (broken,) = [each for each in report.findings if each.code == "HG001"]
    assert said in broken.message
    assert report.files == 2


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    """A link to nowhere is broken, not fatal."""
    (tmp_path / "gone.py").symlink_to(tmp_path / "nothing.py")
    assert [each.code for each in check([tmp_path], base=tmp_path).findings] == ["HG001"]


def test_deeply_nested_code_is_reported(tmp_path: Path) -> None:
    """Python may parse what nobody can walk through; the check continues."""
    long = " + ".join(["x"] * 1500)
    text = f"""
import time
@workflow.defn
def deep(x):
    return {long}
@workflow.defn
def flow():
    time.time()  # HG101
"""
    report = checked(tmp_path, text)
    assert found(report) == expected(tmp_path) | {("app.py", 5, "HG001")}
    assert report.findings[0].message == "deep is nested too deeply to be checked"
    assert report.files == 1


def test_other_encodings_are_read(tmp_path: Path) -> None:
    """A file may declare its encoding, begin with a mark, or end its lines as Windows does."""
    lines = [
        "# coding: latin-1",
        "from hourglass import workflow",
        "import time",
        "@workflow.defn",
        "def flow():",
    ]
    source = "\r\n".join([*lines, "    'ä', time.time()", ""])
    (tmp_path / "a.py").write_bytes(source.encode("latin-1"))
    (tmp_path / "b.py").write_bytes(b"\xef\xbb\xbf" + source.partition("\r\n")[2].encode())
    report = check([tmp_path], base=tmp_path)
    assert found(report) == {("a.py", 6, "HG101"), ("b.py", 5, "HG101")}


def test_environments_and_hidden_folders_are_skipped(tmp_path: Path) -> None:
    """Virtual environments, caches and hidden folders hold other people's code."""
    for folder in (".venv", "env", "node_modules", "__pycache__", ".git"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text("(")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    assert check([tmp_path], base=tmp_path).files == 0


def test_syntax_warnings_of_checked_code_are_hidden(tmp_path: Path) -> None:
    """A bad escape in somebody's text does not warn whoever checks it."""
    assert found(checked(tmp_path, "import time\nx = '\\d'\n")) == set()
