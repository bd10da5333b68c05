"""ARCHITECTURE.md and CONTRIBUTING.md name only files, classes and methods that exist; the glossary has only terms in use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from . import source

PAGES = {name: (source.ROOT / name).read_text() for name in ("ARCHITECTURE.md", "CONTRIBUTING.md")}
PAGE = PAGES["ARCHITECTURE.md"]
HINT = "it was moved or renamed: adapt the page"

NOT_OURS = frozenset({"ActivityTaskScheduled", "DeprecationWarning"})
"""Names of Temporal and Python that the pages mention."""

_CODE = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CAMEL = re.compile(r"\b(?:[A-Z][a-z]+){2,}(?:\.\w+)?")
_FILE = re.compile(r"[\w./]+\.(?:py|md|toml)|_?\w+(?:/\w+)+|tests/[\w/.]+")
_WORD = re.compile(r"\w+")


def _section(title: str) -> str:
    """Return the text of a section of the page."""
    begin = PAGE.index(f"## {title}\n")
    end = PAGE.find("\n## ", begin)
    return PAGE[begin : end if end != -1 else None]


def _rows(text: str) -> Iterator[list[str]]:
    """Yield the rows of all tables in the text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith("|---") and not following.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


@cache
def _definitions() -> dict[str, set[str]]:
    """Return every class, function and variable of the package, with the attributes of classes, by name; also names that are
    strings in the source, such as those of the tree's children.
    """
    names: dict[str, set[str]] = {}
    for module in source.modules():
        for node in module.tree.body:
            for name in _bound(node):
                names.setdefault(name, set())
            if isinstance(node, ast.ClassDef):
                names[node.name] |= _attributes(node)
        for name in re.findall(rf'"({_CAMEL.pattern})"', module.text):
            names.setdefault(name, set())
    return names


def _bound(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            for target in targets:
                yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def _attributes(definition: ast.ClassDef) -> set[str]:
    names = {name for node in definition.body for name in _bound(node)}
    return names | {
        node.attr
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


@cache
def _words() -> frozenset[str]:
    """Return every word of the source."""
    return frozenset(word for module in source.modules() for word in _WORD.findall(module.text))


def _exists(path: str) -> bool:
    """Return whether a path exists in the repository or below the package, or is the name of a file in one of them."""
    if (
        any((root / path).exists() for root in (source.ROOT, source.ROOT / "tests", source.PACKAGE))
        or (source.PACKAGE / f"{path}.py").exists()
    ):
        return True
    return "/" not in path and (
        path in _tests() or any(module.path.name == path for module in source.modules())
    )


@cache
def _tests() -> frozenset[str]:
    """Return the names of all files of the tests."""
    return frozenset(path.name for path in (source.ROOT / "tests").rglob("*.py"))


def _is_defined(name: str) -> bool:
    owner, _, attribute = name.partition(".")
    if owner not in _definitions():
        return False
    return not attribute or attribute in _definitions()[owner] or not _definitions()[owner]


def _paths_and_names(text: str) -> Iterator[str]:
    for code in _CODE.findall(text):
        yield from (found for found in _FILE.findall(code) if "{" not in code)
        yield from _CAMEL.findall(code)
    for drawing in _FENCE.findall(text):
        yield from _CAMEL.findall(drawing)


@pytest.mark.parametrize("page", PAGES)
def test_files_classes_and_methods_named_on_a_page_exist(page: str) -> None:
    missing = {
        name
        for name in _paths_and_names(PAGES[page])
        if name not in NOT_OURS and not (_exists(name) or (_CAMEL.fullmatch(name) and _is_defined(name)))
    }
    assert missing == set(), HINT


@pytest.mark.parametrize("page", PAGES)
def test_identifiers_quoted_on_a_page_occur_in_the_source(page: str) -> None:
    quoted = _CODE.findall(PAGES[page])
    names = {
        code
        for code in quoted
        if re.fullmatch(r"_?[a-z]+(?:_[a-z]+)+|_[A-Z]+(?:_[A-Z]+)*|[A-Z]+(?:_[A-Z]+)+", code)
    }
    assert {name for name in names if name not in _words()} == set(), HINT


@pytest.mark.parametrize("row", list(_rows(_section("Promises"))), ids=lambda row: row[0].strip("*")[:40])
def test_promise_table_names_existing_code_and_tests(row: list[str]) -> None:
    """Each name must be defined in the file that precedes it in the row."""
    _promise, code, test = row
    path: Path | None = None
    for quoted in _CODE.findall(code):
        if quoted.endswith((".py", ".md")):
            assert _exists(quoted), f"{quoted}: {HINT}"
            path = source.PACKAGE / quoted
            continue
        assert path is not None, f"{quoted!r} has no file before it"
        names = {name for node in ast.parse(path.read_text()).body for name in _bound(node)}
        assert quoted.partition(".")[0] in names, f"{path.name} does not define {quoted}: {HINT}"
        assert _is_defined(quoted), f"{quoted}: {HINT}"
    assert path is not None, "a row names at least one file"
    assert all(_exists(quoted) for quoted in _CODE.findall(test)), f"{test}: {HINT}"


def test_every_glossary_term_is_in_use() -> None:
    glossary = _section("Glossary")
    pages = [PAGE.replace(glossary, ""), *(path.read_text() for path in (source.ROOT / "docs").rglob("*.md"))]
    text = " ".join(" ".join([*(module.text for module in source.modules()), *pages]).lower().split())
    terms = {term for row in _rows(glossary) for term in re.split(r", ", row[0].replace("`", "").lower())}
    assert len(terms) > 50
    unused = {term for term in terms if not re.search(rf"\b{re.escape(term)}s?\b", text)}
    assert unused == set(), "remove the term from the glossary, or the other word from the text"
