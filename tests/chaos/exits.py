"""Forks, several event loops, and exits with everything open: no abort, no hang. Each case is a process, judged by its exit
status.
"""

from __future__ import annotations

from . import testbed
from .exit_program import CASES
from .outcome import Outcome, Scale, Tally
from .waiting import Stuck

_LIMIT = 60.0

# In the short selection each case is run once: where it takes least, or can hurt most.
_SHORT_IN_MEMORY = frozenset({"in_activity_at_exit", "open_at_sys_exit", "activity_forks"})


def programs(seed: int, scale: Scale) -> Outcome:
    """Run every case in memory and on the server, repeatedly in the long run."""
    tally = Tally()
    for target in ("local:", testbed.server().target):
        for case in CASES:
            if scale.name == "short" and (target == "local:") is not (case in _SHORT_IN_MEMORY):
                continue
            for _ in range(scale.rounds):
                _run(case, target, tally)
    return tally.outcome()


def _run(case: str, target: str, tally: Tally) -> None:
    try:
        with testbed.Program("exit_program", case, target) as program:
            status, took = program.end(None, _LIMIT)
            program.wait_readers()
            good = status == 0 and "done" in program.lines
            tally.check(good, f"{case} on {target} ended with {status}\n{program.output()}", took)
    except Stuck as stuck:
        tally.failed(f"{case} on {target}: {stuck}")
