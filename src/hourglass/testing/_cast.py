"""The registry of an environment: workflows and activities by name, fakes first.

Nothing needs to be listed that is called as a decorated object: a workflow is known once it was started or stands
where a known one can see it, an activity once workflow code has called it. Only what is called by name must be
listed, found in a module, or faked.

Must not know: engines, time, threads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from hourglass._built_in import BUILT_IN
from hourglass._engine.definition import WorkflowDefinition, workflow_definition
from hourglass._runtime.resolver import Resolver
from hourglass.activity import Activity, ActivityDefinition, activity_definition
from hourglass.errors import UnknownTypeError, UsageError
from hourglass.testing._explore.possible import Mishaps
from hourglass.testing._fakes import Fake, shown


@dataclass
class Cast:
    """The workflows, activities and fakes of one environment."""

    workflows: Sequence[object] = ()
    activities: Sequence[object] = ()
    modules: Sequence[str | ModuleType] = ()
    real_activities: bool = True
    fakes: dict[str, Fake] = field(default_factory=dict)
    mishaps: dict[str, Mishaps] = field(default_factory=dict)
    _resolver: Resolver | None = None
    _started: dict[str, WorkflowDefinition] = field(default_factory=dict)
    _called: dict[str, Activity[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self._resolver is None and (self.workflows or self.activities or self.modules):
            self._resolver = Resolver(
                workflows=self.workflows, activities=self.activities, modules=self.modules
            )

    def copy(self) -> Cast:
        """The same, to be changed apart."""
        return replace(
            self,
            fakes=dict(self.fakes),
            mishaps=dict(self.mishaps),
            _started=dict(self._started),
            _called=dict(self._called),
        )

    # --- workflows ----------------------------------------------------------------------------------------

    def meet_workflow(self, workflow: object) -> None:
        """A workflow is started. What is no workflow is passed over here: the client that starts it refuses it."""
        definition = workflow_definition(workflow)
        if definition is not None:
            self._started[definition.name] = definition

    def workflow(self, name: str) -> WorkflowDefinition:
        """The workflow of this type."""
        known = self._started.get(name)
        if known is not None:
            return known
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
            for each in _in_sight(definition):
                found = _definition_of(each)
                if found is not None and found.name == name:
                    self._started[name] = found
                    return found
        if fallback is not None:
            return fallback
        raise UnknownTypeError(
            f"this environment knows no workflow type {name!r}: start it as the decorated object, or give it, "
            f"Environment(workflows=[…]) or Environment(modules=[…])"
        )

    # --- activities ---------------------------------------------------------------------------------------

    def meet_activity(self, activity: Activity[..., Any]) -> None:
        """Workflow code calls an activity."""
        self._called[activity.name] = activity

    def definition(self, activity: object) -> tuple[str, ActivityDefinition | None]:
        """The name and, where it is known, the definition of what a test names as an activity."""
        if isinstance(activity, str):
            return activity, self._known(activity)
        if isinstance(activity, Activity):
            return activity.name, activity_definition(activity)
        raise UsageError(
            f"an activity is given as a function decorated with @activity.defn or by its name, not {activity!r:.80}"
        )

    def activity(self, name: str) -> Fake:
        """What happens for an activity of this type."""
        fake = self.fakes.get(name)
        if fake is not None:
            return fake
        definition = self._known(name)
        if definition is None:
            raise UnknownTypeError(
                f"this environment knows no activity type {name!r}, which was called by name: give it, "
                f"Environment(activities=[…]), or fake it, env.fake({name!r}, returns=…)"
            )
        if not self.real_activities:
            raise UsageError(
                f"activity {name} is not faked, and this environment runs no real ones: env.fake({name}, returns=…)"
            )
        if definition.needs_instance:
            owner = definition.fn.__qualname__.rpartition(".")[0]
            raise UsageError(
                f"activity {definition.place} is a method and needs an instance: Environment(activities=[{owner}(…)]), "
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
    except Exception:  # proxies raise whatever they like when they are asked
        return None


def _in_sight(definition: WorkflowDefinition) -> Iterator[object]:
    """What the code of a workflow can name: its module's globals, and what it closes over."""
    fn: Callable[..., Any] = inspect.unwrap(definition.run)
    yield from list(getattr(fn, "__globals__", {}).values())
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # not bound yet
