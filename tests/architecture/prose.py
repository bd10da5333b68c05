"""Counts of habits in docstrings, comments and names that make text hard to read, per package: part of `make house`.

Thermometers: a good sentence that is counted stays, and a bad one that is not counted is rewritten. CONTRIBUTING.md says how we
write.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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
"""Variables and parameters whose name does not say what they hold."""

_HABITS = {kind: re.compile(rf"\b({'|'.join(words)})\b", re.IGNORECASE) for kind, words in HABITS.items()}
_OPENING = re.compile(rf"({'|'.join(OPENINGS)})\b", re.IGNORECASE)
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


def measure(text: str) -> Prose:
    """Count one file's text."""
    tree = ast.parse(text)
    docs = list(_docstrings(tree))
    prose = " ".join([*docs, *_comments(text)])
    return Prose(
        docstrings=len(docs),
        openings=sum(bool(_OPENING.match(doc)) for doc in docs),
        words=len(_WORD.findall(prose)),
        names=sum(name in ODD_NAMES for name in _names(tree)),
        lines=len(text.splitlines()),
        habits=Counter({kind: len(pattern.findall(prose)) for kind, pattern in _HABITS.items()}),
    )


def by_package(modules: Iterable[source.Module]) -> dict[str, Prose]:
    """Count these files, by the part of the package that they belong to; `all` is the sum."""
    parts: dict[str, Prose] = {}
    for module in modules:
        counts = measure(module.text)
        for name in (module.part or "hourglass", "all"):
            parts.setdefault(name, Prose()).add(counts)
    return dict(sorted(parts.items(), key=lambda item: (item[0] == "all", -item[1].lines)))


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield docstrings of modules, classes and functions, and those that follow an assignment."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if doc := ast.get_docstring(node):
                yield doc
            for before, after in zip(node.body, node.body[1:], strict=False):
                match before, after:
                    case ast.Assign() | ast.AnnAssign(), ast.Expr(value=ast.Constant(value=str(doc))):
                        yield doc


def _comments(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and len(token.string) > 12 and not _NO_PROSE.match(token.string):
            yield token.string


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.arg(arg=name):
                yield name
