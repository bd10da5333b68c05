"""Variables of modules and classes that runs share: the places that change them, and the rules about their use.

A list, dict or set as the default of a parameter is one object, shared by all calls without that argument. A variable that is
computed at import from a clock, randomness or the environment differs between processes.

Only changes after the import count. Code that runs while a module is imported (the module's own statements, its decorators,
and the functions that these call) only builds a constant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hourglass._tools.lint import rules
from hourglass._tools.lint.defining import Definitions, is_on, own_nodes_on
from hourglass._tools.lint.external import READS, rule_of_call
from hourglass._tools.lint.modules import Module
from hourglass._tools.lint.resolving import Position, ValueResolver, last_name
from hourglass._tools.lint.scopes import Assigned, NameScope
from hourglass._tools.lint.values import Class, Func, Instance, ModuleRef, Unknown, external_names, words

MUTATORS = words(
    "append extend insert remove pop clear sort reverse add discard update setdefault popitem "
    "appendleft extendleft popleft rotate __setitem__ __delitem__ put put_nowait subtract "
    "difference_update intersection_update symmetric_difference_update"
)
_PLAIN_BASES = words("object abc.ABC typing.Generic typing.Protocol")
_CONTAINERS = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp
_DEFAULT_CONTAINERS = _CONTAINERS | ast.SetComp
_OWNED = ast.Subscript | ast.Attribute | ast.Starred
_WORD = re.compile(r"\w+")
_AT_IMPORT = frozenset({"__init_subclass__", "__set_name__", "__class_getitem__"})


@dataclass(frozen=True, slots=True)
class Shared:
    """A variable of a module, or of a class in it (`Cart.count`)."""

    module: Module
    name: str


class Sharing:
    """The shared variables of a project and the places that change them."""

    def __init__(self, resolver: ValueResolver, definitions: Definitions) -> None:
        self._resolver = resolver
        self._definitions = definitions
        self._changes: dict[Shared, tuple[Module, ast.AST] | None] = {}
        self._words: dict[str, set[Module]] = {}
        self._indexed = 0
        self._at_import: dict[Module, frozenset[str]] = {}

    def variable(self, node: ast.expr, at: Position) -> Shared | None:
        """Return the shared variable that an expression names directly, or None."""
        match node:
            case ast.Name(id=name):
                home = self._resolver.home(name, at.scope)
                if home is not None and home.kind == "module" and _is_variable(home, name):
                    return Shared(home.module, name)
                return self._imported(node, home, name)
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(owner, name, at)
            case _:
                return None

    def _imported(self, node: ast.Name, home: NameScope | None, name: str) -> Shared | None:
        """Return the variable of another module that `from module import NAME` binds, or None."""
        for binding in home.bindings(name, None) if home is not None else ():
            source = getattr(binding.meaning, "module", None)
            original = getattr(binding.meaning, "name", None)
            if isinstance(source, str) and isinstance(original, str) and home is not None:
                level = getattr(binding.meaning, "level", 0)
                target = self._resolver.project.find(source, level, home.module.path)
                if isinstance(target, ModuleRef) and _is_variable(target.module.scope, original):
                    return Shared(target.module, original)
        return None

    def _attribute(self, owner: ast.expr, name: str, at: Position) -> Shared | None:
        for value in at.values(owner):
            match value:
                case ModuleRef(module) if _is_variable(module.scope, name):
                    return Shared(module, name)
                case Class():
                    return self._of_class(value, name)
                case Instance(cls) if not self._resolver.members.assigned(cls, name):
                    variable = self._of_class(cls, name)
                    if variable is not None and self._is_container(cls, name) and self._is_plain(cls):
                        return variable
                case _:
                    pass
        return None

    def _of_class(self, cls: Class, name: str) -> Shared | None:
        for base in self._resolver.members.bases(cls):
            if name in base.body_scope.names:
                is_variable = _is_variable(base.body_scope, name)
                return Shared(base.module, f"{base.node.name}.{name}") if is_variable else None
        return None

    def _is_plain(self, cls: Class) -> bool:
        """Whether objects share the values in the class body. Models of some libraries copy them."""
        for base_class in self._resolver.members.bases(cls):
            values = [
                value
                for base in base_class.node.bases
                for value in self._resolver.values(base, base_class.scope)
            ]
            if (
                set(external_names(tuple(values))) - _PLAIN_BASES
                or base_class.node.keywords
                or Unknown() in values
            ):
                return False
        return True

    def _is_container(self, cls: Class, name: str) -> bool:
        for base in self._resolver.members.bases(cls):
            for binding in base.body_scope.names.get(name, ()):
                if isinstance(binding.meaning, Assigned):
                    return isinstance(binding.meaning.value, _CONTAINERS)
        return False

    def changes(self, node: ast.AST, at: Position) -> Iterator[Shared]:
        """Yield the shared variables that a statement or expression itself changes. Nested nodes are not examined."""
        for target in _stored(node):
            if isinstance(target, ast.Name):
                if target.id in at.scope.global_names and (variable := self.variable(target, at)):
                    yield variable
            elif (isinstance(target, ast.Attribute) and (variable := self._set_on(target, at))) or (
                variable := self._root(target.value if isinstance(target, _OWNED) else target, at)
            ):
                yield variable
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in MUTATORS:
                if variable := self._root(owner, at):
                    yield variable
            case ast.Call(func=ast.Name(id="next"), args=[ast.Name() | ast.Attribute() as source, *_]):
                if variable := self.variable(source, at):
                    yield variable
            case _:
                pass

    def _set_on(self, target: ast.Attribute, at: Position) -> Shared | None:
        """Return the variable that `Cart.count = …` or `module.NAME = …` sets. `self.count = …` is not shared."""
        if any(isinstance(value, Instance) for value in at.values(target.value)):
            return self._root(target.value, at)
        return self.variable(target, at) or self._root(target.value, at)

    def _root(self, node: ast.expr, at: Position) -> Shared | None:
        """Return the shared variable that an expression denotes, or that contains the expression's value."""
        part: ast.expr | None = node
        while part is not None:
            if (variable := self.variable(part, at)) is not None:
                return variable
            part = part.value if isinstance(part, ast.Attribute | ast.Subscript) else None
        return None

    def changed_at(self, variable: Shared) -> tuple[Module, ast.AST] | None:
        """Return a place in the project that changes a variable after the import, or None."""
        if variable not in self._changes:
            # None during the search, because the search may return to this variable.
            self._changes[variable] = None
            self._changes[variable] = next(self._search(variable), None)
        return self._changes[variable]

    def _search(self, variable: Shared) -> Iterator[tuple[Module, ast.AST]]:
        last = variable.name.rpartition(".")[2]
        mentioned = re.compile(rf"\b{re.escape(last)}\b")
        for module in self._mentioning(variable, last):
            lines = sorted(
                {module.text.count("\n", 0, match.start()) + 1 for match in mentioned.finditer(module.text)}
            )
            for function in self._definitions.of(module):
                if isinstance(function, Class) or not is_on(function.node, lines):
                    continue
                at = Position.inside(function, self._resolver)
                for node in own_nodes_on(function.node, lines):
                    if variable in self.changes(node, at) and not self._runs_at_import(function):
                        yield module, node

    def _mentioning(self, variable: Shared, last: str) -> list[Module]:
        """Return the modules that may change a variable: its own, and all modules that mention both it and its module."""
        for module in self._resolver.project.modules[self._indexed :]:
            self._indexed += 1
            for word in set(_WORD.findall(module.text)):
                self._words.setdefault(word, set()).add(module)
        home = variable.module.path
        imported = home.parent.name if home.name == "__init__.py" else home.stem
        near = self._words.get(last, set()) & self._words.get(imported, set())
        return sorted(
            {variable.module, *near},
            key=lambda candidate: (candidate is not variable.module, candidate.shown),
        )

    def _runs_at_import(self, function: Func) -> bool:
        if function.name in _AT_IMPORT:
            return True
        outermost: NameScope = function.scope
        name = function.name
        while outermost.kind == "function" and outermost.parent is not None:
            name = getattr(outermost.node, "name", name)
            outermost = outermost.parent
        return outermost.kind == "module" and any(
            name in self._called_at_import(module) for module in self._words.get(name, ())
        )

    def _called_at_import(self, module: Module) -> frozenset[str]:
        """Return the names of functions that a module's own statements call or use as decorators."""
        if module not in self._at_import:
            names: set[str] = set()
            todo: list[ast.AST] = list(module.tree.body)
            while todo:
                node = todo.pop()
                match node:
                    case ast.FunctionDef() | ast.AsyncFunctionDef():
                        names.update(last_name(decorator) for decorator in node.decorator_list)
                    case ast.ClassDef():
                        names.update(last_name(decorator) for decorator in node.decorator_list)
                        todo += node.body
                    case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                        pass  # runs only as a program, not on import
                    case _:
                        if isinstance(node, ast.Call):
                            names.add(last_name(node))
                        todo += ast.iter_child_nodes(node)
            self._at_import[module] = frozenset(names)
        return self._at_import[module]


def _is_variable(scope: NameScope, name: str) -> bool:
    bindings = scope.names.get(name, ())
    return bool(bindings) and all(isinstance(binding.meaning, Assigned) for binding in bindings)


def _stored(node: ast.AST) -> Iterator[ast.expr]:
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            for target in targets:
                yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        case ast.AugAssign(target=target):
            yield target
        case ast.AnnAssign(target=target, value=ast.expr()):
            yield target
        case _:
            pass


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
    return {parameter.arg for parameter, default in pairs if isinstance(default, _DEFAULT_CONTAINERS)}


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
