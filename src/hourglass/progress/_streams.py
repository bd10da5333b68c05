"""The two faces of a follower: an iterator that blocks, and one that is awaited. Equal names."""

from __future__ import annotations

from typing import Generic, TypeVar

from hourglass.client._session import Session
from hourglass.progress._following import Follower

T = TypeVar("T")


class _StreamFacts(Generic[T]):
    def __init__(self, session: Session, follower: Follower[T]) -> None:
        self._session = session
        self._follower = follower

    @property
    def position(self) -> str:
        """Where it stands, as a text: `follow(handle, after=position)` goes on there, in another process, too."""
        return self._follower.position

    @property
    def missed(self) -> int:
        """How many items were gone before they could be read, because the workflow keeps only the newest."""
        return self._follower.missed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.position}{', ended' if self._follower.ended else ''}>"


class ProgressStream(_StreamFacts[T], Generic[T]):
    """What a workflow publishes, item by item, until it has closed: `for item in stream`. Made by `Progress.follow`."""

    def __iter__(self) -> ProgressStream[T]:
        return self

    def __next__(self) -> T:
        """The next item; waits for it. Raises `TimeoutError` where `follow` was given a time limit."""
        follower = self._follower
        while not follower.pending:
            if follower.ended:
                raise StopIteration
            self._session.run(follower.more())
        return follower.pending.popleft()


class AsyncProgressStream(_StreamFacts[T], Generic[T]):
    """What a workflow publishes, item by item, until it has closed: `async for item in stream`."""

    def __aiter__(self) -> AsyncProgressStream[T]:
        return self

    async def __anext__(self) -> T:
        """The next item; waits for it. Raises `TimeoutError` where `follow` was given a time limit."""
        follower = self._follower
        while not follower.pending:
            if follower.ended:
                raise StopAsyncIteration
            await self._session.arun(follower.more())
        return follower.pending.popleft()
