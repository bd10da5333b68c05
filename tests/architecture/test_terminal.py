"""Terminal output of the command line: only `console.py` writes it, which cleans untrusted text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CLI = Path(__file__).resolve().parents[2] / "src" / "hourglass" / "_tools" / "cli"
CONSOLE = "console.py"

FORBIDDEN_CALLS = {"print", "echo", "secho", "print_exc", "print_exception", "Console", "pprint", "input"}
STREAMS = {"stdout", "stderr", "__stdout__", "__stderr__"}
FLUSHED_ONLY = {"flush", "isatty", "fileno"}

EXCEPTIONS = {
    ("__init__.py", "sys.stderr.write"),  # the console needs the missing packages
    ("logs.py", "sys.stderr"),  # the stream of the handler, whose formatters clean text
}


def output_calls(tree: ast.Module) -> list[str]:
    """Return the expressions of a file that write to a stream or access one."""
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


@pytest.mark.parametrize("file", sorted(CLI.glob("*.py")), ids=lambda path: path.name)
def test_only_the_console_module_writes_to_the_terminal(file: Path) -> None:
    if file.name == CONSOLE:
        return
    found = [
        call for call in output_calls(ast.parse(file.read_text())) if (file.name, call) not in EXCEPTIONS
    ]
    assert found == [], f"{file.name}: {found}: use hourglass._tools.cli.console"


def test_every_way_of_writing_to_the_terminal_is_detected() -> None:
    for line in (
        "print(x)",
        "typer.echo(x)",
        "sys.stdout.write(x)",
        "out = sys.stderr",
        "Console().print(x)",
        "traceback.print_exc()",
        "json.dumps(x)",
    ):
        assert output_calls(ast.parse(line)), line
    assert output_calls(ast.parse("sys.stdout.flush()")) == []
