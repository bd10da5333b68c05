"""Variables that each process makes for itself while it imports a module: from a clock, randomness, or its environment."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hourglass._check import rules
from hourglass._check.external import READS, rule_of_call
from hourglass._check.resolving import Resolver
from hourglass._check.sharing import Shared
from hourglass._check.values import External

_DIFFERS = frozenset({rules.CLOCK, rules.RANDOM, rules.ENVIRONMENT, rules.IDENTITY})


def made_at_import(variable: Shared, resolver: Resolver) -> str | None:
    """What a variable is made from that is something else in the next process; None if it is a constant."""
    for value in _values(variable):
        for node in ast.walk(value):
            if isinstance(node, ast.Call | ast.Attribute) and (found := _differs(node, variable, resolver)):
                return found
    return None


def _values(variable: Shared) -> Iterator[ast.expr]:
    """What is assigned to a variable, but for lines whose comment allows it."""
    for binding in variable.module.scope.names.get(variable.name, ()):
        value = getattr(binding.meaning, "value", None)
        if isinstance(value, ast.expr) and binding.line not in variable.module.allowed:
            yield value


def _differs(node: ast.Call | ast.Attribute, variable: Shared, resolver: Resolver) -> str | None:
    target = node.func if isinstance(node, ast.Call) else node
    for each in resolver.values(target, variable.module.scope):
        name = each.name if isinstance(each, External) else ""
        if isinstance(node, ast.Call) and rule_of_call(name, node) in _DIFFERS:
            return f"{name.replace('()', '')}()"
        if READS.get(name) in _DIFFERS:
            return name
    return None
