"""The disk, as far as a check needs it: which files there are, and what is in them. The only file here that reads anything."""

from __future__ import annotations

import io
import os
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})


def python_files(paths: Sequence[Path]) -> list[Path]:
    """The files among these paths and the Python files below them, each once; virtual environments are left out."""
    found: dict[Path, None] = {}
    for path in paths:
        for each in _below(path) if path.is_dir() else [path]:
            found.setdefault(each.resolve())
    return list(found)


def _below(directory: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(directory):
        inner[:] = sorted(
            each
            for each in inner
            if not each.startswith(".")
            and each not in SKIPPED
            and not os.path.exists(os.path.join(folder, each, "pyvenv.cfg"))
        )
        for name in sorted(names):
            if name.endswith(".py"):
                yield Path(folder, name)


def read_source(path: Path) -> str:
    """A file's text, in the encoding that it declares. Raises OSError, SyntaxError or UnicodeDecodeError."""
    data = path.read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return io.IncrementalNewlineDecoder(None, translate=True).decode(data.decode(encoding), final=True)


def is_file(path: str) -> bool:
    """Whether there is such a file."""
    return os.path.isfile(path)


def holds_python(path: str) -> bool:
    """Whether a directory may be a package without a file of its own: it holds Python, or packages that do."""
    if not os.path.isdir(path):
        return False
    for folder, inner, names in os.walk(path):
        if any(name.endswith(".py") for name in names):
            return True
        if folder != path:
            inner.clear()
    return False


def package_root(path: Path) -> Path:
    """The directory that the file's package is imported from."""
    directory = path.parent
    while is_file(str(directory / "__init__.py")) and directory.parent != directory:
        directory = directory.parent
    return directory
