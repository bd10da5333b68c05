"""The registry of an environment: its workflows and activities by name, with their fakes and faults.

Decorated objects need not be listed. A workflow is registered when it is started, or found in the module of a registered
workflow. An activity is registered when workflow code calls it. Only objects that are called by name must be listed, found
in a module, or faked.

Must not know: engines, time, threads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from hourglass._built_in import BUILT_IN
from hourglass._evaluator.definition import WorkflowDefinition, workflow_definition
from hourglass._worker.resolver import Resolver
from hourglass.activity import Activity, ActivityDefinition, activity_definition
from hourglass.errors import UnknownTypeError, UsageError
from hourglass.testing._fakes import AllowedFaults, Fake, shown


@dataclass
class EnvironmentRegistry:
    """The workflows, activities, fakes and faults of an environment."""

    workflows: Sequence[object] = ()
    activities: Sequence[object] = ()
    modules: Sequence[str | ModuleType] = ()
    real_activities: bool = True
    fakes: dict[str, Fake] = field(default_factory=dict)
    allowed_faults: dict[str, AllowedFaults] = field(default_factory=dict)
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The functions of steps that have no result yet (`RunSettings.steps`), by run id and activity id."""
    _resolver: Resolver | None = None
    _started: dict[str, WorkflowDefinition] = field(default_factory=dict)
    _called: dict[str, Activity[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self._resolver is None and (self.workflows or self.activities or self.modules):
            self._resolver = Resolver(
                workflows=self.workflows, activities=self.activities, modules=self.modules
            )

    def copy(self) -> EnvironmentRegistry:
        """Return an independent copy."""
        return replace(
            self,
            fakes=dict(self.fakes),
            allowed_faults=dict(self.allowed_faults),
            steps={},
            _started=dict(self._started),
            _called=dict(self._called),
        )

    def register_workflow(self, workflow: object) -> None:
        """Register a workflow when it is started. Ignore any other object, because the client rejects it."""
        definition = workflow_definition(workflow)
        if definition is not None:
            self._started[definition.name] = definition

    def workflow(self, name: str) -> WorkflowDefinition:
        """Return the workflow of this type."""
        started = self._started.get(name)
        if started is not None:
            return started
        if name in BUILT_IN:
            return BUILT_IN[name]()
        fallback: WorkflowDefinition | None = None
        if self._resolver is not None:
            try:
                fallback = self._resolver.workflow(name)
            except UnknownTypeError:
                pass
        if fallback is not None and not fallback.dynamic:
            return fallback
        for definition in tuple(self._started.values()):
            for value in _reachable(definition):
                candidate = _definition_of(value)
                if candidate is not None and candidate.name == name:
                    self._started[name] = candidate
                    return candidate
        if fallback is not None:
            return fallback
        raise UnknownTypeError(
            f"workflow type {name!r} is not registered with this environment: pass the decorated workflow to "
            "env.start_workflow or env.execute_workflow, or list it in Environment(workflows=[…]) or "
            "Environment(modules=[…])"
        )

    def register_activity(self, activity: Activity[..., Any]) -> None:
        """Register an activity that workflow code calls."""
        self._called[activity.name] = activity

    def definition(self, activity: object) -> tuple[str, ActivityDefinition | None]:
        """Return the name and definition of an activity that a test passes. The definition is None if it is unknown."""
        if isinstance(activity, str):
            return activity, self._known(activity)
        if isinstance(activity, Activity):
            return activity.name, activity_definition(activity)
        raise UsageError(
            f"an activity must be a function decorated with @activity.defn, or its name, not {activity!r:.80}"
        )

    def activity(self, name: str, step: ActivityDefinition | None = None) -> Fake:
        """Return the fake for an activity type or a step, or the activity itself, wrapped as a fake. Raise if neither may
        run.
        """
        fake = self.fakes.get(name)
        if fake is not None:
            return fake
        definition = self._known(name) if step is None else step
        if definition is None:
            raise UnknownTypeError(
                f"activity type {name!r}, which was called by name, is not registered with this environment: list it in "
                f"Environment(activities=[…]), or fake it with env.fake({name!r}, returns=…)"
            )
        if not self.real_activities:
            raise UsageError(
                f"activity {name} is not faked, and this environment runs no real activities: use env.fake({name}, returns=…)"
            )
        if definition.needs_instance:
            owner = definition.fn.__qualname__.rpartition(".")[0]
            raise UsageError(
                f"activity {definition.place} is a method and needs an instance: use Environment(activities=[{owner}(…)]), "
                f"or a fake, env.fake({definition.fn.__qualname__}, returns=…)"
            )
        return Fake(definition, shown(definition), real=True)

    def _known(self, name: str) -> ActivityDefinition | None:
        fallback: ActivityDefinition | None = None
        if self._resolver is not None:
            try:
                fallback = self._resolver.activity(name)
            except UnknownTypeError:
                pass
        called = self._called.get(name)
        if called is None or (fallback is not None and not fallback.dynamic):
            return fallback
        return activity_definition(called)


def _definition_of(obj: object) -> WorkflowDefinition | None:
    try:
        return workflow_definition(obj)
    except Exception:  # proxies may raise any exception
        return None


def _reachable(definition: WorkflowDefinition) -> Iterator[object]:
    """Yield the objects that a workflow's code can reference: the globals of its module, and its closure."""
    fn: Callable[..., Any] = inspect.unwrap(definition.run)
    yield from list(getattr(fn, "__globals__", {}).values())
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # not bound yet
