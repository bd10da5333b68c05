"""Limits that apply to a whole target, across processes: concurrency, rates, bursts of calls, and work that is done only
once.

In a workflow:

    with limits.slot("customer-42", limit=2):                       # at most two at a time
        charge(order)
    limits.throttle("mail-api", 10, per=timedelta(seconds=1))       # at most ten a second

From outside:

    limits.debounce(client, reindex, page, key="page-7", wait=5)    # a burst of calls is one run, with the last arguments
    limits.once(client, pay, invoice, key="invoice-7")              # the same key is the same run

No setup is needed: a key exists from its first use. The embedded engine manages limits itself. On a server, a small workflow
manages each key, and every worker serves this workflow. So limits survive crashes and deployments like any workflow, and
apply to all processes that use the target. Messages and rules are the same in both cases; see `hourglass._contract.limits`.

_keepers    communication between a run and the keeper of a limit
_slots      `slot`, and the workflow that keeps the slots of one key
_throttles  `throttle`, and the workflow that grants the turns of one key
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
