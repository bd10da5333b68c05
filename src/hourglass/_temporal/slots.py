"""An adapter through which Core calls a custom slot supplier.

Core awaits `reserve_slot` on the loop that created the worker: the control loop, where user code must not run.
The call is therefore forwarded to a separate loop in its own thread. Core makes the other calls on its own
threads. Exceptions of the supplier are logged and never reach Core, except those of `reserve_slot`, which Core
retries.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import sleep
from collections.abc import Callable
from typing import Any

from hourglass._contract.tuning import CustomSlotSupplier
from hourglass._loops import submit

logger = logging.getLogger("hourglass.worker")

_RETRY_PAUSE = 1.0  # seconds to wait before re-raising an exception, because Core retries immediately


class SuppliedSlots:
    """The supplier object that Core calls. Core passes its own context objects, which have the fields of the
    public context protocols.
    """

    def __init__(self, supplier: CustomSlotSupplier) -> None:
        self._supplier = supplier

    async def reserve_slot(self, ctx: Any, reserve_cb: Callable[[Any], None]) -> Any:
        """Wait for a slot. Core cancels the future passed to `reserve_cb` when it no longer needs the slot."""
        reservation = asyncio.wrap_future(submit(self._supplier.reserve_slot(ctx), "slots"))
        reserve_cb(reservation)
        try:
            return await reservation
        except Exception:
            self._log("reserve_slot")
            await sleep(_RETRY_PAUSE)
            raise

    def try_reserve_slot(self, ctx: Any) -> Any:
        """Return a slot if one is free, or else None."""
        return self._call("try_reserve_slot", ctx)

    def mark_slot_used(self, ctx: Any) -> None:
        """Forward Core's notice that a slot is in use."""
        self._call("mark_slot_used", ctx)

    def release_slot(self, ctx: Any) -> None:
        """Forward Core's notice that a slot was released."""
        self._call("release_slot", ctx)

    def _call(self, method: str, ctx: Any) -> Any:
        try:
            return getattr(self._supplier, method)(ctx)
        except Exception:
            self._log(method)
            return None

    def _log(self, method: str) -> None:
        logger.warning(
            "the slot supplier %s raised an exception in %s",
            type(self._supplier).__qualname__,
            method,
            exc_info=True,
        )
