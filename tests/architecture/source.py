"""The source tree as data: every module, and all of its imports, nested ones included."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hourglass"


@dataclass(frozen=True, eq=False)
class Module:
    """One file: its dotted name, its path below the package, and its syntax tree, which is parsed on first use."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the syntax tree, cached for the many tests that iterate over them."""
        return tuple(ast.walk(self.tree))

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def place(self) -> str:
        """The path below `src/hourglass`, such as `_evaluator/fibers.py`."""
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def part(self) -> str:
        """The part of the architecture: the segment after `hourglass`; empty for the root."""
        return part_of(self.name)

    @property
    def is_public(self) -> bool:
        """Whether no segment begins with an underscore."""
        return not any(segment.startswith("_") for segment in self.name.split("."))


@dataclass(frozen=True)
class Import:
    """One imported module, and the location of the import. The target is a module, never a name in one."""

    importer: Module
    target: str
    line: int

    def __str__(self) -> str:
        return f"{self.importer.place}:{self.line} imports {self.target}"


def part_of(name: str) -> str:
    """Return the part of the architecture to which a module belongs."""
    return name.split(".")[1] if "." in name else ""


@cache
def modules() -> tuple[Module, ...]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        segments = ["hourglass", *path.relative_to(PACKAGE).with_suffix("").parts]
        name = ".".join(segments[:-1] if segments[-1] == "__init__" else segments)
        found.append(Module(name, path))
    return tuple(found)


@cache
def _names() -> frozenset[str]:
    return frozenset(module.name for module in modules())


def is_module(name: str) -> bool:
    """Whether the package has a module of this dotted name."""
    return name in _names()


def module(place: str) -> Module:
    """Return the module at a path below the package."""
    return next(module for module in modules() if module.place == place)


@cache
def imports() -> tuple[Import, ...]:
    """Return every import of every module: at the top, inside functions, and for type checkers only."""
    return tuple(imported for importer in modules() for imported in imports_of(importer))


@cache
def imports_of(importer: Module) -> tuple[Import, ...]:
    """Return every import of one module."""
    return tuple(_imports_of(importer))


def _imports_of(importer: Module) -> Iterator[Import]:
    for node in importer.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(importer, alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = base_of(importer, node)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield Import(importer, inner if is_module(inner) else base, node.lineno)
        elif isinstance(node, ast.Call) and (named := _imported_by_call(node)):
            yield Import(importer, named, node.lineno)


def _imported_by_call(node: ast.Call) -> str:
    """Return the module that `import_module("…")` imports, or ""."""
    match node:
        case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(name)), *_]):
            return name
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
            return name
    return ""


def base_of(importer: Module, node: ast.ImportFrom) -> str:
    """Return the module that a `from` import names, with its dots resolved."""
    if not node.level:
        return node.module or ""
    is_package = importer.path.name == "__init__.py"
    segments = importer.name.split(".")
    kept = segments[: len(segments) - node.level + is_package]
    return ".".join([*kept, node.module] if node.module else kept)


def top(name: str) -> str:
    """Return the outermost package of a dotted name."""
    return name.partition(".")[0]


def is_function(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def is_type_checking_block(node: ast.AST) -> bool:
    """Whether the node is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def lines_within(where: Module, is_block: Callable[[ast.AST], bool]) -> set[int]:
    """Return the lines of a module inside blocks of some kind."""
    return {
        line
        for node in where.nodes
        if is_block(node) and isinstance(node, ast.stmt)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def names_in(where: Module) -> set[str]:
    """Return every name that a module uses, except in imports."""
    plain = {node.id for node in where.nodes if isinstance(node, ast.Name)}
    return plain | {node.attr for node in where.nodes if isinstance(node, ast.Attribute)}
