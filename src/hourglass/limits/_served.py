"""The workflows behind the limits, by their type names: what every worker serves without being told."""

from __future__ import annotations

from hourglass._engine.definition import WorkflowDefinition, workflow_definition
from hourglass.errors import InternalError
from hourglass.limits._debouncer import Debouncer
from hourglass.limits._slots import SlotKeeper
from hourglass.limits._throttles import TurnKeeper


def _definition(kind: type) -> WorkflowDefinition:
    found = workflow_definition(kind)
    if found is None:
        raise InternalError(f"{kind.__name__} is no workflow")
    return found


SERVED = {found.name: found for found in map(_definition, (Debouncer, SlotKeeper, TurnKeeper))}
