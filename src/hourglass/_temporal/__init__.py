"""Temporal as an engine. Alone in importing `temporalio`; `core` alone in meeting its Rust module.

version          which releases of `temporalio` we work with
configs          the plain objects that Core reads its settings from
slots            a slot supplier of the author's, as Core calls it
telemetry        what Core says of itself: its log, its metrics, the heartbeats of workers
core             the one door to Core: bytes in and out
protos           our values in Temporal's messages, both ways: payloads, durations, times, versions, failures
specs            what an author may say of activities, starts and children, in Temporal's messages
activations      a workflow task: Core's activations as ours, our completions as Core's
handle           a worker's handle over Core, with Core's traps closed; activity tasks and results; replays
nexus            calls of Nexus operations, answered by the author's functions
calls            requests as RPCs: workflows, changes, activities completed from outside
calls_views      requests that look: describe, list, count, histories, pollers
calls_schedules  requests about schedules
calls_activities requests about activities without a workflow
calls_deployments requests about versions of workers, and what other messages say of versions
refusals         what a server, or the way to it, refuses, as errors of ours
import_plan      which history a server can be brought to, and by which workflow tasks
importing        a history on a server: a run is taken through the same workflow tasks again
profiles         Temporal's configuration file and variables, by temporalio's reader
connection       connecting to a server; every request, sent
histories        histories as JSON and as messages, and what holds in each
"""

from __future__ import annotations

from hourglass._temporal import version

version.check()
