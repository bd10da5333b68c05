"""The raw gRPC services of a server, for RPCs that the client has no method for.

Each RPC is a method that takes its request message and returns the response message. Messages are Temporal's
(`temporalio.api`); the converter, codec and interceptors do not process them. Embedded engines have no gRPC services.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from hourglass._contract.service import RawCall, Remote
from hourglass.client._session import ClientOperation, ClientSession
from hourglass.errors import InternalError, UsageError


def _sending(call: RawCall) -> ClientOperation[Any]:
    """Return the operation that sends a raw RPC."""

    async def ask(session: ClientSession) -> Any:
        connection = await session.link.opened()
        if not isinstance(connection, Remote):
            raise UsageError(f"{connection.target} has no gRPC services: only Temporal servers have them")
        return await connection.rpc(call)

    return ClientOperation(ask, lambda answer: answer)


def _service(session: ClientSession, name: str, send: Callable[[RawCall], Any]) -> Any:
    if session.link.where.kind != "temporal":
        raise UsageError(f"{session.link.target} has no gRPC services: only Temporal servers have them")
    from hourglass._temporal.connection import raw_service

    return raw_service(name, send)


class AsyncRawService:
    """A raw gRPC service of a server: `await client.workflow_service.get_system_info(GetSystemInfoRequest())`. Each method
    also takes `retry`, `metadata` and `timeout`, and raises `ServiceError` if the server rejects the call.
    """

    def __init__(self, session: ClientSession, name: str) -> None:
        self._name = name
        self._service = _service(session, name, lambda call: session.aperform(_sending(call)))

    def __getattr__(self, rpc: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method: Callable[..., Coroutine[Any, Any, Any]] = getattr(self._service, rpc)
        return method

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"


class RawService:
    """A raw gRPC service of a server: `client.workflow_service.get_system_info(GetSystemInfoRequest())`. Each method also
    takes `retry`, `metadata` and `timeout`, and raises `ServiceError` if the server rejects the call.
    """

    def __init__(self, session: ClientSession, name: str) -> None:
        async def send(call: RawCall) -> Any:
            return session.perform(_sending(call))

        self._name = name
        self._service = _service(session, name, send)

    def __getattr__(self, rpc: str) -> Callable[..., Any]:
        method = getattr(self._service, rpc)

        def call(*args: Any, **options: Any) -> Any:
            coroutine = method(*args, **options)
            try:
                coroutine.send(None)  # runs to completion, because `send` blocks the thread
            except StopIteration as done:
                return done.value
            coroutine.close()
            raise InternalError(f"{rpc} did not block")

        return call

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}>"
