"""Checks that a change concerns only docstrings and comments: `python -m tests.architecture.same_code REV [PATH …]`.

Compares the syntax trees of the working tree with those of a revision, without docstrings (those after an assignment included).
Prints the files whose code differs, and exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def code_of(text: str) -> str:
    """Return the syntax tree of a file's text without its docstrings, as a string."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            code = [statement for statement in body if not _is_docstring(statement)]
            node.body = code or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.dump(tree)


def changed_code(revision: str, paths: Sequence[str] = ()) -> list[str]:
    """Return the Python files whose code differs between a revision and the working tree."""
    names = _git("diff", "--name-only", "--no-renames", revision, "--", *(paths or ("*.py",))).splitlines()
    return [name for name in names if name.endswith(".py") and _is_changed(revision, name)]


def _is_changed(revision: str, name: str) -> bool:
    path = Path(name)
    try:
        before = _git("show", f"{revision}:{name}")
    except subprocess.CalledProcessError:
        return True
    return not path.exists() or code_of(before) != code_of(path.read_text(encoding="utf-8"))


def _is_docstring(statement: ast.AST) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
        case _:
            return False


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def main(arguments: Sequence[str]) -> int:
    """Print the files whose code differs; return the exit code."""
    if not arguments:
        print(__doc__)
        return 2
    names = changed_code(arguments[0], arguments[1:])
    for name in names:
        print(f"{name}: the code differs")
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
