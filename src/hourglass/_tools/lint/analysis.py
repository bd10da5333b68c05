"""The analyses of a project that are used during the walk through a function."""

from __future__ import annotations

from dataclasses import dataclass

from hourglass._tools.lint.catching import Catching
from hourglass._tools.lint.kinds import Durable, Kinds
from hourglass._tools.lint.resolving import ValueResolver
from hourglass._tools.lint.sharing import Sharing


@dataclass(frozen=True)
class Analysis:
    """The analyses of a project that are used during the walk through a function."""

    resolver: ValueResolver
    kinds: Kinds
    durable: Durable
    sharing: Sharing
    catching: Catching
