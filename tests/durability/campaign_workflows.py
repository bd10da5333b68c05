"""The workflows of a campaign, which leave traces outside Hourglass so that each guarantee can be checked.

A `Trip` uses everything that can be interrupted: activities of every kind, two timers, a new run, two children, messages. A
`Ledger` lives as long as the campaign, receives messages of all clients, and continues as new repeatedly. A `nap` is a timer
between two readings of a clock that no fault moves. Activities and their notes are those of `work`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hourglass import activity, workflow
from hourglass.errors import ActivityError

from . import work

MESSAGES_A_RUN = 25
"""A ledger continues as new after this number of messages, by default."""


@activity.defn(retry_policy=work._SOON)
def clocked(number: int) -> str:
    """Record its start and end by the machine's monotonic clock."""
    work.note("begun")
    return work.executed()


@dataclass
class Plan:
    """The plan of a trip; the second run also receives the results of the first."""

    number: int
    nap: float
    second: bool = False
    heard: list[list[str | int]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    finished: bool = False


@dataclass
class Receipt:
    """The result of a trip: its messages in order of receipt, and the results of its activities."""

    number: int
    heard: list[list[str | int]]
    tokens: list[str]


@workflow.defn
def leg(number: int) -> str:
    """A child of a trip."""
    return work.reserve(number)


@workflow.defn
class Trip:
    """Two runs, eight activities, two children; ends on a signal."""

    def __init__(self) -> None:
        self.heard: list[list[str | int]] = []
        self.finished = False
        self.earlier: list[list[str | int]] = []

    @workflow.run
    def run(self, plan: Plan) -> Receipt:
        self.earlier = plan.heard
        self.finished = self.finished or plan.finished
        if not plan.second:
            tokens = [work.reserve(plan.number), work.charge(plan.number)]
            workflow.sleep(plan.nap)
            workflow.wait_condition(
                workflow.all_handlers_finished
            )  # a run takes its updates along into its end
            workflow.continue_as_new(Plan(plan.number, plan.nap, True, self.heard, tokens, self.finished))
        legs = [
            leg.options(id=f"{workflow.info().workflow_id}-leg-{number}").start(number) for number in range(2)
        ]
        parcel, thanks = work.pack.start(plan.number), work.thank.start(plan.number)
        tokens = [*plan.tokens, *workflow.gather(parcel, thanks), self._paid(plan.number)]
        workflow.sleep(plan.nap)
        tokens += workflow.gather(*legs)
        workflow.wait_condition(lambda: self.finished and workflow.all_handlers_finished())
        return Receipt(plan.number, self.earlier + self.heard, tokens)

    def _paid(self, number: int) -> str:
        try:
            return work.pay(number)
        except ActivityError:
            return "lost"

    @workflow.signal
    def tell(self, sender: str, number: int) -> None:
        self.heard.append([sender, number])

    @workflow.signal
    def finish(self) -> None:
        self.finished = True

    @workflow.update
    def ask(self, sender: str, number: int) -> str:
        """Return the token of an activity; a second execution would have another token."""
        return work.reserve(number)

    @workflow.query
    def all_heard(self) -> list[list[str | int]]:
        return self.earlier + self.heard


@workflow.defn
class Ledger:
    """Counts messages; each answer is the position of the message."""

    def __init__(self) -> None:
        self.count = 0
        self.here = 0

    @workflow.run
    def run(self, before: int, messages: int = MESSAGES_A_RUN) -> None:
        self.count += before
        workflow.wait_condition(lambda: self.here >= messages)
        workflow.continue_as_new(self.count, messages)

    def _one_more(self) -> int:
        self.count += 1
        self.here += 1
        return self.count

    @workflow.signal
    def tell(self, sender: str, number: int) -> None:
        self._one_more()

    @workflow.update
    def ask(self, sender: str, number: int) -> int:
        return self._one_more()

    @workflow.query
    def total(self) -> int:
        return self.count


@workflow.defn
def nap(number: int, seconds: float) -> list[str]:
    """A timer between two readings of the clock."""
    before = clocked(number)
    workflow.sleep(seconds)
    return [before, clocked(number)]


WORKFLOWS = [Trip, leg, Ledger, nap]
ACTIVITIES = [*work.ACTIVITIES, clocked]
