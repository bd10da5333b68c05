"""From a type name on the wire to a decorated object: by the worker's lists, by what its modules hold, by a dotted
path.

A name from the wire is data of a stranger's. It never imports a module outside the roots that the worker was given,
never passes a private segment, and never yields anything that is not decorated. First of all come the workflows that
Hourglass itself brings along, from the table that the resolver was given.

Modules under the roots are imported when a name is first not found, in the thread that asks: importing runs
user code, so the control loop must ask `known_activity` only. Private modules are not imported to look into them;
what is decorated in one counts where a public module, or the author, has imported it.
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
"""Stands for the dynamic definition in the tables; no type is called so."""

_LONGEST_NAME = 500
_LISTED = 20


@dataclass
class _Table(Generic[D]):
    """The definitions of one kind, by type name, and where each stands."""

    kind: str
    of: Callable[[object], D | None]
    entries: dict[str, D] = field(default_factory=dict)
    owners: dict[str, object] = field(default_factory=dict)
    conflicts: dict[str, str] = field(default_factory=dict)
    dynamic: D | None = None
    """The definition that takes the types that have none of their own."""

    def find(self, obj: object) -> D | None:
        """The definition an object carries. Proxies of web frameworks raise whatever they like when they are
        asked.
        """
        try:
            return self.of(obj)
        except Exception:
            return None

    def add_late(self, obj: object) -> None:
        """Take up what a search has found. A conflict cannot be raised to the author here: it is kept, and raised
        when the name is asked for.
        """
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
        known = self.owners.get(name)
        if known is not None and not _same(known, obj):
            raise DefinitionError(
                f"two {self.kind} types are called {name!r}: {place(known)} and {place(obj)}. "
                f"Give one of them another name: @{self.kind}.defn(name=…)"
            )
        self.entries.setdefault(name, definition)
        self.owners.setdefault(name, obj)

    def _add_dynamic(self, obj: object, definition: D) -> None:
        known = self.owners.setdefault(DYNAMIC, obj)
        if not _same(known, obj):
            raise DefinitionError(
                f"two dynamic {'workflows' if self.kind == 'workflow' else 'activities'}: {place(known)} and "
                f"{place(obj)}. A worker has at most one, which takes whatever no other does"
            )
        self.dynamic = definition


class Resolver:
    """What a worker knows by name. May be asked in any thread."""

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
        """The functions of steps that have no result yet, by run id and activity id: `RunSettings.steps`."""
        self._instances_wanted: dict[str, str] = {}
        self._walked = False
        self._unimportable: list[str] = []
        self._not_looked_into: list[str] = []
        for each in _sequence(workflows, "workflows"):
            self._add_workflow(each)
        for each in _sequence(activities, "activities"):
            self._add_activity(each)
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
        """Whether it can know any workflow."""
        return bool(self._workflows.entries or self._workflows.dynamic or self._roots)

    @property
    def has_activities(self) -> bool:
        """Whether it can know any activity."""
        return bool(self._activities.entries or self._activities.dynamic or self._roots)

    @property
    def workflow_types(self) -> frozenset[str] | None:
        """The types of all workflows that it knows; None if it may know others."""
        known = self._all_of(self._workflows)
        return None if known is None else known | frozenset(self._built_in)

    @property
    def activity_types(self) -> frozenset[str] | None:
        """The same for activities."""
        return self._all_of(self._activities)

    def _all_of(self, table: _Table[D]) -> frozenset[str] | None:
        unseen = not self._walked and any(hasattr(root, "__path__") for root in self._roots.values())
        return None if table.dynamic is not None or unseen else frozenset(table.entries)

    def known_activity(self, name: str) -> ActivityDefinition | None:
        """An activity that is known already; imports nothing."""
        known = self._activities.entries.get(name)
        return self._activities.dynamic if known is None and not self._roots else known

    def check_local_activity(self, name: str) -> None:
        """Raise `UsageError` if this worker cannot execute a local activity of this type."""
        try:
            self.activity(name)
        except UnknownTypeError as error:
            raise UsageError(
                f"a local activity runs on the worker that has its workflow, but {error}"
            ) from None

    def workflow(self, name: str) -> WorkflowDefinition:
        """The workflow of this type; may import modules under the roots."""
        if name in self._built_in:
            return self._built_in[name]()
        definition = self._resolve(self._workflows, name)
        self._check_behavior(definition)
        return definition

    def activity(self, name: str) -> ActivityDefinition:
        """The activity of this type; may import modules under the roots."""
        return self._resolve(self._activities, name)

    def _resolve(self, table: _Table[D], name: str) -> D:
        known = table.entries.get(name)
        if known is not None:
            return known
        if len(name) <= _LONGEST_NAME and self._roots:
            with self._lock:
                found = self._by_path(name)
                definition = table.find(found) if found is not None else None
                wants_more = getattr(definition, "needs_instance", False)
                if definition is not None and not wants_more and not definition.dynamic:
                    return definition
                self._walk()
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
                f"workflow {definition.name} ({definition.where}) does not say what becomes of its runs when another "
                "version of the worker is current: @workflow.defn(versioning_behavior=VersioningBehavior.PINNED) or "
                "AUTO_UPGRADE, or a default_versioning_behavior for the worker"
            )

    # --- explicit lists ----------------------------------------------------------------------------------------------

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
                f"activities=[…]: {definition.place} is a method and needs an instance: give {owner}(…) for all activities of "
                f"the class, or {owner}(…).{definition.fn.__name__} for this one"
            )
        else:
            self._activities.add(obj, definition)

    def _add_instance(self, obj: object) -> None:
        brought = _brought(obj)
        if brought is not None:
            for each in brought:
                self._activities.add(each, each.__hourglass_activity__)
            return
        methods = [] if isinstance(obj, (type, ModuleType)) else list(_activity_methods(type(obj)))
        if isinstance(obj, type) and any(_activity_methods(obj)):
            raise DefinitionError(
                f"activities=[…]: {place(obj)} is a class: give an object of it, {obj.__name__}(…)"
            )
        if not methods:
            raise DefinitionError(f"activities=[…]: {_misfit(obj, 'activity')}")
        for name in methods:
            bound = getattr(obj, name)
            self._activities.add(bound, bound.__hourglass_activity__)

    # --- modules -----------------------------------------------------------------------------------------------------

    def _scan(self, module: ModuleType) -> None:
        """Take up what is decorated in a module. What it merely imported from outside the roots is not its
        own.
        """
        for obj in list(vars(module).values()):
            for each in _brought(obj) or ():
                self._activities.add_late(each)
            if not self._is_ours(_home(obj)):
                continue
            self._workflows.add_late(obj)
            self._activities.add_late(obj)
            if isinstance(obj, type):
                for name in _activity_methods(obj):
                    wanted = getattr(obj, name).name
                    self._instances_wanted.setdefault(wanted, f"{obj.__module__}.{obj.__qualname__}")

    def _walk(self) -> None:
        """Import everything under the roots, once."""
        if self._walked:
            return
        self._walked = True
        for root in list(self._roots.values()):
            for name in _submodules(root):
                if name.rpartition(".")[2].startswith("_"):
                    private = sys.modules.get(name)
                    if private is None:
                        self._not_looked_into.append(name)
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
        """Follow a dotted name down from a root: packages, modules, classes, and at the end something
        decorated.
        """
        segments = name.split(".")
        if not all(each.isidentifier() and not each.startswith("_") for each in segments):
            return None
        for length in range(len(segments) - 1, 0, -1):
            root = self._roots.get(".".join(segments[:length]))
            if root is not None:
                return self._descend(root, segments[length:])
        return None

    def _descend(self, found: object, segments: list[str]) -> object | None:
        for segment in segments:
            if isinstance(found, ModuleType):
                following = vars(found).get(segment)
                if following is None:
                    following = _submodule(found, segment)
            elif isinstance(found, type):
                following = vars(found).get(segment)
            else:
                return None
            if not self._is_ours(
                following.__name__ if isinstance(following, ModuleType) else _home(following)
            ):
                return None
            found = following
        return found

    def _is_ours(self, module: object) -> bool:
        return isinstance(module, str) and any(
            module == root or module.startswith(f"{root}.") for root in self._roots
        )

    # --- messages ----------------------------------------------------------------------------------------------------

    def _unknown(self, table: _Table[D], name: str) -> str:
        known = sorted(table.entries)
        kinds = "workflows" if table.kind == "workflow" else "activities"
        shown = f"{name[:100]!r}" + ("…" if len(name) > 100 else "")
        parts = [f"this worker knows no {table.kind} type {shown}"]
        near = difflib.get_close_matches(name[:100], known, n=3)
        if near:
            parts.append(f"did you mean {' or '.join(map(repr, near))}?")
        more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
        parts.append(f"it knows {', '.join(known[:_LISTED]) + more if known else f'no {kinds} at all'}")
        if table.kind == "activity" and name in self._instances_wanted:
            owner = self._instances_wanted[name]
            parts.append(
                f"it is a method of {owner}: give the worker an instance, activities=[{owner.rpartition('.')[2]}(…)]"
            )
        else:
            parts.append(f"give it to the worker: {kinds}=[…], or modules=[…] with the package that holds it")
        if self._unimportable:
            parts.append(f"these modules could not be imported: {', '.join(self._unimportable[:_LISTED])}")
        if self._not_looked_into:
            names = ", ".join(self._not_looked_into[:_LISTED])
            parts.append(f"private modules are not imported to look into them: {names}")
        return "; ".join(parts)


def place(obj: object) -> str:
    """Where an object stands, for messages: module, qualified name, file and line where they are known."""
    target: Any = inspect.unwrap(obj) if callable(obj) else obj
    name = getattr(target, "__qualname__", None)
    if name is None:
        return f"an object of type {type(obj).__module__}.{type(obj).__qualname__}"
    code = getattr(target, "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{getattr(target, '__module__', '?')}.{name}{where}"


def _home(obj: object) -> object:
    """The module an object says it is from; None if it will not say."""
    try:
        return getattr(obj, "__module__", None)
    except Exception:
        return None


def _same(one: object, other: object) -> bool:
    if isinstance(one, Activity) and isinstance(other, Activity):
        return bool(one.fn == other.fn)
    return one is other or workflow_definition(one) is workflow_definition(other)


def _misfit(obj: object, wanted: str) -> str:
    """What a thing is that is no workflow, or no activity, and what to write instead."""
    listed = {"workflow": "workflows", "activity": "activities"}[wanted]
    match obj:
        case str():
            name = obj if obj.isidentifier() else "…"
            return f"the text {obj!r:.60} is no {wanted}: give the function itself, {listed}=[{name}]"
        case ModuleType():
            return f"{obj.__name__} is a module: give it as modules=[{obj.__name__.rpartition('.')[2]}], or the {listed} in it"
        case None:
            return f"None is no {wanted}: give the decorated function itself (does a decorator of yours return nothing?)"
    if activity_definition(obj) is not None:
        return f"{place(obj)} is an activity: it belongs in activities=[…]; a workflow is decorated with @workflow.defn"
    if workflow_definition(obj) is not None:
        return f"{place(obj)} is a workflow: it belongs in workflows=[…]; an activity is decorated with @activity.defn"
    if not callable(obj) and type(obj).__module__ == "builtins":
        return (
            f"{place(obj)} is no {wanted}: give the decorated function itself, not what a call of it returns"
        )
    if wanted == "workflow":
        return f"{place(obj)} is not decorated with @workflow.defn"
    return f"{place(obj)} is neither decorated with @activity.defn nor an object with such methods"


def _sequence(value: Any, what: str) -> Sequence[Any]:
    if isinstance(value, str) or not isinstance(value, (list, tuple, set, frozenset)):
        single = "" if isinstance(value, (str, dict)) else f": {what}=[{getattr(value, '__name__', '…')}]"
        raise DefinitionError(f"{what} must be a list, not {type(value).__name__}{single}")
    return list(value)


def _import_root(module: str | ModuleType) -> ModuleType:
    if isinstance(module, ModuleType):
        return module
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise DefinitionError(f"modules=[…]: there is no module {module!r} to import") from error
        raise


def _activity_methods(cls: type) -> Iterator[str]:
    for name in dir(cls):
        if isinstance(inspect.getattr_static(cls, name, None), Activity):
            yield name


def _brought(obj: object) -> Sequence[Activity[..., Any]] | None:
    """The activities of an object that brings its own, as bridges to agents do; None for all others. Only its class
    is asked: proxies of web frameworks have every attribute.
    """
    bring = getattr(type(obj), "__hourglass_activities__", None)
    return None if bring is None else bring(obj)


def _submodules(package: ModuleType) -> Iterator[str]:
    path = getattr(package, "__path__", None)
    if path is None:
        return
    for each in pkgutil.iter_modules(path, f"{package.__name__}."):
        if each.name.rpartition(".")[2].startswith("__"):
            continue  # __main__ would run the program
        yield each.name
        # Imported by `_walk` as soon as its name was yielded.
        inner = sys.modules.get(each.name) if each.ispkg else None
        if inner is not None:
            yield from _submodules(inner)


def _submodule(package: ModuleType, segment: str) -> ModuleType | None:
    path = getattr(package, "__path__", None)
    name = f"{package.__name__}.{segment}"
    if path is None or PathFinder.find_spec(name, path) is None:
        return None
    return importlib.import_module(name)
