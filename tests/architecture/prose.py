"""Counts of habits in docstrings, comments and names that make text hard to read, per package: part of `make house`.

The counts are indicators: a good sentence that is counted may stay, and a bad one that is not counted is rewritten.
CONTRIBUTING.md describes how we write. `prose.toml` contains the highest count allowed in each package; `test_prose.py` checks
it. `python -m tests.architecture.prose` prints the counts, `--update` lowers the table to them.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from . import source

OPENINGS = ("what", "which", "how", "who", "whose", "when", "where", "why", "as", "the same")
"""Words with which a docstring begins that describes the world instead of the function."""

HABITS = {
    "clause": ("what", "which", "whose", "those", "such"),
    "tell": ("tell", "tells", "told", "telling", "say", "says", "said", "saying"),
    "vague": ("something", "anything", "nothing", "everything", "one that", "those of"),
    "idiom": (
        *(
            "go on",
            "goes on",
            "went on",
            "stand",
            "stands",
            "in hand",
            "at hand",
            "anew",
            "of late",
            "likewise",
        ),
        *("mend", "mended", "is to be", "are to be", "give up", "gives up", "at all", "manieth"),
        *("so long", "so many", "so much", "so few"),
    ),
}
"""Words for which the field has better ones, by kind."""

ODD_NAMES = frozenset(
    (
        *("said", "told", "asked", "given", "found", "each", "known", "kept", "whole", "wanted", "taken"),
        *("one", "other", "others", "rest", "out", "beside", "here", "there"),
    )
)
"""Names of variables and parameters that do not describe their contents."""

_HABITS = {kind: re.compile(rf"\b({'|'.join(words)})\b", re.IGNORECASE) for kind, words in HABITS.items()}
_OPENING = re.compile(rf"({'|'.join(OPENINGS)})\b", re.IGNORECASE)
_CODE = re.compile(r"`[^`\n]+`")
_WORD = re.compile(r"[A-Za-z']+")
_NO_PROSE = re.compile(r"#\s*(type:|noqa|pyright|mypy|fmt:|-{3})")


@dataclass
class Prose:
    """Counts of one package or of all."""

    docstrings: int = 0
    openings: int = 0
    words: int = 0
    names: int = 0
    lines: int = 0
    habits: Counter[str] = field(default_factory=Counter)

    def add(self, other: Prose) -> None:
        """Add the counts of a part."""
        self.docstrings += other.docstrings
        self.openings += other.openings
        self.words += other.words
        self.names += other.names
        self.lines += other.lines
        self.habits += other.habits

    def __str__(self) -> str:
        per_word = 1000 / max(self.words, 1)
        counts = "".join(f"{self.habits[kind] * per_word:8.1f}" for kind in HABITS)
        opened = 100 * self.openings / max(self.docstrings, 1)
        return f"{self.docstrings:11}{opened:9.1f}%{counts}{1000 * self.names / max(self.lines, 1):11.1f}"


HEAD = f"{'docstrings':>11}{'W-opening':>10}{''.join(f'{kind:>8}' for kind in HABITS)}{'odd names':>11}"
"""Above the rows: habits are per 1,000 words, names per 1,000 lines."""


@dataclass(frozen=True)
class Offence:
    """One counted place: its kind (`opening`, `name`, or a kind of habit), its line and its text."""

    kind: str
    line: int
    text: str


def offences(text: str) -> Iterator[Offence]:
    """Yield every counted place of one file's text."""
    tree = ast.parse(text)
    for line, prose, is_docstring in (
        *((line, doc, True) for line, doc in _docstrings(tree)),
        *((line, comment, False) for line, comment in _comments(text)),
    ):
        if is_docstring and (opening := _OPENING.match(prose)):
            yield Offence("opening", line, opening[0])
        words = _CODE.sub(
            lambda code: "`" * len(code[0]), prose
        )  # names in code quotes do not count as words
        for kind, pattern in _HABITS.items():
            for habit in pattern.finditer(words):
                yield Offence(kind, line + prose.count("\n", 0, habit.start()), habit[0])
    for line, name in _names(tree):
        if name in ODD_NAMES:
            yield Offence("name", line, name)


def measure(text: str) -> Prose:
    """Count one file's text."""
    tree = ast.parse(text)
    docs = [doc for _, doc in _docstrings(tree)]
    prose = " ".join([*docs, *(comment for _, comment in _comments(text))])
    kinds = Counter(offence.kind for offence in offences(text))
    return Prose(
        docstrings=len(docs),
        openings=kinds["opening"],
        words=len(_WORD.findall(prose)),
        names=kinds["name"],
        lines=len(text.splitlines()),
        habits=Counter({kind: kinds[kind] for kind in HABITS}),
    )


def by_package(modules: Iterable[source.Module]) -> dict[str, Prose]:
    """Count these files, by the part of the package that they belong to; `all` is the sum."""
    parts: dict[str, Prose] = {}
    for module in modules:
        counts = measure(module.text)
        for name in (module.part or "hourglass", "all"):
            parts.setdefault(name, Prose()).add(counts)
    return dict(sorted(parts.items(), key=lambda item: (item[0] == "all", -item[1].lines)))


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield docstrings of modules, classes and functions, and those that follow an assignment, with their first lines."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if doc := ast.get_docstring(node):
                yield node.body[0].lineno, doc
            for before, after in zip(node.body, node.body[1:], strict=False):
                match before, after:
                    case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(doc))):
                        yield after.lineno, doc


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and len(token.string) > 12 and not _NO_PROSE.match(token.string):
            yield token.start[0], token.string


def _names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name


# The table of the highest counts allowed.

TABLE = Path(__file__).with_name("prose.toml")

_HEAD = """\
# The highest counts allowed in each package, by kind: see prose.py. They may only fall.
# `python -m tests.architecture.prose --update` lowers them to the current counts.
"""

KINDS = ("opening", *HABITS, "name")
"""The kinds of counted places."""


def limits() -> dict[str, dict[str, int]]:
    """Return the highest count allowed, by package and kind."""
    return tomllib.loads(TABLE.read_text())


def current() -> dict[str, dict[str, int]]:
    """Return the current counts, by package and kind."""
    counts: dict[str, Counter[str]] = {}
    for module in source.modules():
        part = counts.setdefault(module.part or "hourglass", Counter())
        part.update(offence.kind for offence in offences(module.text))
    return {part: {kind: counts[part][kind] for kind in KINDS} for part in sorted(counts)}


def update() -> None:
    """Lower the table to the current counts. A count that has risen keeps its limit; a new package gets its counts."""
    allowed = limits() if TABLE.exists() else {}
    lines = [_HEAD]
    for part, counts in current().items():
        limit = allowed.get(part, counts)
        fields = ", ".join(f"{kind} = {min(counts[kind], limit.get(kind, counts[kind]))}" for kind in KINDS)
        lines.append(f"{part} = {{ {fields} }}\n")
    TABLE.write_text("".join(lines))


if __name__ == "__main__":
    if "--update" in sys.argv[1:]:
        update()
    else:
        print(f"{'':14}{HEAD}")
        for package, figures in by_package(source.modules()).items():
            print(f"{package:14}{figures}")
