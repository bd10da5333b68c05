"""Tests wait for conditions: a sleep in a test says why it is there."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from . import source

WORKFLOWS = ("aio", "compat", "engine", "conformance", "determinism", "check", "bridge", "typing")
"""Directories whose sleeps are those of workflows, of examples for the checker, or on a loop with virtual time."""

UNEXPLAINED = {
    "activities/ending.py": 4,
    "activities/executing.py": 1,
    "activities/test_activities_end_to_end.py": 1,
    "activities/test_heartbeats.py": 2,
    "activities/test_process_activities.py": 1,
    "activities/test_threads_and_loop.py": 2,
    "architecture/test_tiers.py": 1,
    "architecture/trace.py": 2,
    "chaos/exit_program.py": 1,
    "chaos/hangs.py": 1,
    "chaos/leaks.py": 1,
    "chaos/network.py": 1,
    "chaos/waiting.py": 1,
    "chaos/work.py": 1,
    "cli/command.py": 1,
    "cli/test_sigterm.py": 1,
    "client/test_namespaces.py": 3,
    "client/test_schedules.py": 1,
    "contrib/agent_program.py": 1,
    "durability/campaign.py": 3,
    "durability/faults.py": 4,
    "durability/storm.py": 2,
    "durability/test_web.py": 1,
    "durability/web.py": 1,
    "durability/work.py": 1,
    "embedded/sharing/test_hosts.py": 6,
    "embedded/sharing/test_second_store.py": 1,
    "embedded/test_core_replay.py": 6,
    "embedded/test_costs.py": 2,
    "embedded/test_schedule_transitions.py": 1,
    "interop/theirs.py": 1,
    "limits/test_engine_keeps.py": 1,
    "limits/test_engines.py": 1,
    "runtime/test_daemon_executor.py": 1,
    "runtime/test_process_deaths.py": 5,
    "runtime/test_worker_options.py": 1,
    "temporal/live.py": 1,
    "temporal/test_dev_server.py": 1,
    "temporal/test_handle_live.py": 2,
    "temporal/test_service.py": 1,
    "testing/test_guard.py": 1,
    "tree/test_reachability.py": 3,
    "tree/test_sightings.py": 1,
    "tree/world.py": 1,
}
"""Files with sleeps that nobody has looked at yet, and how many. Numbers only fall; no file is added."""


def _sleeps(path: Path) -> int:
    """Count the sleeps of a file without a comment in their line or above it. `sleep(0)` only lets others run."""
    text = path.read_text()
    if "sleep" not in text:
        return 0
    lines = text.splitlines()
    found = 0
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="time" | "asyncio"), attr="sleep"), args=[seconds]
            ):
                is_nothing = isinstance(seconds, ast.Constant) and seconds.value == 0
                above = lines[node.lineno - 2].lstrip()
                if not is_nothing and "#" not in lines[node.lineno - 1] and not above.startswith("#"):
                    found += 1
    return found


def unexplained() -> dict[str, int]:
    """Return the files of tests with sleeps that have no reason, and how many."""
    tests = source.ROOT / "tests"
    files = [path for path in tests.rglob("*.py") if path.relative_to(tests).parts[0] not in WORKFLOWS]
    counts = Counter({path.relative_to(tests).as_posix(): _sleeps(path) for path in files})
    return {name: count for name, count in sorted(counts.items()) if count}


def test_every_sleep_says_why() -> None:
    """A sleep has a comment with its reason, or is `waiting.until`, which ends as soon as the condition holds."""
    more = {name: count for name, count in unexplained().items() if count > UNEXPLAINED.get(name, 0)}
    assert more == {}, "wait for a condition with waiting.until, or say in a comment why the test sleeps"
