"""Run the tests that a change affects, unit tests first: `make test-changed`.

    python -m tests.changed                 # changes since the merge base with main, committed or not
    python -m tests.changed --since HEAD    # uncommitted changes
    python -m tests.changed --unit          # stop after the unit tests
    python -m tests.changed --list          # print the test files with their distance from the change

The test files come from the import graph, which is read from syntax trees; nothing is imported. A test file is affected if it
imports a changed file, directly or through other files. `from package import name` leads to the file that defines the name and
not to everything that the package's `__init__` imports; imports for type checkers do not count. Programs that tests start count
as imports: a module after `-m`, a file in the directory of the test. Files other than Python code are mapped by `MENTIONED`, by
the nearest package or test directory, and by the tests that mention their names.

Campaign tests (see `tests/tiers.py`) run only if their own directory changed; use `make campaign`.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import tiers

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src/hourglass", "tests", "examples", "benchmarks")
"""Where Python files are."""

READS_SOURCE = ("tests/architecture", "tests/docs/test_pages.py", "tests/typing")
"""Tests that read or check the whole package instead of importing it."""

MENTIONED = {
    "docs": ("tests/docs", "tests/architecture/test_reference.py"),
    "examples": ("tests/examples", "tests/docs"),
    "deploy": ("tests/docs",),
    "src": READS_SOURCE,
    "pyproject.toml": ("tests/architecture", "tests/contrib/test_extras.py"),
}
"""Tests that read files of a folder, or this file, without importing them."""

FIXTURES = {
    "hourglass_env": ("hourglass.testing", "Environment"),
    "hourglass_async_env": ("hourglass.testing", "Environment"),
    "hourglass_server": ("hourglass.testing", "dev_server"),
    "hourglass_client": ("hourglass", "Client"),
    "quick_server": ("hourglass.testing", "dev_server"),
    "each_event_loop": ("hourglass._worker.portal", ""),
}
"""Fixtures of the plugin and of tests/conftest.py, with what they use."""


@dataclass
class File:
    """The imports, definitions and strings of a Python file."""

    imports: list[tuple[str, str]] = field(default_factory=list)
    """Imported modules, each with the name that is imported from it ("" for the module itself)."""

    bindings: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Imported names at the top of the file: the module, and the name there."""

    tables: dict[str, str] = field(default_factory=dict)
    """Names of module-level tables of lazily imported names: `"Client": "hourglass.client"`."""

    words: set[str] = field(default_factory=set)
    """Strings and argument names, among which are files, programs and fixtures."""


def module_name(path: str) -> str:
    """Return the dotted name of a file: `src/hourglass/a/b.py` is `hourglass.a.b`, `tests/a/b.py` is `tests.a.b`."""
    parts = list(Path(path).with_suffix("").parts)
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read(path: str, text: str) -> File:
    """Parse the text of a file."""
    file, name, is_package = File(), module_name(path), path.endswith("__init__.py")
    tree = ast.parse(text)
    for node in _walk(tree):
        match node:
            case ast.Import():
                file.imports += [(alias.name, "") for alias in node.names]
            case ast.ImportFrom():
                base = name.split(".")
                base = base[: len(base) - node.level + is_package] if node.level else []
                module = ".".join([*base, node.module] if node.module else base)
                file.imports += [(module, alias.name) for alias in node.names]
                if node in tree.body:
                    file.bindings |= {a.asname or a.name: (module, a.name) for a in node.names}
            case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module")):
                file.imports += [(arg.value, "") for arg in node.args[:1] if _is_text(arg)]
            case ast.Dict():
                for key, value in zip(node.keys, node.values, strict=True):
                    value = value.elts[0] if isinstance(value, ast.Tuple) and value.elts else value
                    if _is_text(key) and _is_text(value):
                        file.tables[key.value] = value.value
            case ast.Constant(value=str(word)):
                file.words.add(word)
            case ast.arg():
                file.words.add(node.arg)
    return file


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Walk a tree without the code under `if TYPE_CHECKING`."""
    todo = deque([node])
    while todo:
        node = todo.popleft()
        yield node
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            todo.extend(node.orelse)
        else:
            todo.extend(ast.iter_child_nodes(node))


def _is_text(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


class Graph:
    """The files that use each file, by repository path."""

    def __init__(self, files: Mapping[str, File]) -> None:
        self._files = files
        self._paths = {module_name(path): path for path in files}
        self.users: dict[str, set[str]] = {path: set() for path in files}
        self.passers: dict[str, set[str]] = {path: set() for path in files}
        """Files that import a module of a package, or a name through it: they use the `__init__`, but not all that it imports."""
        for path, file in files.items():
            for used in self._used_by(path, file):
                self.users[used].add(path)

    def distances(self, changed: Iterable[str]) -> dict[str, int]:
        """Return the affected files, each with the length of the shortest chain of imports to the change."""
        found = {path: 0 for path in changed if path in self._files}
        todo = deque(found)
        while todo:
            path = todo.popleft()
            for user in self.users[path] | (self.passers[path] if found[path] == 0 else set()):
                if user not in found:
                    found[user] = found[path] + 1
                    todo.append(user)
        return found

    def _used_by(self, path: str, file: File) -> Iterator[str]:
        for module, name in file.imports:
            yield from self._resolve(path, module, name)
        folder = Path(path).parent
        if path.startswith("tests/"):
            for word in file.words:
                sibling = (folder / word).as_posix() if word.endswith(".py") and "\n" not in word else ""
                if sibling in self._files:
                    yield sibling
                if "." in word and word in self._paths:
                    yield self._paths[word]
                if word in FIXTURES:
                    yield from self._resolve(path, *FIXTURES[word])
            if "-m" in file.words and "hourglass" in file.words:
                yield self._paths["hourglass.__main__"]
            for above in (folder, *folder.parents) if Path(path).name.startswith("test_") else ():
                conftest = (above / "conftest.py").as_posix()
                if len(above.parts) > 1 and conftest in self._files:
                    yield conftest
            if (conftest := "tests/conftest.py") in self._files:
                self.passers[conftest].add(path)
        elif path.endswith(("__main__.py", "_tools/cli/app.py")):
            yield from (self._paths[value] for value in file.tables.values() if value in self._paths)

    def _resolve(self, path: str, module: str, name: str) -> Iterator[str]:
        """Yield the file that defines a name of a module, following re-exports of `__init__` files."""
        if module not in self._paths and f"tests.{module}" in self._paths and path.startswith("tests/"):
            module = f"tests.{module}"
        if f"{module}.{name}" in self._paths:
            module, name = f"{module}.{name}", ""
        if module not in self._paths:
            return
        parts = module.split(".")
        for package in (".".join(parts[:count]) for count in range(1, len(parts))):
            if package in self._paths:
                self.passers[self._paths[package]].add(path)
        found = self._paths[module]
        if name and found.endswith("__init__.py"):
            file = self._files[found]
            self.passers[found].add(path)
            if name in file.bindings and file.bindings[name] != (module, name):
                yield from self._resolve(path, *file.bindings[name])
                return
            home = file.tables.get(name, "")
            for lazy in (home, f"{module}.{home}"):
                if home and lazy in self._paths:
                    yield from self._resolve(path, lazy, name)
                    return
        yield found


def affected_tests(files: Mapping[str, File], changed: Iterable[str]) -> dict[str, int]:
    """Return the test files that these changed paths affect, with their distance from the change."""
    changed = set(changed)
    tests = [path for path in files if Path(path).name.startswith("test_") and path.startswith("tests/")]
    code = {path for path in changed if path in files}
    direct: set[str] = set()
    for path in changed:
        direct.update(_mapped(path, tests))
        if path not in files:
            code |= {file for file in files if _is_in_package(path, file)}
            direct.update(test for test in tests if Path(path).name in files[test].words)
            direct.update(test for test in tests if path in files[test].words)
    distances = Graph(files).distances(code)
    found = {test: distances[test] for test in tests if test in distances}
    return found | {test: min(1, found.get(test, 1)) for test in direct}


def _mapped(path: str, tests: Iterable[str]) -> Iterator[str]:
    for folder, readers in MENTIONED.items():
        if path == folder or path.startswith(f"{folder}/"):
            yield from (test for test in tests if test.startswith(readers))
    if path.startswith("tests/") and not path.endswith(".py"):
        folder = Path(path).parent
        while not (here := [test for test in tests if test.startswith(f"{folder.as_posix()}/")]):
            folder = folder.parent
        yield from here


def _is_in_package(path: str, file: str) -> bool:
    """Whether a file belongs to the package directory of another file, such as a template."""
    folder = Path(path).parent
    while folder.parts[:2] == ("src", "hourglass") and not (ROOT / folder / "__init__.py").exists():
        folder = folder.parent
    return folder.parts[:2] == ("src", "hourglass") and Path(file).parent == folder


def read_all(deleted: Iterable[str] = ()) -> dict[str, File]:
    """Parse every Python file of the repository. Deleted files count as empty, so that their importers are found."""
    files = {path: File() for path in deleted if path.endswith(".py") and path.startswith(FOLDERS)}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            try:
                files[name] = read(name, path.read_text())
            except SyntaxError:
                files[name] = File()  # the tests that import it will fail
    return files


def changes(since: str, root: Path = ROOT) -> set[str]:
    """Return the paths that differ from a commit: committed, staged, in the working tree, and new files."""
    return {
        *_git(root, "diff", "--name-only", "--no-renames", since),
        *_git(root, "ls-files", "--others", "--exclude-standard"),
    }


def merge_base(root: Path = ROOT) -> str:
    """Return the commit where this branch left main, or HEAD where there is no main."""
    for main in ("main", "origin/main"):
        found = _git(root, "merge-base", "HEAD", main, check=False)
        if found:
            return found[0]
    return "HEAD"


def _git(root: Path, *arguments: str, check: bool = True) -> list[str]:
    ended = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if check and ended.returncode:
        raise SystemExit(f"git {' '.join(arguments)}: {ended.stderr.strip()}")
    return ended.stdout.splitlines()


def main() -> int:
    """Find the affected tests and run them: unit tests first, then the others, nearest to the change first."""
    parser = argparse.ArgumentParser(prog="make test-changed", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--since", metavar="COMMIT", help="compare with this commit (default: the merge base with main)"
    )
    parser.add_argument("--unit", action="store_true", help="run the unit tests only")
    parser.add_argument("--list", action="store_true", help="print the test files and run nothing")
    parser.add_argument("pytest", nargs="*", help="options for pytest, after --")
    options = parser.parse_args()
    changed = changes(options.since or merge_base())
    files = read_all(deleted=[path for path in changed if not (ROOT / path).exists()])
    found = affected_tests(files, changed)
    print(f"{len(changed)} changed files affect {len(found)} of the test files")
    status = 0
    for tier in (tiers.UNIT,) if options.unit else tiers.ALL:
        nearest = sorted((distance, test) for test, distance in found.items() if tier in tiers.of_file(test))
        if tier == tiers.CAMPAIGN:
            near = [(distance, test) for distance, test in nearest if distance == 0]
            if len(near) < len(nearest):
                print(f"{len(nearest) - len(near)} files of campaigns are left to `make campaign`")
            nearest = near
        if options.list:
            print("".join(f"{tier:8}  {distance}  {test}\n" for distance, test in nearest), end="")
        elif nearest:
            print(f"\n{tier}: {len(nearest)} files", flush=True)
            arguments = ["-q", f"--tier={tier}", *options.pytest, *(test for _, test in nearest)]
            ended = subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, check=False)
            if ended.returncode not in (0, 5):  # 5: none of the tests in these files is of the tier
                return ended.returncode
    return status


if __name__ == "__main__":
    sys.exit(main())
