"""Everything that the command shows passes one door, where text of others is cleaned."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CLI = Path(__file__).resolve().parents[2] / "src" / "hourglass" / "_tools" / "cli"
DOOR = "console.py"

FORBIDDEN_CALLS = {"print", "echo", "secho", "print_exc", "print_exception", "Console", "pprint", "input"}
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
FLUSHED_ONLY = {"flush", "isatty", "fileno"}

EXCEPTIONS = {
    ("__init__.py", "sys.stderr.write"),  # before there is a console: it needs the packages that are missing
    ("logs.py", "sys.stderr"),  # the handler's stream; its formatters clean
}


def uses(tree: ast.Module) -> list[str]:
    """What writes to a stream, or gets hold of one, in a file."""
    found = []
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
            if name in FORBIDDEN_CALLS and not (name == "print" and owner.startswith("screen(")):
                found.append(ast.unparse(node.func))
            if name == "dumps":
                found.append(ast.unparse(node.func))
        if isinstance(node, ast.Attribute) and node.attr in STREAMS and ast.unparse(node.value) == "sys":
            parent = parents[node]
            if isinstance(parent, ast.Attribute) and parent.attr in FLUSHED_ONLY:
                continue
            found.append(ast.unparse(parent if isinstance(parent, ast.Attribute) else node))
    return found


@pytest.mark.parametrize("file", sorted(CLI.glob("*.py")), ids=lambda each: each.name)
def test_only_the_console_module_writes_to_the_terminal(file: Path) -> None:
    """No other file of the command prints, makes a console of its own, or touches a stream."""
    if file.name == DOOR:
        return
    found = [each for each in uses(ast.parse(file.read_text())) if (file.name, each) not in EXCEPTIONS]
    assert found == [], f"{file.name}: {found}: use hourglass._tools.cli.console"


def test_terminal_rule_detects_every_violation() -> None:
    """Each way past the door is seen."""
    for line in (
        "print(x)",
        "typer.echo(x)",
        "sys.stdout.write(x)",
        "out = sys.stderr",
        "Console().print(x)",
        "traceback.print_exc()",
        "json.dumps(x)",
    ):
        assert uses(ast.parse(line)), line
    assert uses(ast.parse("sys.stdout.flush()")) == []
