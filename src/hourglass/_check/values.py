"""What an expression may stand for, as far as its text tells: the vocabulary of the resolver. Data only.

`Unknown` is an answer too: a rule that asks whether something is *always* a set must know of the bindings that the
resolver could not resolve.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from hourglass._check.modules import Module
    from hourglass._check.scopes import NameScope


def words(text: str) -> frozenset[str]:
    """The words of a text: tables of names are written so, which a reader takes in at a glance."""
    return frozenset(text.split())


FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class External:
    """Something outside the project, by its dotted name: `time.time`; an object of a class goes by the class's name."""

    name: str

    def __post_init__(self) -> None:
        if self.name.startswith("hourglass.aio."):  # the same things, awaited
            object.__setattr__(self, "name", self.name.replace("hourglass.aio.", "hourglass.", 1))


@dataclass(frozen=True, slots=True)
class Class:
    """A class of the project, and the scope that it stands in."""

    module: Module
    node: ast.ClassDef
    scope: NameScope


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class of the project."""

    cls: Class


@dataclass(frozen=True, slots=True)
class Func:
    """A function of the project, the scope that it stands in, and for what is inside a method the class of `self`."""

    module: Module
    node: FunctionNode
    scope: NameScope
    receiver: Class | None = None

    @property
    def name(self) -> str:
        """Its own name, without those around it."""
        return "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name


@dataclass(frozen=True, slots=True)
class ModuleRef:
    """A module of the project."""

    module: Module


@dataclass(frozen=True, slots=True)
class NamespacePackage:
    """A directory of the project that is imported as a package without a file of its own."""

    directory: str


@dataclass(frozen=True, slots=True)
class Items:
    """A container, and what it may hold."""

    elements: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class AnySet:
    """A set: code that walks it sees an order that it does not see in another process."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The text does not tell."""


Value: TypeAlias = (
    External | Class | Instance | Func | ModuleRef | NamespacePackage | Items | AnySet | Unknown
)

UNKNOWN = Unknown()
SET = AnySet()
