"""Who waits for the end of workflows, as the ledger sees it: the seam between runs and schedules.

Must not know: schedules. An end is the end of a whole chain: retries, continuations and resets go on under the same id.
"""

from __future__ import annotations

from typing import Protocol

from hourglass._embedded.running.record import Record


class Awaiting(Protocol):
    """Those who wait."""

    def awaits(self, workflow_id: str) -> bool:
        """Whether somebody waits for the end of this workflow."""
        ...

    def ended(self, record: Record) -> None:
        """A run of a workflow that somebody waits for has closed. What comes of it is part of the same change."""
        ...

    def realign(self) -> None:
        """Time has jumped."""
        ...


class Nobody:
    """Nobody waits."""

    def awaits(self, workflow_id: str) -> bool:
        """No."""
        return False

    def ended(self, record: Record) -> None:
        """Never called."""

    def realign(self) -> None:
        """Nothing to do."""
