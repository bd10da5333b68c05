"""A slot supplier of the author's, as Core calls it.

Core awaits `reserve_slot` on the loop that made the worker, which is the control loop, where no code of the author's may run:
it is passed on to a loop of its own, in a thread of its own. The other calls come in Core's threads. Nothing that the
author's code raises reaches Core, but for `reserve_slot`: that Core repeats.
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

_PAUSE = 1.0  # after an exception: Core asks again at once


class SuppliedSlots:
    """What Core calls; the arguments are its own objects, which have the fields of our protocols."""

    def __init__(self, supplier: CustomSlotSupplier) -> None:
        self._supplier = supplier

    async def reserve_slot(self, ctx: Any, reserve_cb: Callable[[Any], None]) -> Any:
        """Wait for a slot. What `reserve_cb` is given, Core cancels where it needs the slot no longer."""
        waiting = asyncio.wrap_future(submit(self._supplier.reserve_slot(ctx), "slots"))
        reserve_cb(waiting)
        try:
            return await waiting
        except Exception:
            self._log("reserve_slot")
            await sleep(_PAUSE)
            raise

    def try_reserve_slot(self, ctx: Any) -> Any:
        """A slot, or None."""
        return self._call("try_reserve_slot", ctx)

    def mark_slot_used(self, ctx: Any) -> None:
        """A slot is used."""
        self._call("mark_slot_used", ctx)

    def release_slot(self, ctx: Any) -> None:
        """A slot is free."""
        self._call("release_slot", ctx)

    def _call(self, method: str, ctx: Any) -> Any:
        try:
            return getattr(self._supplier, method)(ctx)
        except Exception:
            self._log(method)
            return None

    def _log(self, method: str) -> None:
        logger.warning(
            "the slot supplier %s raised in %s", type(self._supplier).__qualname__, method, exc_info=True
        )
