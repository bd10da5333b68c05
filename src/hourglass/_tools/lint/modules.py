"""The files of a project as modules, and the resolution of imports. Each file is parsed once. No module is imported.

A module is identified by its file. A file that cannot be read or parsed is recorded as broken and otherwise
treated as absent. This is the only part of the check that reads files.

A comment silences findings on its line: `# hourglass: allow` for all codes, or `# hourglass: allow HG101, HG104` for
particular codes.
"""

from __future__ import annotations

import ast
import io
import os
import re
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from hourglass._tools.lint.scopes import NameScope, body_scope, function_scope
from hourglass._tools.lint.values import FunctionNode, ModuleRef, NamespacePackage

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


def python_files(paths: Sequence[Path]) -> list[Path]:
    """Return these files and the Python files in these directories, without duplicates and virtual environments."""
    files: dict[Path, None] = {}
    for path in paths:
        for file in _below(path) if path.is_dir() else [path]:
            files.setdefault(file.resolve())
    return list(files)


def _below(directory: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(directory):
        inner[:] = sorted(
            name
            for name in inner
            if not name.startswith(".")
            and name not in SKIPPED
            and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
        )
        for name in sorted(names):
            if name.endswith(".py"):
                yield Path(folder, name)


def read_source(path: Path) -> str:
    """Return a file's text in its declared encoding. Raise `OSError`, `SyntaxError` or `UnicodeDecodeError`."""
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return io.IncrementalNewlineDecoder(None, translate=True).decode(data.decode(encoding), final=True)


def is_file(path: str) -> bool:
    """Whether the path is an existing file. Cached."""
    return os.path.isfile(path)


def holds_python(path: str) -> bool:
    """Whether a directory may be a namespace package: the directory, or a direct subdirectory, contains Python files."""
    if not os.path.isdir(path):
        return False
    for folder, inner, names in os.walk(path):
        if any(name.endswith(".py") for name in names):
            return True
        if folder != path:
            inner.clear()
    return False


def package_root(path: Path) -> Path:
    """Return the directory that contains the file's top-level package."""
    directory = path.parent
    while is_file(str(directory / "__init__.py")) and directory.parent != directory:
        directory = directory.parent
    return directory


EVERYTHING = frozenset({"*"})
"""The codes that a comment without codes silences, i.e. all codes."""

_COMMENT = re.compile(r"#\s*hourglass:\s*allow\b(?P<codes>(?:[\s,]+HG\d+\b)*)", re.IGNORECASE)


def allowed_lines(text: str) -> dict[int, frozenset[str]]:
    """Return the lines with a silencing comment, and the codes that each comment silences."""
    if "hourglass:" not in text.lower():
        return {}
    silenced: dict[int, frozenset[str]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
            if match is not None:
                codes = re.findall(r"HG\d+", match["codes"].upper())
                silenced[token.start[0]] = frozenset(codes) or EVERYTHING
    except (tokenize.TokenError, SyntaxError):
        pass  # `Project` reports the file as broken when it parses it
    return silenced


def allows(allowed: frozenset[str], code: str) -> bool:
    """Whether these silenced codes include the code."""
    return code in allowed or "*" in allowed


OURS = frozenset({"hourglass", "temporalio"})
"""Packages that are never followed, even if their sources are part of the project."""


@dataclass(eq=False)
class Module:
    """One file: its text, its syntax tree, and its scopes, created on demand."""

    path: Path
    shown: str
    text: str
    tree: ast.Module
    _scopes: dict[ast.AST, NameScope] = field(default_factory=dict)

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the text."""
        return self.text.splitlines()

    @cached_property
    def allowed(self) -> dict[int, frozenset[str]]:
        """The codes that comments silence, by line."""
        return allowed_lines(self.text)

    @cached_property
    def scope(self) -> NameScope:
        """The module's own scope."""
        return body_scope(self, "module", self.tree, None)

    def scope_of_class(self, node: ast.ClassDef, parent: NameScope) -> NameScope:
        """Return the scope of a class body."""
        if node not in self._scopes:
            self._scopes[node] = body_scope(self, "class", node, parent)
        return self._scopes[node]

    def scope_of_function(self, node: FunctionNode, parent: NameScope) -> NameScope:
        """Return the scope of a function."""
        if node not in self._scopes:
            self._scopes[node] = function_scope(self, node, parent)
        return self._scopes[node]


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file that could not be read or parsed, and the reason."""

    shown: str
    line: int
    column: int
    reason: str
    source: str = ""


class Project:
    """The modules of a project by file, and the directories in which imports are resolved."""

    def __init__(self, base: Path, roots: Sequence[Path] = ()) -> None:
        self._base = base.resolve()
        self._roots = [*roots, self._base, self._base / "src"]
        self._modules: dict[Path, Module | None] = {}
        self._located: dict[str, Path | NamespacePackage | None] = {}
        self.broken: list[UnreadableFile] = []

    @property
    def modules(self) -> list[Module]:
        """The modules parsed so far, without broken files."""
        return [module for module in self._modules.values() if module is not None]

    def load(self, paths: Iterable[Path]) -> list[Module]:
        """Parse these files and return their modules. Broken files are recorded and skipped."""
        return [module for path in paths if (module := self.module(path)) is not None]

    def module(self, path: Path) -> Module | None:
        """Return the module of a file, or None if the file is broken."""
        if path not in self._modules:
            self._modules[path] = self._parse(path)
        return self._modules[path]

    def shown(self, path: Path) -> str:
        """Return a file's name relative to the base directory."""
        return str(path.relative_to(self._base)) if path.is_relative_to(self._base) else str(path)

    def find(self, dotted: str, level: int, importer: Path) -> ModuleRef | NamespacePackage | None:
        """Return the module of the project that an import names, or None if it is not part of the project."""
        parts = dotted.split(".") if dotted else []
        if level:
            return self._at(importer.parents[level - 1], parts) if level <= len(importer.parents) else None
        if parts[0] in OURS or parts[0] in sys.stdlib_module_names:
            return None
        for root in [package_root(importer), *self._roots]:
            target = self._at(root, parts)
            if target is not None:
                return target
        return None

    def below(self, directory: Path, name: str) -> ModuleRef | NamespacePackage | None:
        """Return the module of this name in a package's directory, or None."""
        return self._at(directory, [name])

    def _at(self, directory: Path, parts: Sequence[str]) -> ModuleRef | NamespacePackage | None:
        where = "/".join((str(directory), *parts))
        if where not in self._located:
            choices = [f"{where}.py", f"{where}/__init__.py"] if parts else [f"{where}/__init__.py"]
            existing = next((choice for choice in choices if is_file(choice)), None)
            if existing is None:
                self._located[where] = NamespacePackage(where) if holds_python(where) else None
            else:
                self._located[where] = Path(existing).resolve()
        located = self._located[where]
        if not isinstance(located, Path):
            return located
        module = self.module(located)
        return ModuleRef(module) if module is not None else None

    def _parse(self, path: Path) -> Module | None:
        shown = self.shown(path)
        try:
            text = read_source(path)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in the author's code are not our subject
                return Module(path, shown, text, ast.parse(text, shown))
        except SyntaxError as error:
            reason = f"{type(error).__name__}: {error.msg}"
            broken = UnreadableFile(
                shown, error.lineno or 1, error.offset or 1, reason, (error.text or "").rstrip("\n")
            )
        except UnicodeDecodeError as error:
            broken = UnreadableFile(
                shown, 1, 1, f"the file is not valid {error.encoding}: {error.reason} at byte {error.start}"
            )
        except OSError as error:
            broken = UnreadableFile(shown, 1, 1, f"the file cannot be read: {error.strerror or error}")
        except (ValueError, RecursionError, MemoryError) as error:
            broken = UnreadableFile(shown, 1, 1, f"the file cannot be parsed: {error}")
        self.broken.append(broken)
        return None
