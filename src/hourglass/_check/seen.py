"""What the walk through a function (`body`) takes and gives: the parts that answer its questions, and what was found.
Data only.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from hourglass._check.durable import Durable
from hourglass._check.kinds import Kinds
from hourglass._check.modules import Module
from hourglass._check.resolving import ValueResolver
from hourglass._check.sharing import Sharing
from hourglass._check.values import Func


@dataclass(frozen=True)
class Lens:
    """All that answers questions about a project."""

    resolver: ValueResolver
    kinds: Kinds
    durable: Durable
    sharing: Sharing


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule broken at a node. `via` names what stands between this function and a node in another place."""

    code: str
    module: Module
    node: ast.AST
    message: str
    via: tuple[str, ast.AST] | None = None


@dataclass(slots=True)
class Seen:
    """What the walk through a function found."""

    hits: list[Hit] = field(default_factory=list)
    calls: list[tuple[Func, ast.AST]] = field(default_factory=list)
    asks: bool = False
