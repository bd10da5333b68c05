"""The Python in README and docs is run, page by page, and prints what the page says.

A page is one program: its blocks share a module and run in order. A comment above a block says what is special:

    <!-- on a server -->         the block runs with TEMPORAL_ADDRESS naming a real dev server
    <!-- not run: reason -->     the block is only compiled
    <!-- prints -->              above a `text` block: exactly what the Python block before it prints
    <!-- file: name -->          the block is a file that the reader is told to write: later blocks may import it, and its tests
                                 are called; test_tutorial works with it
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from hourglass.testing import dev_server

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROSE = [*PAGES, *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"))]

_FENCE = re.compile(
    r"(?:^<!-- (?P<note>[^\n]*) -->\n\n?)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S
)
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)\s]*)?\)")
_NOTES = re.compile(r"on a server|prints|not run: \S.*|file: \w+\.py")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: language, text, line, and the comment above it."""

    language: str
    text: str
    line: int
    note: str

    @property
    def runs(self) -> bool:
        """Whether this is Python code that is executed."""
        return self.language == "python" and not self.note.startswith("not run")


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            found["language"],
            found["text"],
            text.count("\n", 0, found.start("text")) + 1,
            found["note"] or "",
        )
        for found in _FENCE.finditer(text)
    ]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with dev_server() as started:
        yield started.target


@pytest.fixture
def page_module(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """A module for a page's code, since dataclasses and type hints look their module up by name."""
    page: Path = request.getfixturevalue("page")
    module = ModuleType(f"page_{page.stem.lower()}")
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def _compiled(block: Block, page: Path) -> object:
    # Pushed down to its own line, so that a traceback names the line of the page. What is only for the main program is run, too:
    # the module cannot have that name, for pytest has it.
    padded = "\n" * (block.line - 1) + block.text.replace('if __name__ == "__main__":', "if True:")
    return compile(padded, str(page.relative_to(ROOT)), "exec", dont_inherit=True)


@pytest.mark.server
@pytest.mark.usefixtures("logging_as_it_was")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_blocks_of_the_manual_run_and_print_the_shown_output(
    page: Path,
    page_module: ModuleType,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = ""
    for block in blocks_of(page):
        if block.note == "prints":
            assert printed == block.text, f"{page.name}:{block.line}"
        if block.language != "python":
            continue
        code = _compiled(block, page)
        if not block.runs:
            continue
        monkeypatch.delenv("HOURGLASS_TARGET", raising=False)
        monkeypatch.delenv("TEMPORAL_ADDRESS", raising=False)
        if block.note == "on a server":
            monkeypatch.setenv("TEMPORAL_ADDRESS", request.getfixturevalue("server"))
        exec(code, page_module.__dict__)  # type: ignore[arg-type]
        if block.note.startswith("file: "):  # what follows may import it, and pytest would call its tests
            name = block.note.removeprefix("file: ").removesuffix(".py")
            monkeypatch.setitem(sys.modules, name, page_module)
            for test in re.findall(r"^def (test_\w+)", block.text, re.MULTILINE):
                vars(page_module)[test]()
        printed = capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_comments_above_code_blocks_are_known(page: Path) -> None:
    """Otherwise a misspelt comment would have no effect."""
    notes = [block.note for block in blocks_of(page) if block.note]
    assert [note for note in notes if not _NOTES.fullmatch(note)] == []
    lines = page.read_text().splitlines()
    marks = ("make reference", "bench:")  # what is written between them is made, and not by hand
    comments = [line for line in lines if line.startswith("<!--") and not any(mark in line for mark in marks)]
    assert len(comments) == len(notes)
    assert sum(line.startswith("```") for line in lines) == 2 * len(blocks_of(page))


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.stem)
def test_relative_links_lead_to_existing_files(page: Path) -> None:
    missing = [link for link, _ in _LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not missing


def test_navigation_lists_every_page_once() -> None:
    listed = re.findall(r"^\s+- .*?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    docs = ROOT / "docs"
    assert sorted(listed) == sorted(page.relative_to(docs).as_posix() for page in docs.rglob("*.md"))


def test_at_least_80_percent_of_python_blocks_are_run() -> None:
    python = [block for page in PAGES for block in blocks_of(page) if block.language == "python"]
    assert len(python) >= 15
    assert sum(block.runs for block in python) >= 0.8 * len(python)
