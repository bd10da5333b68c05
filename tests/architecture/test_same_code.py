"""The comparison of code without its docstrings and comments."""

from __future__ import annotations

from . import same_code

CODE = '''"""A module."""
LIMIT = 3
"""A limit."""


def double(number: int) -> int:
    """Double a number."""
    return 2 * number  # twice
'''


def test_changes_of_docstrings_and_comments_are_ignored() -> None:
    """Docstrings, also those after an assignment, and comments do not count as code."""
    rewritten = CODE.replace("A module", "Another").replace("A limit", "The limit").replace("# twice", "")
    assert same_code.code_of(rewritten) == same_code.code_of(CODE)


def test_code_changes_are_detected() -> None:
    """A changed number, name or string is a change of code."""
    for before, after in (("2 *", "3 *"), ("number", "value"), ("LIMIT = 3", "LIMIT = 4")):
        assert same_code.code_of(CODE.replace(before, after)) != same_code.code_of(CODE)


def test_docstring_may_be_added_or_removed() -> None:
    """A function that consists of a docstring equals one that consists of `pass`."""
    assert same_code.code_of('def f():\n    """Do nothing."""\n') == same_code.code_of("def f():\n    pass\n")
