"""Clients: start workflows, find them, talk to them. `Client` blocks, `AsyncClient` is awaited.

The map: `_blocking` and `_async` are the two faces, with equal names; `_operations` and `_activities` hold
every operation, once; `_session` runs them over a `_link`; `_given`, `_options` and `_values` turn what the
caller says and gets into data; `_waiting` waits for results; `_codec_edge` seals what leaves.
"""

from __future__ import annotations

from hourglass._bridge.service import IdConflictPolicy, WorkflowStatus
from hourglass._bridge.tls import TLSConfig
from hourglass._engine.commands import IdReusePolicy
from hourglass.client._async import AsyncActivityHandle, AsyncClient, AsyncWorkflowHandle
from hourglass.client._blocking import ActivityHandle, Client, WorkflowHandle
from hourglass.client._options import StartOptions
from hourglass.client._values import PendingActivityInfo, WorkflowDescription, WorkflowExecution

__all__ = [
    "ActivityHandle",
    "AsyncActivityHandle",
    "AsyncClient",
    "AsyncWorkflowHandle",
    "Client",
    "IdConflictPolicy",
    "IdReusePolicy",
    "PendingActivityInfo",
    "StartOptions",
    "TLSConfig",
    "WorkflowDescription",
    "WorkflowExecution",
    "WorkflowHandle",
    "WorkflowStatus",
]
