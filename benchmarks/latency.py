"""Part `latency`: how long a workflow of one step takes from its start to its result, when so many are started a second.

They are started by the clock, whether or not those before are done (an open loop): what waits in a queue counts. A subject
that has not answered nearly all of them some time after the last start cannot keep up with the rate; it is said what share
it has answered.
"""

from __future__ import annotations

from functools import partial

from .earlier import with_earlier
from .embedded import SUBJECTS, child, peers
from .report import Row, interleave

_RATES = (20, 100, 400)
_ENOUGH = 0.95
"""Who has answered a smaller share cannot keep up, and is not asked for more."""


def measure(*, quick: bool) -> list[Row]:
    """Each rate in turn, all subjects that kept up with the one before."""
    seconds = 2.0 if quick else 8.0
    rows: list[Row] = []
    slow: set[str] = set()
    with peers() as addresses:
        for rate in _RATES[:2] if quick else _RATES:
            subjects = {
                shown: partial(child, shown, name, 1, seconds, addresses, 1, float(rate))
                for shown, name in with_earlier(*SUBJECTS).items()
                if shown not in slow
            }
            found = interleave(subjects, rounds=1, part="latency", case=f"{rate} a second")
            slow |= {row.subject for row in found if row.unit == "answered" and row.value < _ENOUGH}
            rows += found
    return rows
