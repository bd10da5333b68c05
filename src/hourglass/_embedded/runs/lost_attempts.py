"""Attempts of workers that were connected to the previous owner of the file.

After a takeover, the attempts of living workers are reserved (`KeptAttempts`) until each worker has claimed its own
attempts. All other attempts are lost. The loss is logged here if the worker is gone and cannot log it.

Must not know: handles, stores, how runs change.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable

from hourglass._embedded.runs.run import AttemptToken
from hourglass._embedded.transitions.run import Change, Run
from hourglass._embedded.transitions.transitions import recover

logger = logging.getLogger("hourglass.embedded")

LOST_WITH_PROCESS = "was lost, because the process of its worker ended"

_REMEMBERED = 1000
_logged: OrderedDict[tuple[str, int, int], None] = OrderedDict()
"""The attempts whose loss this process has already logged. While a file cannot be written, every check finds the same
lost attempts.
"""


class KeptAttempts:
    """The attempts that were in progress when the previous owner of the file ended, if their workers are still alive.

    `took_over` is true if the previous owner has just ended and this process continues its work. `living` contains
    the identities of the living workers. It is None if the workers are unknown, for example because a client has
    opened the file for a moment. All attempts then stay as they are, and the next owner decides.
    """

    def __init__(self, *, took_over: bool = False, living: frozenset[str] | None = None) -> None:
        self._took_over = took_over
        self._living = living
        self._kept: dict[AttemptToken, str] = {}

    def recover(self, run: Run, new_run_id: str, now: int) -> Change:
        """Return the change that recovers a run after the process that served it has ended. Reserve the attempts of
        living workers.
        """
        living = self._living
        if living is None:
            return recover(run, new_run_id, now, keep_attempts=True)
        if living:
            self._kept.update(
                (AttemptToken(run.run_id, activity.scheduled_event_id, activity.attempt), activity.identity)
                for activity in run.activities.values()
                if activity.started_ns and not activity.deferred and activity.identity in living
            )
        return recover(run, new_run_id, now, at_once=self._took_over, living=living)

    def claim(self, token: AttemptToken) -> None:
        """Record that a worker has claimed this attempt."""
        self._kept.pop(token, None)

    def release_unclaimed(self, of: frozenset[str] | None) -> list[tuple[AttemptToken, str]]:
        """Stop reserving attempts for workers with these identities, or for all workers (None). Return the unclaimed
        attempts, each with its worker's identity.
        """
        living = self._living or frozenset()
        of = living if of is None else of
        self._living = living - of
        unclaimed = [(token, identity) for token, identity in self._kept.items() if identity in of]
        for token, _ in unclaimed:
            del self._kept[token]
        return unclaimed


def log_lost(before: Run, after: Run, ids: Iterable[int], what: str) -> None:
    """Log the attempts of these activities that a change has ended. Their workers are gone and cannot log them."""
    if not after.is_open:
        return  # the run has closed, and its attempts ended with it
    for event_id in ids:
        activity, now = before.activities.get(event_id), after.activities.get(event_id)
        if activity is None or (now is not None and now.attempt == activity.attempt):
            continue
        attempt = (before.run_id, event_id, activity.attempt)
        if attempt in _logged:
            continue
        _logged[attempt] = None
        if len(_logged) > _REMEMBERED:
            _logged.popitem(last=False)
        scheduled, workflow_id = activity.scheduled, before.started.workflow_id
        logger.log(
            logging.ERROR if now is None else logging.WARNING,
            "activity %s of workflow %s (id %s, attempt %d) %s%s",
            scheduled.activity_type,
            workflow_id,
            scheduled.activity_id,
            activity.attempt,
            what,
            "; it will not be retried" if now is None else "; it will be retried",
            extra={
                "workflow_id": workflow_id,
                "run_id": before.run_id,
                "workflow_type": before.started.workflow_type,
                "task_queue": activity.spec.task_queue,
                "activity_type": scheduled.activity_type,
                "activity_id": scheduled.activity_id,
                "attempt": activity.attempt,
            },
        )
