"""Sleeps in tests: each has a comment with its reason, or waits for a condition."""

from __future__ import annotations

import ast

from . import source

WORKFLOWS = (
    *(
        "aio/",
        "compat/",
        "evaluator/",
        "conformance/",
        "determinism/",
        "tools/lint/",
        "worker/handles/",
        "typing/",
    ),
    *("embedded/activations/test_core_replay.py", "interop/theirs.py"),
)
"""Directories and files whose sleeps are those of workflows, of examples for the checker, or on a loop with virtual time."""


def unexplained_sleeps(text: str) -> list[int]:
    """Return the lines of sleeps without a comment that do not wait for the condition of a `while` loop; `sleep(0)` is exempt."""
    lines = text.splitlines()
    tree = ast.parse(text)
    polls = {
        sleep
        for loop in ast.walk(tree)
        if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant)
        for sleep in ast.walk(loop)
    }
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="time" | "asyncio"), attr="sleep"), args=[seconds]
            ) if node not in polls:
                is_nothing = isinstance(seconds, ast.Constant) and seconds.value == 0
                above = lines[node.lineno - 2].lstrip()
                if not is_nothing and "#" not in lines[node.lineno - 1] and not above.startswith("#"):
                    found.append(node.lineno)
    return found


def unexplained_sleeps_in_tests() -> list[str]:
    """Return the locations of unexplained sleeps in all tests."""
    tests = source.ROOT / "tests"
    texts = {path.relative_to(tests).as_posix(): path.read_text() for path in sorted(tests.rglob("*.py"))}
    return [
        f"{name}:{line}"
        for name, text in texts.items()
        if "sleep" in text and not name.startswith(WORKFLOWS)
        for line in unexplained_sleeps(text)
    ]


def test_every_sleep_in_tests_has_a_reason_or_waits_for_a_condition() -> None:
    assert unexplained_sleeps_in_tests() == [], (
        "wait for a condition with waiting.until, or say in a comment why the test sleeps"
    )


SLEEPS = """
time.sleep(1)
time.sleep(0)
time.sleep(2)  # a reason
# Another reason.
asyncio.sleep(3)
while not holds():
    time.sleep(4)
while True:
    time.sleep(5)
"""


def test_sleep_without_a_comment_or_condition_is_detected() -> None:
    assert unexplained_sleeps(SLEEPS) == [2, 10]
