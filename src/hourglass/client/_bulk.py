"""One thing done to many workflows: those that a filter finds, or those that are named. Nothing here waits itself.

The runs are found first and acted on afterwards, so that what is done to them does not change what is found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hourglass.client._operations import Reference
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.errors import HourglassError, WorkflowNotFoundError

AT_ONCE = 20
"""How many workflows are acted on at the same time."""

Progress: TypeAlias = Callable[[int, int], object]
"""Called after each slice with how many are done and how many there are."""


@dataclass
class BulkResult:
    """What came of it: how many were found and done, how many had closed meanwhile, which refused, and why."""

    found: int = 0
    done: int = 0
    gone: int = 0
    errors: dict[str, HourglassError] = field(default_factory=dict)

    def add(self, outcomes: list[tuple[Reference, HourglassError | None]]) -> None:
        """Count what came of a slice."""
        for reference, error in outcomes:
            if error is None:
                self.done += 1
            elif isinstance(error, WorkflowNotFoundError):
                self.gone += 1
            else:
                self.errors[reference.workflow_id] = error

    @property
    def handled(self) -> int:
        """How many have been dealt with so far."""
        return self.done + self.gone + len(self.errors)


Act: TypeAlias = Callable[[Reference], ClientOperation[Any]]


def slices(references: Sequence[Reference]) -> list[Sequence[Reference]]:
    """The runs in portions that are acted on together."""
    return [references[begin : begin + AT_ONCE] for begin in range(0, len(references), AT_ONCE)]


def act_on(
    references: Sequence[Reference], act: Act
) -> ClientOperation[list[tuple[Reference, HourglassError | None]]]:
    """Do it to some runs at the same time; gives what came of each."""
    operations = [act(reference) for reference in references]

    async def ask(session: ClientSession) -> list[tuple[Reference, HourglassError | None]]:
        async def one(
            reference: Reference, operation: ClientOperation[Any]
        ) -> tuple[Reference, HourglassError | None]:
            try:
                await operation.ask(session)
            except HourglassError as error:
                return reference, error
            return reference, None

        return list(await asyncio.gather(*map(one, references, operations)))

    return ClientOperation(ask, list)


def open_ones(query: str) -> str:
    """The filter that finds those of a filter's runs that are open."""
    return f"({query}) AND ExecutionStatus = 'Running'" if query.strip() else "ExecutionStatus = 'Running'"


def pinned(workflow_id: str, run_id: str) -> Reference:
    """A run that was found."""
    return Reference(workflow_id, run_id, pinned=True)
