"""`Progress`: a name and a type, created once at module level and used by the workflow and its readers."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Generic, TypeVar, overload

from hourglass._evaluator.context import require_run
from hourglass._evaluator.definition import check_name
from hourglass._evaluator.options import Duration
from hourglass.activity import in_activity, publish
from hourglass.client import AsyncWorkflowHandle, WorkflowHandle
from hourglass.errors import UsageError
from hourglass.progress._buffer import MOST_BYTES, buffer_of_run
from hourglass.progress._following import NEW_ONES, AsyncProgressStream, Follower, ProgressStream

T = TypeVar("T")

_MOST_KEPT = 10_000


class Progress(Generic[T]):
    """A named stream of items from a workflow. The workflow keeps the newest `keep` items for late followers."""

    @overload
    def __init__(self: Progress[Any], name: str, *, keep: int = 1000) -> None: ...
    @overload
    def __init__(self, name: str, type: type[T], *, keep: int = 1000) -> None: ...
    @overload
    def __init__(self, name: str, type: object, *, keep: int = 1000) -> None: ...
    def __init__(self, name: str, type: object = Any, *, keep: int = 1000) -> None:
        self.name = check_name(name, "a progress")
        self.type: Any = type
        if not isinstance(keep, int) or not 1 <= keep <= _MOST_KEPT:
            raise UsageError(f"keep must be from 1 to {_MOST_KEPT} items, not {keep!r:.40}")
        self.keep = keep

    def __repr__(self) -> str:
        return f"<progress {self.name}>"

    def publish(self, value: T, /) -> None:
        """Publish an item to all followers. This works in workflows and activities, uses only memory, and never blocks.

        The item is encoded immediately, so later changes of the object have no effect. In an activity, the call is
        `activity.publish`.
        """
        if in_activity():
            publish(self.name, value)
            return
        run = require_run("publishing progress")
        converter = run.converter
        payload = converter.encode(value)
        if len(payload.data) > MOST_BYTES:
            raise UsageError(
                f"an item of progress {self.name!r} has {len(payload.data)} bytes, but at most {MOST_BYTES} are allowed: "
                "publish a reference to large data instead"
            )
        buffer_of_run(self.name, self.keep).add(
            converter.decode(payload, Any), len(payload.data), run.facts.history_length
        )

    @overload
    def follow(
        self,
        handle: WorkflowHandle[Any],
        *,
        after: str | None = None,
        last: int | None = None,
        timeout: Duration | None = None,
    ) -> ProgressStream[T]: ...
    @overload
    def follow(
        self,
        handle: AsyncWorkflowHandle[Any],
        *,
        after: str | None = None,
        last: int | None = None,
        timeout: Duration | None = None,
    ) -> AsyncProgressStream[T]: ...
    def follow(
        self,
        handle: WorkflowHandle[Any] | AsyncWorkflowHandle[Any],
        *,
        after: str | None = None,
        last: int | None = None,
        timeout: Duration | None = None,
    ) -> ProgressStream[T] | AsyncProgressStream[T]:
        """Return a stream of all past and future items until the workflow closes: `for item in
        status.follow(handle)`.

        The stream follows runs that continue as new. With `after`, the `position` of an earlier stream, this stream
        continues there. `last` is the number of newest items to begin with (0: only future items). With `timeout`, waiting
        longer for an item raises `TimeoutError`; the stream remains usable.
        """
        if after is not None and last is not None:
            raise UsageError("pass after or last, not both")
        if last is not None and (not isinstance(last, int) or last < 0):
            raise UsageError("last must be 0 or more: the number of newest items with which to start")
        begin: str | int = after if after is not None else 0
        if last is not None:
            begin = -last if last else NEW_ONES
        face = ProgressStream if isinstance(handle, WorkflowHandle) else AsyncProgressStream
        return face(
            _checked(handle)._session, Follower(self.name, self.type, handle._reference, begin, timeout)
        )

    @overload
    def latest(self, handle: WorkflowHandle[Any]) -> T | None: ...
    @overload
    def latest(self, handle: AsyncWorkflowHandle[Any]) -> Coroutine[Any, Any, T | None]: ...
    def latest(self, handle: WorkflowHandle[Any] | AsyncWorkflowHandle[Any]) -> Any:
        """Return the newest item; None if there is none yet. With an asynchronous handle, await the result."""
        session = _checked(handle)._session
        follower: Follower[T] = Follower(self.name, self.type, handle._reference, -1, None)
        if isinstance(handle, WorkflowHandle):
            session.run(follower.as_it_is())
            return follower.pending[-1] if follower.pending else None

        async def ask() -> T | None:
            await session.arun(follower.as_it_is())
            return follower.pending[-1] if follower.pending else None

        return ask()


def _checked(handle: Any) -> Any:
    if not isinstance(handle, (WorkflowHandle, AsyncWorkflowHandle)):
        raise UsageError(
            f"progress can be followed only through a workflow handle, not {type(handle).__name__}"
        )
    return handle
