"""How one function uses variables that runs share: what it changes, what it reads that others change or processes make."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hourglass._check import rules
from hourglass._check.defaults import default_changed
from hourglass._check.import_time import made_at_import
from hourglass._check.scopes import Scope
from hourglass._check.seen import Lens
from hourglass._check.sharing import Shared
from hourglass._check.values import Class, External


class SharedUses:
    """Told of the nodes of a function; gives the code and message of each rule that one breaks."""

    def __init__(self, lens: Lens, scope: Scope, receiver: Class | None) -> None:
        self._lens = lens
        self._scope = scope
        self._receiver = receiver
        self._changed: set[tuple[Shared, int]] = set()  # said already, and worse than reading

    def changed(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        """What a statement or call changes."""
        for name in default_changed(node, self._scope):
            yield rules.GLOBALS, f"it changes the default of {name}, which all runs in a process share"
        for change in self._lens.sharing.changes(node, self._scope, self._receiver):
            if not self._is_ours(change.variable):
                self._changed.add((change.variable, getattr(node, "lineno", 0)))
                yield rules.GLOBALS, f"it changes {change.variable.name}, which all runs in a process share"

    def read(self, node: ast.expr) -> Iterator[tuple[str, str]]:
        """What is wrong with reading a variable."""
        variable = self._lens.sharing.variable(node, self._scope, self._receiver)
        if variable is None or self._is_ours(variable) or (variable, node.lineno) in self._changed:
            return
        changed = self._lens.sharing.changed_at(variable)
        if changed is not None:
            module, place = changed
            line = getattr(place, "lineno", 1)
            if line not in module.allowed:
                by = f"{module.shown}:{line} changes while the program runs"
                yield rules.GLOBALS, f"it reads {variable.name}, which {by}"
            return
        made = made_at_import(variable, self._lens.resolver)
        if made is not None:
            yield rules.IMPORT_TIME, f"{variable.name} is made from {made} when its module is imported"

    def _is_ours(self, variable: Shared) -> bool:
        """Channels and other things of Hourglass are meant to be shared."""
        if "." in variable.name:
            return False
        values = self._lens.resolver.lookup(variable.name, variable.module.scope)
        return any(isinstance(each, External) and each.name.startswith("hourglass.") for each in values)
