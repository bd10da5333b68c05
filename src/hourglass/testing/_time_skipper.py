"""`TimeSkipper`: an interceptor that requests time skipping for the runs that a client starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hourglass._contract.workflows import TimeSkippingConfig
from hourglass.client._options import check_time_skipping
from hourglass.interceptors import (
    AsyncClientOutboundInterceptor,
    ClientOutboundInterceptor,
    Interceptor,
    StartUpdateWithStartInput,
    StartWorkflowInput,
)


class TimeSkipper(Interceptor):
    """An interceptor for tests with a real server and worker. The server skips time while a run is only waiting.

        with dev_server(time_skipping=True) as server, Client.connect(server.target, interceptors=[TimeSkipper()]) as client:
            ...

    Each workflow that the client starts has its own clock, which its children share. With
    `TimeSkipper(TimeSkippingConfig(enabled=False))`, time is skipped only by `handle.fast_forward(…)`.
    """

    def __init__(self, config: TimeSkippingConfig | None = None) -> None:
        self.config = check_time_skipping(config) or TimeSkippingConfig()
        self._off = 0

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Start the workflows of the block without time skipping. Running workflows are not affected."""
        self._off += 1
        try:
            yield
        finally:
            self._off -= 1

    def intercept_client(self, next: ClientOutboundInterceptor) -> ClientOutboundInterceptor:
        """Intercept the starts of a `Client`."""
        return _Starts(next, self)

    def intercept_async_client(self, next: AsyncClientOutboundInterceptor) -> AsyncClientOutboundInterceptor:
        """Intercept the starts of an `AsyncClient`."""
        return _AsyncStarts(next, self)

    def stamp(self, input: StartWorkflowInput) -> None:
        """Add the time skipping options to a start, unless the caller has set its own."""
        if not self._off:
            input.options.setdefault("time_skipping", self.config)


# --- faces: awaited, the source of what follows ---


class _AsyncStarts(AsyncClientOutboundInterceptor):
    def __init__(self, next: AsyncClientOutboundInterceptor, skipper: TimeSkipper) -> None:
        super().__init__(next)
        self._skipper = skipper

    async def start_workflow(self, input: StartWorkflowInput) -> Any:
        self._skipper.stamp(input)
        return await super().start_workflow(input)

    async def start_update_with_start_workflow(self, input: StartUpdateWithStartInput) -> Any:
        self._skipper.stamp(input.start)
        return await super().start_update_with_start_workflow(input)


# --- faces: blocking, made by `make faces` from the lines above: edit those ---


class _Starts(ClientOutboundInterceptor):
    def __init__(self, next: ClientOutboundInterceptor, skipper: TimeSkipper) -> None:
        super().__init__(next)
        self._skipper = skipper

    def start_workflow(self, input: StartWorkflowInput) -> Any:
        self._skipper.stamp(input)
        return super().start_workflow(input)

    def start_update_with_start_workflow(self, input: StartUpdateWithStartInput) -> Any:
        self._skipper.stamp(input.start)
        return super().start_update_with_start_workflow(input)


# --- faces: end ---
