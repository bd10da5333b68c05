"""The parts that `Client` and `AsyncClient` share: properties and methods that do not wait."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Generic, Self, TypeVar

from hourglass._contract.service import Connection
from hourglass._worker.portal import Portal
from hourglass.client import _operations
from hourglass.client._operations import Reference
from hourglass.client._plugins import ClientConfig
from hourglass.client._session import ClientSession
from hourglass.client._standalone import ActivityReference
from hourglass.client._updates import UpdateReference
from hourglass.converter import ActivitySerializationContext, Codec, Converter, SerializationContext
from hourglass.errors import HourglassError, UsageError

R = TypeVar("R")


class ClientFacts:
    """The properties of a client. Clients are created by `connect`."""

    _session: ClientSession

    def __init__(self, session: Any = None) -> None:
        if not isinstance(session, ClientSession):
            name = type(self).__name__
            raise UsageError(f"create a client with {name}.connect(…), not by {name}(…)")
        self._session = session

    @property
    def target(self) -> str:
        """The address of the engine, without secrets."""
        return self._session.link.target

    @property
    def namespace(self) -> str:
        """The namespace of the client."""
        return self._session.link.namespace

    @property
    def identity(self) -> str:
        """The client identity."""
        return self._session.identity

    @property
    def api_key(self) -> str | None:
        """The API key for a server. Setting the key affects all later calls of the client and its workers."""
        return self._session.link.where.api_key

    @api_key.setter
    def api_key(self, key: str | None) -> None:
        self._of_server("an API key")
        self._session.link.change(api_key=key)

    @property
    def rpc_metadata(self) -> Mapping[str, str]:
        """The headers of every call to a server. To change one, set the whole mapping."""
        return {**self._session.link.where.metadata, **(self._session.rpc_metadata or {})}

    @rpc_metadata.setter
    def rpc_metadata(self, metadata: Mapping[str, str]) -> None:
        self._of_server("rpc_metadata")
        self._session.link.change(metadata=dict(metadata))

    def with_rpc_metadata(self, metadata: Mapping[str, str]) -> Self:
        """Return a client that uses the same connection and adds these headers to its calls and its handles' calls:
        `client.with_rpc_metadata({"trace": id}).start_workflow(…)`. Embedded engines ignore headers.
        """
        return type(self)(self._session.with_rpc({"rpc_metadata": metadata}))

    def _of_server(self, what: str) -> None:
        if self._session.link.where.kind != "temporal":
            raise UsageError(f"{self.target} does not support {what}: only Temporal servers do")

    @property
    def converter(self) -> Converter:
        """The data converter."""
        return self._session.converter

    @property
    def codec(self) -> Codec | None:
        """The payload codec, if any."""
        return self._session.codec

    def config(self) -> ClientConfig:
        """Return the options of the client, after all plugins have modified them. `Client.connect(**client.config())`
        creates an equal client.
        """
        if self._session.config is None:
            raise UsageError("this client has no settings, because it was not created by connect(…)")
        return {**self._session.config, "plugins": ()}

    @property
    def connection(self) -> Connection:
        """The open connection, for workers. Its methods must be called on the control loop."""
        return self._session.link.connection

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._session.link.closed

    @property
    def _portal(self) -> Portal:
        return self._session.link.portal

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<{type(self).__name__} {self.target} namespace={self.namespace}{state}>"


class HandleFacts(Generic[R]):
    """The properties of a workflow handle. Handles are created by a client."""

    def __init__(self, session: ClientSession, reference: Reference) -> None:
        self._session = session.of_workflow(reference.workflow_id)
        self._reference = reference

    @property
    def id(self) -> str:
        """The workflow's id."""
        return self._reference.workflow_id

    @property
    def run_id(self) -> str | None:
        """The id of the run that was started or selected; None if the handle refers only to the workflow id."""
        return self._reference.run_id or None

    @property
    def first_execution_run_id(self) -> str | None:
        """The id of the first run of the chain, if this handle started the workflow."""
        return self._reference.first_execution_run_id or None

    def __repr__(self) -> str:
        run = f" run_id={self.run_id}" if self.run_id else ""
        return f"<{type(self).__name__} {self.id}{run}>"

    def _repr_html_(self) -> str | None:
        """Return the workflow's timeline for notebooks, without payloads, or None if the timeline is not available."""
        try:
            description = self._session.perform(_operations.describe_briefly(self._session, self._reference))
            history = self._session.perform(_operations.history(self._session, self._reference))
        except HourglassError:
            return None
        # Imported by name, because pictures belong to a layer above the client.
        watching = importlib.import_module("hourglass._tools.timeline.watching")
        drawn: str = watching.picture(description, history, self._session.codec)
        return drawn


class ActivityHandleFacts:
    """The properties of an activity handle. The repr omits the task token, because anyone with the token can complete the
    activity.
    """

    def __init__(self, session: ClientSession, reference: ActivityReference) -> None:
        self._session = session
        self._reference = reference

    def with_context(self, context: SerializationContext) -> Self:
        """Return a handle to the same activity whose converter receives this workflow or activity as its context. Without
        it, the converter knows only the task token or the ids. The codec's context is always derived from the ids.
        """
        if not isinstance(context, SerializationContext):
            raise UsageError(f"the context must be a SerializationContext, not {type(context).__name__}")
        return type(self)(self._session.in_context(context), self._reference)

    def __repr__(self) -> str:
        reference = self._reference
        name = "by token" if reference.token else f"{reference.activity_id} of {reference.workflow_id}"
        return f"<{type(self).__name__} {name}>"


class ActivityExecutionHandleFacts(Generic[R]):
    """The properties of a handle to a standalone activity."""

    def __init__(self, session: ClientSession, reference: ActivityReference) -> None:
        context = ActivitySerializationContext(session.link.namespace, reference.activity_id)
        self._session = session.in_context(context)
        self._reference = reference

    @property
    def id(self) -> str:
        """The activity's id."""
        return self._reference.activity_id

    @property
    def run_id(self) -> str | None:
        """The id of the run that was started or selected; None if the handle refers only to the activity id."""
        return self._reference.run_id or None

    def __repr__(self) -> str:
        run = f" run_id={self.run_id}" if self.run_id else ""
        return f"<{type(self).__name__} {self.id}{run}>"


class UpdateHandleFacts:
    """The properties of an update handle."""

    def __init__(self, session: ClientSession, reference: UpdateReference) -> None:
        self._session = session.of_workflow(reference.workflow_id)
        self._reference = reference

    @property
    def id(self) -> str:
        """The update's id."""
        return self._reference.update_id

    @property
    def workflow_id(self) -> str:
        """The id of the workflow that was updated."""
        return self._reference.workflow_id

    @property
    def workflow_run_id(self) -> str | None:
        """The id of the run that was updated, if known."""
        return self._reference.run_id or None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.workflow_id}>"


class ScheduleHandleFacts:
    """The properties of a schedule handle."""

    def __init__(self, session: ClientSession, schedule_id: str) -> None:
        self._session = session
        self._id = schedule_id

    @property
    def id(self) -> str:
        """The schedule's id."""
        return self._id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"
