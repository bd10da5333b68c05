"""All faults by name, in order of execution."""

from __future__ import annotations

from . import (
    bad_activities,
    durability,
    evictions,
    exits,
    hangs,
    kills,
    network,
    quick_restarts,
    regex,
    status_endpoints,
    worker_kills,
)
from .outcome import Fault

FAULTS: dict[str, Fault] = {
    "kills-in-memory": kills.in_memory,
    "kills-on-server": kills.on_server,
    "parts-killed": quick_restarts.kill_above_handles,
    "process-killed-in-activity": worker_kills.in_activity,
    "process-killed-between-tasks": worker_kills.between_tasks,
    "process-killed-in-task": worker_kills.in_task,
    "processes-killed-under-load": worker_kills.under_load,
    "process-terminated": worker_kills.by_sigterm,
    "server-killed": network.server_killed,
    "connections-reset": network.connections_reset,
    "traffic-dropped": network.traffic_dropped,
    "eviction-storms": evictions.storms,
    "workflow-code-hangs": hangs.workflow_code,
    "interpreter-held": regex.holds_the_interpreter,
    "bad-activities": bad_activities.all_of_them,
    "forks-loops-exits": exits.programs,
    "status-while-dying": status_endpoints.status_while_dying,
    "campaign-on-file": durability.campaign_on_file,
    "campaign-on-server": durability.campaign_on_server,
    "durability": durability.kills,
    "web-processes": durability.web,
}
