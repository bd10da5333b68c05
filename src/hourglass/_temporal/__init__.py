"""Temporal as an engine, through Core: the only package that imports `temporalio`.

Importing it checks that the installed `temporalio` is one that we know (`version`) and loads nothing else;
whoever targets Temporal imports `connection` (and `replayer`), which load Core and the protos.

    version       which releases of temporalio we work with
    core          the one door to Core's Rust objects, and what becomes of them at exit and after a fork
    configs       the plain objects that Core reads its settings from
    payloads      payloads, durations, times and retry policies to protobuf and back
    failures      failures to protobuf and back
    activations   Core's activations to ours
    completions   our completions to Core's
    activities    activity tasks, their results, heartbeats
    handle        a worker handle over Core
    connection    connect, and the connection
    service       the table of requests, and how one is sent
    calls*        for each request: which RPC, how to build it, how to read its answer
    refusals      RPC errors as errors of ours
    histories     histories to Temporal's JSON and back
    expectations  what a history says that its workflow asked for
    replayer      a handle that replays histories
"""

from __future__ import annotations

from hourglass._temporal import version

version.check()
