"""Limits that hold for a whole target, not for one process: how many at a time, how often, how many calls are one run.

In a workflow:

    with limits.slot("customer-42", limit=2):                       # at most two at a time
        charge(order)
    limits.throttle("mail-api", 10, per=timedelta(seconds=1))       # at most ten a second

From outside:

    limits.debounce(client, reindex, page, key="page-7", wait=5)    # a burst of calls is one run, with the last arguments
    limits.once(client, pay, invoice, key="invoice-7")              # the same key is the same run

Nothing needs to be set up: a key comes into being when it is first used. The embedded engine keeps it itself; on a server
there is a small workflow behind each key, which every worker serves by itself. So the limits survive crashes and deploys as
every workflow does, and hold for all that use the same target, in any process. The rules of both are
`hourglass._contract.limits`.

    _keepers    how a run and what keeps a limit reach each other
    _slots      `slot`, and the workflow that keeps the slots of one key
    _throttles  `throttle`, and the workflow that gives out the turns of one key
    _debouncer  `debounce`, and the workflow that collects the calls of one key
    _once       `once`
"""

from __future__ import annotations

from hourglass.limits._debouncer import AsyncDebounced, Debounced, DebounceOptions, debounce
from hourglass.limits._once import OnceOptions, once
from hourglass.limits._slots import slot
from hourglass.limits._throttles import throttle

__all__ = [
    "AsyncDebounced",
    "DebounceOptions",
    "Debounced",
    "OnceOptions",
    "debounce",
    "once",
    "slot",
    "throttle",
]
