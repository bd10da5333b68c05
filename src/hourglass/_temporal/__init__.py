"""Temporal as an engine. The only package that imports `temporalio`; only `core` imports its Rust module.

version          supported releases of `temporalio`
configs          the settings objects that Core reads
slots            adapter for custom slot suppliers
telemetry        Core's log, its metrics, and worker heartbeats
core             the only access to Core: bytes in and out
protos           values to and from protobuf: payloads, durations, times, versions
failures         failures to and from protobuf
specs            specs of activities, starts and children to and from protobuf
activations      Core's activations to ours, our completions to Core's
handle           a worker's handle over Core; activity tasks and results; replays
nexus            serves Nexus operations
calls            requests as RPCs: workflows, batch changes, activities completed by token
calls_views      read-only requests: describe, list, count, histories, pollers; worker deployments and versions
calls_schedules  requests for schedules
calls_activities requests for standalone activities
rpc_errors       RPC and connection errors as Hourglass errors
import_plan      checks whether a history can be imported; its plan of workflow tasks, and the messages of the import
import_run       the run of an import on the server, and its RPCs
importing        imports a history by taking a new run through the same workflow tasks
profiles         Temporal's configuration file and variables, by temporalio's reader
connection       connects to a server and sends requests
histories        histories as JSON and as protobuf, with validation
"""

from __future__ import annotations

from hourglass._temporal import version

version.check()
