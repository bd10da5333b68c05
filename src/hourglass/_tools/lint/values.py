"""The possible values of an expression, as far as the source code determines them. Data only, for the resolver.

`Unknown` is also a value, because a rule that checks whether a value is *always* a set must take unresolved bindings into
account.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hourglass._tools.lint.modules import Module
    from hourglass._tools.lint.scopes import NameScope


def words(text: str) -> frozenset[str]:
    """Return the words of a string as a set; tables of names are written this way for readability."""
    return frozenset(text.split())


FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class External:
    """An object outside the project, with its dotted name, e.g. `time.time`. An instance has the name of its class."""

    name: str

    def __post_init__(self) -> None:
        if self.name.startswith("hourglass.aio."):  # the awaitable counterparts of the same functions
            object.__setattr__(self, "name", self.name.replace("hourglass.aio.", "hourglass.", 1))


@dataclass(frozen=True, slots=True)
class Class:
    """A class of the project, and its scope."""

    module: Module
    node: ast.ClassDef
    scope: NameScope

    @property
    def body_scope(self) -> NameScope:
        """The scope of the class body."""
        return self.module.scope_of_class(self.node, self.scope)


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class of the project."""

    cls: Class


@dataclass(frozen=True, slots=True)
class Func:
    """A function of the project, its scope, and, for code inside a method, the class of `self`."""

    module: Module
    node: FunctionNode
    scope: NameScope
    receiver: Class | None = None

    @property
    def name(self) -> str:
        """The function's own name, unqualified."""
        return "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name

    @property
    def body(self) -> Sequence[ast.AST]:
        """The statements of the function, or the expression of a lambda."""
        return [self.node.body] if isinstance(self.node, ast.Lambda) else self.node.body

    @property
    def body_scope(self) -> NameScope:
        """The scope of the function body."""
        return self.module.scope_of_function(self.node, self.scope)


@dataclass(frozen=True, slots=True)
class ModuleRef:
    """A module of the project."""

    module: Module


@dataclass(frozen=True, slots=True)
class NamespacePackage:
    """A directory of the project that is a package without an `__init__.py`."""

    directory: str


@dataclass(frozen=True, slots=True)
class Items:
    """A container, and the values that it may contain."""

    elements: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class AnySet:
    """A set. Its iteration order differs between processes."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that cannot be determined from the source code."""


Value: TypeAlias = (
    External | Class | Instance | Func | ModuleRef | NamespacePackage | Items | AnySet | Unknown
)
Values: TypeAlias = tuple[Value, ...]

UNKNOWN = Unknown()
SET = AnySet()


def external_names(values: Values) -> Iterator[str]:
    """Yield the names of the objects outside the project."""
    return (value.name for value in values if isinstance(value, External))
