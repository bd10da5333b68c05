"""A connection that is somebody else's to close: an engine in memory has but one, and handles come and go over it."""

from __future__ import annotations

from typing import TypeVar

from hourglass._contract.handle import Handle, HandleConfig
from hourglass._contract.service import Connection, Request

A = TypeVar("A")


class BorrowedConnection:
    """A `Connection` whose end is not the end of what it is connected to."""

    def __init__(self, lender: Connection) -> None:
        self._lender = lender

    @property
    def target(self) -> str:
        """What it is connected to."""
        return self._lender.target

    @property
    def namespace(self) -> str:
        """The namespace it works in."""
        return self._lender.namespace

    @property
    def identity(self) -> str:
        """Who we say we are."""
        return self._lender.identity

    async def call(self, request: Request[A]) -> A:
        """Ask, and wait for the answer."""
        return await self._lender.call(request)

    async def open_handle(self, config: HandleConfig) -> Handle:
        """Open a handle for a task queue."""
        return await self._lender.open_handle(config)

    async def close(self) -> None:
        """Nothing: the lender closes it."""
