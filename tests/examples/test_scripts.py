"""Each example is one command, on the embedded engine and on a Temporal server, and prints the documented lines."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hourglass.testing import DevServer

from .conftest import EXAMPLES, Program

HOURGLASS = str(Path(sys.executable).with_name("hourglass"))

# The expected lines of each script, in order; other lines may occur in between.
EXPECTED_OUTPUT = {
    "hello.py": ["Hello, world!"],
    "saga.py": [
        "parcel-o-1",
        "o-2: 4990.00 charged",
        "o-2: refunded",
        "o-2: released",
        "o-2 failed: no van is large enough for a piano",
    ],
    "approval.py": [
        "budget.pdf: approved by ann",
        "to bob: menu.pdf still waits for you",
        "menu.pdf: expired",
    ],
    "billing.py": [
        "ended: 12 months paid",
        "360 days in",
        "ended: 12 months paid",
        "left in month 1: too expensive",
    ],
    "fanout.py": ["1000 of 1000", "1000 thumbnails"],
    "limits.py": [
        "page 1 of 4",
        "page 4 of 4",
        "first: 1000 rows",
        "second: 300 rows",
        "five calls, one import: 1500 rows",
    ],
    "etl.py": ["loaded", "495 items, 12325.50; set aside: [99, 199, 299, 399, 499]"],
    "polling.py": ["GET /jobs/1", "GET /jobs/1", "GET /jobs/1", "GET /jobs/1", "done: hello"],
    "resume.py": [
        "attempt 1 begins after 0 rows",
        "attempt 2 begins after 2500 rows",
        "5000 rows imported",
    ],
    "children.py": ["'north': 15003", "{'atlantis': 'there is no such region'}", "completed"],
    "entity.py": ["points=2550, runs=3", "refused: there are only 2550 points", "550 points are left"],
    "agent.py": ["mail to ann: Oslo has snow; Rome has sun", "Done: mailed to ann."],
    "pydantic_agent.py": ["bank: 19.99 for order 7", "Order 7: 19.99 paid back", "Order 7: 19.99 paid back"],
    "openai_agents_desk.py": [
        "carrier: asked for order 7",
        "shipping: Found it: parcel 7 is in Oslo.",
        "billing: Your bill is paid.",
    ],
    "encryption.py": ["Ann knows about the measles", "the engine knows: False"],
    "report.py": [
        "next: ",
        "report-lamps-2026-01-05T08:00:00Z: 5 orders, 99.95",
        "report-lamps-2026-01-06T08:00:00Z: 5 orders, 99.95",
    ],
}
TESTED_IN = {
    "checkout.py": "test_examples_run.py",
    "fastapi_app.py": "test_web.py",
    "flask_app.py": "test_web.py",
    "order_service.py": "test_applications.py",
    "orders.py": "test_web.py",
    "test_approval.py": "test_approval_example_test_suite_passes below",
    "test_checkout_explored.py": "test_explored_example.py",
}


def check_output(output: str, pieces: list[str]) -> None:
    """Check that the pieces occur in the output in this order."""
    at = 0
    for piece in pieces:
        at = output.find(piece, at)
        assert at >= 0, f"{piece!r} is missing, or too early, in:\n{output}"
        at += len(piece)


def test_every_example_has_a_test() -> None:
    assert {file.name for file in EXAMPLES.glob("*.py")} <= EXPECTED_OUTPUT.keys() | TESTED_IN.keys()


def test_example_pages_list_every_example() -> None:
    for page in (EXAMPLES / "README.md", EXAMPLES.parent / "docs" / "examples.md"):
        named = set(re.findall(r"`(\w+\.py)`", page.read_text()))
        assert named == {file.name for file in EXAMPLES.glob("*.py")}, page


@pytest.mark.parametrize("name", sorted(EXPECTED_OUTPUT))
def test_example_runs_without_target_on_hourglass_db(name: str, run_program: Program, tmp_path: Path) -> None:
    check_output(run_program(str(EXAMPLES / name)), EXPECTED_OUTPUT[name])
    assert (tmp_path / "hourglass.db").is_file()


@pytest.mark.server
@pytest.mark.parametrize(
    "name", ["agent.py", "children.py", "entity.py", "limits.py", "report.py", "saga.py"]
)
def test_example_runs_on_a_server_and_creates_no_file(
    name: str, run_program: Program, quick_server: DevServer, tmp_path: Path
) -> None:
    check_output(
        run_program(str(EXAMPLES / name), HOURGLASS_TARGET=quick_server.target), EXPECTED_OUTPUT[name]
    )
    assert list(tmp_path.iterdir()) == []


def test_example_runs_twice_on_one_file(run_program: Program) -> None:
    for _ in range(2):
        check_output(run_program(str(EXAMPLES / "entity.py")), EXPECTED_OUTPUT["entity.py"])


def test_hourglass_run_executes_an_example_with_arguments(run_program: Program) -> None:
    assert "Hello, Ann!" in run_program(HOURGLASS, "run", "--quiet", str(EXAMPLES / "hello.py"), "Ann")
    order = '{"id": "o-1", "items": ["lamp"], "cents": 3900}'
    assert "parcel-o-1" in run_program(HOURGLASS, "run", "--quiet", str(EXAMPLES / "saga.py"), order)


def test_linter_finds_nothing_in_the_examples(run_program: Program) -> None:
    assert "no findings" in run_program(HOURGLASS, "check", str(EXAMPLES))


def test_approval_example_test_suite_passes(run_program: Program) -> None:
    output = run_program("-m", "pytest", "-q", "-p", "no:cacheprovider", str(EXAMPLES / "test_approval.py"))
    assert "9 passed" in output
