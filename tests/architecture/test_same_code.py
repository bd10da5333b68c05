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


def test_code_comparison_ignores_docstrings_and_comments() -> None:
    rewritten = CODE.replace("A module", "Another").replace("A limit", "The limit").replace("# twice", "")
    assert same_code.code_of(rewritten) == same_code.code_of(CODE)


def test_code_comparison_detects_changed_numbers_names_and_values() -> None:
    for before, after in (("2 *", "3 *"), ("number", "value"), ("LIMIT = 3", "LIMIT = 4")):
        assert same_code.code_of(CODE.replace(before, after)) != same_code.code_of(CODE)


def test_code_comparison_equates_a_docstring_body_with_pass() -> None:
    assert same_code.code_of('def f():\n    """Do nothing."""\n') == same_code.code_of("def f():\n    pass\n")
