"""A single operation on many workflows: all that match a filter, or a list. No function here waits.

All runs are listed before the first of them changes, so that the changes do not affect the list.
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
"""The maximum number of workflows that are handled concurrently."""

Progress: TypeAlias = Callable[[int, int], object]
"""A function that is called after each slice, with the number of workflows handled so far and the total."""


@dataclass
class BulkResult:
    """The result of an operation on many workflows: the numbers of workflows found, handled successfully, and already
    closed, and the errors of all others.
    """

    found: int = 0
    done: int = 0
    already_closed: int = 0
    errors: dict[str, HourglassError] = field(default_factory=dict)

    def add(self, outcomes: list[tuple[Reference, HourglassError | None]]) -> None:
        """Add the outcomes of one slice of workflows to the result."""
        for reference, error in outcomes:
            if error is None:
                self.done += 1
            elif isinstance(error, WorkflowNotFoundError):
                self.already_closed += 1
            else:
                self.errors[reference.workflow_id] = error

    @property
    def handled(self) -> int:
        """The number of workflows handled so far."""
        return self.done + self.already_closed + len(self.errors)


Act: TypeAlias = Callable[[Reference], ClientOperation[Any]]


def slices(references: Sequence[Reference]) -> list[Sequence[Reference]]:
    """Return the runs split into slices. The runs of a slice are handled concurrently."""
    return [references[begin : begin + AT_ONCE] for begin in range(0, len(references), AT_ONCE)]


def act_on(
    references: Sequence[Reference], act: Act
) -> ClientOperation[list[tuple[Reference, HourglassError | None]]]:
    """Run the operation on some runs concurrently. Return the outcome for each run."""
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


def open_only(query: str) -> str:
    """Return a filter for the open runs among the runs that a filter matches."""
    return f"({query}) AND ExecutionStatus = 'Running'" if query.strip() else "ExecutionStatus = 'Running'"


def pinned(workflow_id: str, run_id: str) -> Reference:
    """Return a reference to a listed run, with its run id."""
    return Reference(workflow_id, run_id, pinned=True)
