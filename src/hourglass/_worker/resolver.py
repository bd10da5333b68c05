"""Lookup of decorated objects by type name: in the worker's lists, in its modules, or by a dotted path.

A type name comes from a client and is not trusted. A lookup never imports a module outside the roots that were
passed to the worker, never follows a private segment, and never returns an object that is not decorated. The
workflows that Hourglass defines (the table `built_in`) take precedence.

The first time that a name is not found, all modules under the roots are imported, in the calling thread.
Imports run user code, so only `known_activity` may be called on the control loop. A lookup does not import
private modules. A decorated object in a private module is found if a public module, or the author, has imported
that object.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import logging
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from types import MappingProxyType, ModuleType
from typing import Any, Generic, TypeVar

from hourglass._evaluator.definition import WorkflowDefinition, workflow_definition
from hourglass.activity import Activity, ActivityDefinition, activity_definition
from hourglass.errors import DefinitionError, UnknownTypeError, UsageError

D = TypeVar("D", WorkflowDefinition, ActivityDefinition)

logger = logging.getLogger("hourglass.worker")

DYNAMIC = ""
"""The key of the dynamic definition in the tables. No type has this name."""

_LONGEST_NAME = 500
_LISTED = 20


@dataclass
class _Table(Generic[D]):
    """The definitions of one kind by type name, together with the decorated objects."""

    kind: str
    of: Callable[[object], D | None]
    entries: dict[str, D] = field(default_factory=dict)
    owners: dict[str, object] = field(default_factory=dict)
    conflicts: dict[str, str] = field(default_factory=dict)
    dynamic: D | None = None
    """The definition for all types that have no definition of their own."""

    def find(self, obj: object) -> D | None:
        """Return the definition of an object, or None if it has none. All exceptions are caught, because
        proxies of web frameworks may raise any exception.
        """
        try:
            return self.of(obj)
        except Exception:
            return None

    def add_late(self, obj: object) -> None:
        """Add an object that a search has found. A conflict is stored and raised when the name is looked up."""
        definition = self.find(obj)
        if definition is not None:
            try:
                self.add(obj, definition)
            except DefinitionError as error:
                name = DYNAMIC if definition.dynamic else definition.name
                self.conflicts[name] = str(error)
                self.entries.pop(name, None)

    def add(self, obj: object, definition: D) -> None:
        if definition.dynamic:
            self._add_dynamic(obj, definition)
            return
        name = definition.name
        owner = self.owners.get(name)
        if owner is not None and not _same(owner, obj):
            raise DefinitionError(
                f"two {self.kind} types have the name {name!r}: {place(owner)} and {place(obj)}. Give one of them another "
                f"name: @{self.kind}.defn(name=…)"
            )
        self.entries.setdefault(name, definition)
        self.owners.setdefault(name, obj)

    def _add_dynamic(self, obj: object, definition: D) -> None:
        owner = self.owners.setdefault(DYNAMIC, obj)
        if not _same(owner, obj):
            raise DefinitionError(
                f"two dynamic {'workflows' if self.kind == 'workflow' else 'activities'}: {place(owner)} and {place(obj)}. A "
                "worker can have only one, which handles all types without a definition"
            )
        self.dynamic = definition


class Resolver:
    """The workflows and activities of a worker by type name. Thread-safe."""

    def __init__(
        self,
        *,
        workflows: Sequence[object] = (),
        activities: Sequence[object] = (),
        modules: Sequence[str | ModuleType] = (),
        needs_behavior: bool = False,
        built_in: Mapping[str, Callable[[], WorkflowDefinition]] = MappingProxyType({}),
    ) -> None:
        self._built_in = built_in
        self._needs_behavior = needs_behavior
        self._lock = threading.RLock()
        self._workflows = _Table[WorkflowDefinition]("workflow", workflow_definition)
        self._activities = _Table[ActivityDefinition]("activity", activity_definition)
        self.steps: dict[str, dict[str, Any]] = {}
        """The definitions of unfinished steps, by run id and activity id (`RunSettings.steps`)."""
        self._classes_by_method: dict[str, str] = {}
        self._imported = False
        self._unimportable: list[str] = []
        self._private: list[str] = []
        for workflow in _sequence(workflows, "workflows"):
            self._add_workflow(workflow)
        for activity in _sequence(activities, "activities"):
            self._add_activity(activity)
        self._roots = {module.__name__: module for module in map(_import_root, _sequence(modules, "modules"))}
        for module in self._roots.values():
            self._scan(module)
        for conflict in (*self._workflows.conflicts.values(), *self._activities.conflicts.values()):
            raise DefinitionError(conflict)
        for definition in self._workflows.entries.values():
            self._check_behavior(definition)
        if self._workflows.dynamic is not None:
            self._check_behavior(self._workflows.dynamic)

    @property
    def has_workflows(self) -> bool:
        return bool(self._workflows.entries or self._workflows.dynamic or self._roots)

    @property
    def has_activities(self) -> bool:
        return bool(self._activities.entries or self._activities.dynamic or self._roots)

    @property
    def workflow_types(self) -> frozenset[str] | None:
        """The types of all workflows, or None if the worker may have others."""
        types = self._types_of(self._workflows)
        return None if types is None else types | frozenset(self._built_in)

    @property
    def activity_types(self) -> frozenset[str] | None:
        """The types of all activities, or None if the worker may have others."""
        return self._types_of(self._activities)

    def _types_of(self, table: _Table[D]) -> frozenset[str] | None:
        unseen = not self._imported and any(hasattr(root, "__path__") for root in self._roots.values())
        return None if table.dynamic is not None or unseen else frozenset(table.entries)

    def known_activity(self, name: str) -> ActivityDefinition | None:
        """Return an activity that has already been found. Do not import modules."""
        definition = self._activities.entries.get(name)
        return self._activities.dynamic if definition is None and not self._roots else definition

    def check_local_activity(self, name: str) -> None:
        """Raise `UsageError` if this worker cannot execute a local activity of this type."""
        try:
            self.activity(name)
        except UnknownTypeError as error:
            raise UsageError(f"a local activity runs on the worker of its workflow, but {error}") from None

    def workflow(self, name: str) -> WorkflowDefinition:
        """Return the workflow of this type. May import modules under the roots."""
        if name in self._built_in:
            return self._built_in[name]()
        definition = self._resolve(self._workflows, name)
        self._check_behavior(definition)
        return definition

    def activity(self, name: str) -> ActivityDefinition:
        """Return the activity of this type. May import modules under the roots."""
        return self._resolve(self._activities, name)

    def _resolve(self, table: _Table[D], name: str) -> D:
        definition = table.entries.get(name)
        if definition is not None:
            return definition
        if len(name) <= _LONGEST_NAME and self._roots:
            with self._lock:
                obj = self._by_path(name)
                definition = table.find(obj) if obj is not None else None
                needs_instance = getattr(definition, "needs_instance", False)
                if definition is not None and not needs_instance and not definition.dynamic:
                    return definition
                self._import_all()
            if name in table.entries:
                return table.entries[name]
        if name in table.conflicts:
            raise DefinitionError(table.conflicts[name])
        if DYNAMIC in table.conflicts:
            raise DefinitionError(table.conflicts[DYNAMIC])
        if table.dynamic is not None:
            return table.dynamic
        raise UnknownTypeError(self._unknown(table, name))

    def _check_behavior(self, definition: WorkflowDefinition) -> None:
        if self._needs_behavior and not definition.versioning_behavior and definition.config is None:
            raise DefinitionError(
                f"workflow {definition.name} ({definition.where}) has no versioning behavior, which decides what happens to "
                "its runs when another worker version becomes current: use "
                "@workflow.defn(versioning_behavior=VersioningBehavior.PINNED) or AUTO_UPGRADE, or set "
                "default_versioning_behavior of the worker"
            )

    def _add_workflow(self, obj: object) -> None:
        definition = workflow_definition(obj)
        if definition is None:
            raise DefinitionError(f"workflows=[…]: {_misfit(obj, 'workflow')}")
        self._workflows.add(obj, definition)

    def _add_activity(self, obj: object) -> None:
        definition = activity_definition(obj)
        if definition is None:
            self._add_instance(obj)
        elif definition.needs_instance:
            owner = definition.fn.__qualname__.rpartition(".")[0]
            raise DefinitionError(
                f"activities=[…]: {definition.place} is a method and needs an instance: pass {owner}(…) for all activities "
                f"of the class, or {owner}(…).{definition.fn.__name__} for this one"
            )
        else:
            self._activities.add(obj, definition)

    def _add_instance(self, obj: object) -> None:
        provided = _provided(obj)
        if provided is not None:
            for activity in provided:
                self._activities.add(activity, activity.__hourglass_activity__)
            return
        methods = [] if isinstance(obj, (type, ModuleType)) else list(_activity_methods(type(obj)))
        if isinstance(obj, type) and any(_activity_methods(obj)):
            raise DefinitionError(
                f"activities=[…]: {place(obj)} is a class: pass an instance, {obj.__name__}(…)"
            )
        if not methods:
            raise DefinitionError(f"activities=[…]: {_misfit(obj, 'activity')}")
        for name in methods:
            bound = getattr(obj, name)
            self._activities.add(bound, bound.__hourglass_activity__)

    def _scan(self, module: ModuleType) -> None:
        """Add the decorated objects of a module, except objects imported from outside the roots."""
        for obj in list(vars(module).values()):
            for activity in _provided(obj) or ():
                self._activities.add_late(activity)
            if not self._is_ours(_module_of(obj)):
                continue
            self._workflows.add_late(obj)
            self._activities.add_late(obj)
            if isinstance(obj, type):
                for name in _activity_methods(obj):
                    activity_type = getattr(obj, name).name
                    self._classes_by_method.setdefault(activity_type, f"{obj.__module__}.{obj.__qualname__}")

    def _import_all(self) -> None:
        """Import all public modules under the roots, unless this has already been done."""
        if self._imported:
            return
        self._imported = True
        for root in list(self._roots.values()):
            for name in _submodules(root):
                if name.rpartition(".")[2].startswith("_"):
                    private = sys.modules.get(name)
                    if private is None:
                        self._private.append(name)
                    else:
                        self._scan(private)
                    continue
                try:
                    module = importlib.import_module(name)
                except Exception as error:
                    self._unimportable.append(name)
                    logger.warning("module %s cannot be imported: %s: %s", name, type(error).__name__, error)
                else:
                    self._scan(module)

    def _by_path(self, name: str) -> object | None:
        """Return the object at a dotted path that leads from a root through packages, modules and classes.
        Return None if there is none.
        """
        segments = name.split(".")
        if not all(segment.isidentifier() and not segment.startswith("_") for segment in segments):
            return None
        for length in range(len(segments) - 1, 0, -1):
            root = self._roots.get(".".join(segments[:length]))
            if root is not None:
                return self._descend(root, segments[length:])
        return None

    def _descend(self, obj: object, segments: list[str]) -> object | None:
        for segment in segments:
            if isinstance(obj, ModuleType):
                member = vars(obj).get(segment)
                if member is None:
                    member = _submodule(obj, segment)
            elif isinstance(obj, type):
                member = vars(obj).get(segment)
            else:
                return None
            if not self._is_ours(member.__name__ if isinstance(member, ModuleType) else _module_of(member)):
                return None
            obj = member
        return obj

    def _is_ours(self, module: object) -> bool:
        return isinstance(module, str) and any(
            module == root or module.startswith(f"{root}.") for root in self._roots
        )

    def _unknown(self, table: _Table[D], name: str) -> str:
        types = sorted(table.entries)
        kinds = "workflows" if table.kind == "workflow" else "activities"
        shown = f"{name[:100]!r}" + ("…" if len(name) > 100 else "")
        parts = [f"{table.kind} type {shown} is not registered with this worker"]
        near = difflib.get_close_matches(name[:100], types, n=3)
        if near:
            parts.append(f"did you mean {' or '.join(map(repr, near))}?")
        more = f" and {len(types) - _LISTED} more" if len(types) > _LISTED else ""
        parts.append(f"registered {kinds}: {', '.join(types[:_LISTED]) + more if types else 'none'}")
        if table.kind == "activity" and name in self._classes_by_method:
            owner = self._classes_by_method[name]
            parts.append(
                f"it is a method of {owner}: pass an instance to the worker, activities=[{owner.rpartition('.')[2]}(…)]"
            )
        else:
            parts.append(f"pass it to the worker: {kinds}=[…], or modules=[…] with its package")
        if self._unimportable:
            parts.append(f"these modules could not be imported: {', '.join(self._unimportable[:_LISTED])}")
        if self._private:
            names = ", ".join(self._private[:_LISTED])
            parts.append(f"private modules are not searched: {names}")
        return "; ".join(parts)


def place(obj: object) -> str:
    """Return the place of an object for messages: module, qualified name, and file and line if known."""
    target: Any = inspect.unwrap(obj) if callable(obj) else obj
    name = getattr(target, "__qualname__", None)
    if name is None:
        return f"an object of type {type(obj).__module__}.{type(obj).__qualname__}"
    code = getattr(target, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{getattr(target, '__module__', '?')}.{name}{where}"


def _module_of(obj: object) -> object:
    try:
        return getattr(obj, "__module__", None)
    except Exception:
        return None


def _same(first: object, second: object) -> bool:
    if isinstance(first, Activity) and isinstance(second, Activity):
        return bool(first.fn == second.fn)
    return first is second or workflow_definition(first) is workflow_definition(second)


def _misfit(obj: object, kind: str) -> str:
    """Return an error message about an object that is not a workflow or activity, with a correction."""
    listed = {"workflow": "workflows", "activity": "activities"}[kind]
    article = {"workflow": "a", "activity": "an"}[kind]
    match obj:
        case str():
            name = obj if obj.isidentifier() else "…"
            return f"{obj!r:.60} is a str, not {article} {kind}: pass the function itself, {listed}=[{name}]"
        case ModuleType():
            return f"{obj.__name__} is a module: pass it as modules=[{obj.__name__.rpartition('.')[2]}], or pass its {listed}"
        case None:
            return f"None is not {article} {kind}: pass the decorated function itself (does one of its decorators return None?)"
    if activity_definition(obj) is not None:
        return f"{place(obj)} is an activity: it belongs in activities=[…]; a workflow is decorated with @workflow.defn"
    if workflow_definition(obj) is not None:
        return f"{place(obj)} is a workflow: it belongs in workflows=[…]; an activity is decorated with @activity.defn"
    if not callable(obj) and type(obj).__module__ == "builtins":
        return f"{place(obj)} is not {article} {kind}: pass the decorated function itself, not the result of calling it"
    if kind == "workflow":
        return f"{place(obj)} is not decorated with @workflow.defn"
    return f"{place(obj)} is neither decorated with @activity.defn nor an object with such methods"


def _sequence(value: Any, option: str) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, (list, tuple, set, frozenset)):
        single = "" if isinstance(value, (str, dict)) else f": {option}=[{getattr(value, '__name__', '…')}]"
        raise DefinitionError(f"{option} must be a list, not {type(value).__name__}{single}")
    return list(value)


def _import_root(module: str | ModuleType) -> ModuleType:
    if isinstance(module, ModuleType):
        return module
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise DefinitionError(f"modules=[…]: module {module!r} was not found") from error
        raise


def _activity_methods(cls: type) -> Iterator[str]:
    for name in dir(cls):
        if isinstance(inspect.getattr_static(cls, name, None), Activity):
            yield name


def _provided(obj: object) -> Sequence[Activity[..., Any]] | None:
    """Return the activities that an object provides, as bridges to agents do. Return None for all other
    objects.

    Only the object's class is examined, because proxies of web frameworks seem to have every attribute.
    """
    provide = getattr(type(obj), "__hourglass_activities__", None)
    return None if provide is None else provide(obj)


def _submodules(package: ModuleType) -> Iterator[str]:
    path = getattr(package, "__path__", None)
    if path is None:
        return
    for info in pkgutil.iter_modules(path, f"{package.__name__}."):
        if info.name.rpartition(".")[2].startswith("__"):
            continue  # __main__ would run the program
        yield info.name
        # `_import_all` has imported the module when this generator continues.
        inner = sys.modules.get(info.name) if info.ispkg else None
        if inner is not None:
            yield from _submodules(inner)


def _submodule(package: ModuleType, segment: str) -> ModuleType | None:
    path = getattr(package, "__path__", None)
    name = f"{package.__name__}.{segment}"
    if path is None or PathFinder.find_spec(name, path) is None:
        return None
    return importlib.import_module(name)
