"""How a run hears from the workflows that keep limits: one signal for all its tickets.

Must not know: what the answers mean. Invariants: the handler is there before the first question leaves; an answer that
nobody waits for any more is dropped, and one that is repeated changes nothing.
"""

from __future__ import annotations

from hourglass import workflow
from hourglass._engine.context import require_run
from hourglass._engine.state import PathStep

ANSWER = "hourglass.limits.answer"


class Desk:
    """What one run has asked for and heard."""

    def __init__(self) -> None:
        self.answers: dict[str, int | None] = {}
        self.inside: set[tuple[tuple[PathStep, ...], str]] = set()
        self._wanted: set[str] = set()

    def draw(self) -> str:
        """A new ticket. From the run's own randomness, so that it is the same in a run that was reset."""
        ticket = str(workflow.uuid4())
        self._wanted.add(ticket)
        return ticket

    def hear(self, ticket: str, value: int | None) -> None:
        """An answer has come."""
        if ticket in self._wanted:
            self.answers.setdefault(ticket, value)

    def forget(self, ticket: str) -> None:
        """Nobody waits for this ticket any more."""
        self._wanted.discard(ticket)
        self.answers.pop(ticket, None)


def desk_of_run(what: str) -> Desk:
    """The desk of the current run; set up when it is first asked for."""
    known = require_run(what).handlers.known.get(("signal", ANSWER))
    if known is not None:
        found: Desk = vars(known[0].fn)["desk"]
        return found
    made = Desk()

    def hear(ticket: str, value: int | None = None) -> None:
        """Hear from a workflow that keeps a limit."""
        made.hear(ticket, value)

    vars(hear)["desk"] = made
    workflow.signal(name=ANSWER)(hear)
    return made
