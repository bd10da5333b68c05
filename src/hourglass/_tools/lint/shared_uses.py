"""The rules about state that runs share: changed parameter defaults, and variables that differ between processes.

A list, dict or set as the default of a parameter is one object, shared by all calls without that argument. A variable that is
computed at import from a clock, randomness or the environment differs between processes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hourglass._tools.lint import rules
from hourglass._tools.lint.external import READS, rule_of_call
from hourglass._tools.lint.resolving import Position, ValueResolver
from hourglass._tools.lint.scopes import NameScope
from hourglass._tools.lint.sharing import MUTATORS, Shared, Sharing
from hourglass._tools.lint.values import external_names

_CONTAINERS = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp


def _defaults_changed(node: ast.AST, scope: NameScope) -> Iterator[str]:
    """Yield the parameters with a shared default that this statement or call changes."""
    name = _changed(node)
    # A name with several bindings may be a copy of the default.
    if name and name in _shared(scope) and len(scope.names.get(name, ())) == 1:
        yield name


def _changed(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in MUTATORS:
            return name
        case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=name))]):
            return name
        case ast.AugAssign(target=ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name))):
            return name
        case ast.Delete(targets=[ast.Subscript(value=ast.Name(id=name))]):
            return name
        case _:
            return ""


def _shared(scope: NameScope) -> set[str]:
    node = scope.node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return set()
    arguments = node.args
    places = [*arguments.posonlyargs, *arguments.args]
    pairs = [
        *zip(reversed(places), reversed(arguments.defaults), strict=False),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return {parameter.arg for parameter, default in pairs if isinstance(default, _CONTAINERS)}


_DIFFERS = frozenset({rules.CLOCK, rules.RANDOM, rules.ENVIRONMENT, rules.IDENTITY})


def _made_at_import(variable: Shared, resolver: ValueResolver) -> str | None:
    """Return the part of a variable's value that differs between processes, or None."""
    for value in _values(variable):
        for node in ast.walk(value):
            if isinstance(node, ast.Call | ast.Attribute) and (source := _differs(node, variable, resolver)):
                return source
    return None


def _values(variable: Shared) -> Iterator[ast.expr]:
    """Yield the expressions assigned to a variable, except on lines with a comment that silences findings."""
    for binding in variable.module.scope.names.get(variable.name, ()):
        value = getattr(binding.meaning, "value", None)
        if isinstance(value, ast.expr) and binding.line not in variable.module.allowed:
            yield value


def _differs(node: ast.Call | ast.Attribute, variable: Shared, resolver: ValueResolver) -> str | None:
    target = node.func if isinstance(node, ast.Call) else node
    for name in external_names(resolver.values(target, variable.module.scope)):
        if isinstance(node, ast.Call) and rule_of_call(name, node) in _DIFFERS:
            return f"{name.replace('()', '')}()"
        if READS.get(name) in _DIFFERS:
            return name
    return None


class SharedUses:
    """The uses of shared variables in a function: changes, and reads of variables that change elsewhere or differ between
    processes.

    Pass the nodes of the function. The methods yield the code and message of each broken rule.
    """

    def __init__(self, sharing: Sharing, at: Position) -> None:
        self._sharing = sharing
        self._at = at
        self._changed: set[tuple[Shared, int]] = set()  # reported already: changes are worse than reads

    def changed(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        """Yield the rules that a statement or call breaks by changing shared variables."""
        for name in _defaults_changed(node, self._at.scope):
            yield rules.GLOBALS, f"it changes the default of {name}, which all runs in a process share"
        for variable in self._sharing.changes(node, self._at):
            if not self._is_ours(variable):
                self._changed.add((variable, getattr(node, "lineno", 0)))
                yield rules.GLOBALS, f"it changes {variable.name}, which all runs in a process share"

    def read(self, node: ast.expr) -> Iterator[tuple[str, str]]:
        """Yield the rules that reading a variable breaks."""
        variable = self._sharing.variable(node, self._at)
        if variable is None or self._is_ours(variable) or (variable, node.lineno) in self._changed:
            return
        changed = self._sharing.changed_at(variable)
        if changed is not None:
            module, place = changed
            line = getattr(place, "lineno", 1)
            if line not in module.allowed:
                by = f"{module.shown}:{line} changes while the program runs"
                yield rules.GLOBALS, f"it reads {variable.name}, which {by}"
            return
        made = _made_at_import(variable, self._at.resolver)
        if made is not None:
            yield rules.IMPORT_TIME, f"{variable.name} is computed from {made} when its module is imported"

    def _is_ours(self, variable: Shared) -> bool:
        """Whether a variable holds a channel or another object of Hourglass that is meant to be shared."""
        if "." in variable.name:
            return False
        values = self._at.resolver.lookup(variable.name, variable.module.scope)
        return any(name.startswith("hourglass.") for name in external_names(values))
