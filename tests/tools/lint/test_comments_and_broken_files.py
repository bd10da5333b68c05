"""Comments that allow findings, and files that cannot be parsed or read."""

from __future__ import annotations

from pathlib import Path

import pytest

from hourglass._tools.lint import check

from .project import check_text, findings_of, marked_findings, write_project


def test_allow_comment_suppresses_findings_of_its_line_and_of_its_call(tmp_path: Path) -> None:
    """Text in strings is no comment."""
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
    assert findings_of(check_text(tmp_path, text)) == marked_findings(tmp_path)


def test_allow_comment_for_another_rule_suppresses_nothing(tmp_path: Path) -> None:
    text = "import time\n@workflow.defn\ndef flow():\n    time.time()  # hourglass: allow HG104\n"
    assert [each.code for each in check_text(tmp_path, text).findings] == ["HG101"]


BROKEN = {
    "not Python": (b"def f(:\n", 1, "invalid syntax"),
    "an open bracket": (b"x = 1\ny = (\n", 2, "was never closed"),
    "a null byte": (b"x = 1\0\n", 1, "null bytes"),
    "not UTF-8": (b"\n\nx = '\xff'\n", 1, "is not valid utf-8"),
    "an unknown encoding": (b"# coding: klingon\n", 1, "klingon"),
    "tabs and spaces": (b"if 1:\n\tx\n        y\n", 3, "TabError"),
    "too deep": (b"x = " + b"(" * 300 + b")" * 300, 1, "nested"),
}


@pytest.mark.parametrize(("content", "line", "message"), BROKEN.values(), ids=list(BROKEN))
def test_unparsable_file_is_a_finding_and_other_files_are_checked(
    content: bytes, line: int, message: str, tmp_path: Path
) -> None:
    write_project(
        tmp_path,
        "import time\nimport broken\n@workflow.defn\ndef flow():\n    broken.f()\n    time.time()  # HG101\n",
    )
    (tmp_path / "broken.py").write_bytes(content)
    report = check([tmp_path], base=tmp_path)
    assert findings_of(report) == marked_findings(tmp_path) | {("broken.py", line, "HG001")}
    (broken,) = [each for each in report.findings if each.code == "HG001"]
    assert message in broken.message
    assert report.files == 2


def test_broken_symbolic_link_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "gone.py").symlink_to(tmp_path / "nothing.py")
    assert [each.code for each in check([tmp_path], base=tmp_path).findings] == ["HG001"]


def test_too_deeply_nested_function_is_a_finding_and_others_are_checked(tmp_path: Path) -> None:
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
    report = check_text(tmp_path, text)
    assert findings_of(report) == marked_findings(tmp_path) | {("app.py", 5, "HG001")}
    assert report.findings[0].message == "deep is nested too deeply to be checked"
    assert report.files == 1


def test_files_with_declared_encoding_or_byte_order_mark_are_checked(tmp_path: Path) -> None:
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
    assert findings_of(report) == {("a.py", 6, "HG101"), ("b.py", 5, "HG101")}


def test_check_skips_virtual_environments_and_hidden_directories(tmp_path: Path) -> None:
    for folder in (".venv", "env", "node_modules", "__pycache__", ".git"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.py").write_text("(")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    assert check([tmp_path], base=tmp_path).files == 0


def test_check_hides_syntax_warnings_of_checked_code(tmp_path: Path) -> None:
    assert findings_of(check_text(tmp_path, "import time\nx = '\\d'\n")) == set()
