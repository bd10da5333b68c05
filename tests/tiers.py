"""The three tiers of tests, and the tier of each test.

unit      pure functions and scripted worlds in this process: no subprocess, socket or sleep
contract  behavior at a boundary: conformance on all engines; stores, handles, command line, web UI
campaign  slow tests: killed processes, failing disks, clocks, chaos, soak, long searches

    pytest --tier unit              # `make test-unit`
    pytest --tier unit,contract     # two tiers
    pytest --tier short             # the campaign tests that `make test` also runs (`SHORT`)

Without `--tier` all tests run. `TIERS` lists directories, and files and functions that differ from their
directory; the longest matching entry decides. tests/architecture/test_tiers.py checks the table. During a
unit test an audit hook raises on every operation in `FORBIDDEN`, and the test fails even if it caught the
exception.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

UNIT, CONTRACT, CAMPAIGN = ALL = ("unit", "contract", "campaign")

TIERS = {
    "tests": CONTRACT,
    # Directories of unit tests, with their exceptions.
    "tests/architecture": UNIT,
    "tests/architecture/test_changed.py::test_changes_of_a_branch_include_uncommitted_deleted_and_new_files": CONTRACT,
    "tests/architecture/test_faces.py": CONTRACT,
    "tests/architecture/test_forks.py::test_fork_handlers_run_in_stage_order_despite_a_failure": CONTRACT,
    "tests/architecture/test_measures.py::test_benchmark_scripts_print_figures": CONTRACT,
    "tests/architecture/test_prose.py::test_counts_of_prose_habits_do_not_rise": CONTRACT,
    "tests/architecture/test_purity.py::test_evaluator_loads_no_impure_module_indirectly": CONTRACT,
    "tests/architecture/test_purity.py::test_import_of_hourglass_loads_neither_asyncio_nor_temporal": CONTRACT,
    "tests/architecture/test_purity.py::test_client_and_worker_do_not_load_temporal_libraries": CONTRACT,
    "tests/architecture/test_suite.py": CONTRACT,
    "tests/worker/handles/test_server.py": CAMPAIGN,
    "tests/worker/handles/test_handle_contract.py": CONTRACT,
    "tests/tools/lint": UNIT,
    "tests/tools/lint/test_command.py": CONTRACT,
    "tests/compat": UNIT,
    "tests/compat/test_wrong_programs.py": CONTRACT,
    "tests/converter": UNIT,
    "tests/converter/test_context.py": CONTRACT,
    "tests/converter/test_order.py": CONTRACT,
    "tests/converter/test_pydantic.py": CONTRACT,
    "tests/converter/test_storage.py": CONTRACT,
    "tests/embedded": UNIT,
    "tests/embedded/multiprocess": CONTRACT,
    "tests/embedded/store": CONTRACT,
    "tests/embedded/store/test_damaged_rows.py": UNIT,
    "tests/embedded/store/test_filters.py": UNIT,
    "tests/embedded/store/test_visibility.py": UNIT,
    "tests/embedded/store/test_filter_semantics.py": UNIT,
    "tests/embedded/store/test_visibility_memory.py": UNIT,
    "tests/embedded/runs/test_costs.py": CONTRACT,
    "tests/embedded/runs/test_flat_cost.py": CONTRACT,
    "tests/embedded/test_model.py": CONTRACT,
    "tests/embedded/matching/test_priorities.py": CONTRACT,
    "tests/embedded/schedules/test_schedule_times.py": CONTRACT,
    "tests/embedded/schedules/test_schedule_transitions.py": CONTRACT,
    "tests/embedded/schedules/test_schedules.py": CONTRACT,
    "tests/embedded/api/test_standalone.py": CONTRACT,
    "tests/embedded/matching/test_versions.py": CONTRACT,
    "tests/evaluator": UNIT,
    "tests/evaluator/test_order_differential.py": CONTRACT,
    "tests/evaluator/test_coroutines_differential.py": CONTRACT,
    "tests/evaluator/test_reexecution.py": CONTRACT,
    "tests/history": UNIT,
    "tests/limits": UNIT,
    "tests/limits/test_embedded_limits.py": CONTRACT,
    "tests/limits/test_engines.py": CONTRACT,
    "tests/limits/test_built_in_workflows.py": CONTRACT,
    "tests/parity": UNIT,
    "tests/replay": UNIT,
    "tests/replay/test_limits.py": CONTRACT,
    "tests/replay/test_messages.py": CONTRACT,
    "tests/replay/test_open_runs.py": CONTRACT,
    "tests/worker": UNIT,
    "tests/worker/activities": CONTRACT,
    "tests/worker/activities/test_activity_definition.py": UNIT,
    "tests/worker/activities/test_executors.py": UNIT,
    "tests/worker/tree": CONTRACT,
    "tests/worker/lanes/test_breakpoints.py": CONTRACT,
    "tests/worker/health/test_history_mismatch.py": CONTRACT,
    "tests/worker/health/test_parked_watch.py": CONTRACT,
    "tests/worker/health/test_process_deaths.py": CONTRACT,
    "tests/worker/test_stop_event.py": CONTRACT,
    "tests/worker/lanes/test_watcher.py": CONTRACT,
    "tests/worker/test_worker.py": CONTRACT,
    "tests/worker/test_worker_options.py": CONTRACT,
    "tests/worker/test_worker_server.py": CONTRACT,
    "tests/scale": UNIT,
    "tests/scale/test_engines.py": CAMPAIGN,
    "tests/tools/timeline": UNIT,
    "tests/tools/timeline/test_notebook.py": CONTRACT,
    "tests/tools/timeline/test_show_command.py": CONTRACT,
    "tests/tools/timeline/test_show_server.py": CONTRACT,
    "tests/supervision": UNIT,
    "tests/supervision/test_random_kills.py": CAMPAIGN,
    "tests/testing": UNIT,
    "tests/testing/test_async_environment.py": CONTRACT,
    "tests/testing/test_explore.py": CAMPAIGN,
    "tests/testing/test_explore_orders.py": CAMPAIGN,
    "tests/testing/test_explore_properties.py": CONTRACT,
    "tests/testing/test_guard.py": CONTRACT,
    "tests/testing/test_time_skipping.py": CONTRACT,
    "tests/worker/tree/test_signals.py": CAMPAIGN,
    # Unit tests in directories of contract tests.
    "tests/worker/activities/test_heartbeat_sender.py": UNIT,
    "tests/worker/activities/test_own_executor.py": UNIT,
    "tests/worker/activities/test_resources.py": UNIT,
    "tests/worker/activities/test_result_sender.py": UNIT,
    "tests/tools/cli/test_console.py": UNIT,
    "tests/tools/cli/test_manual_page.py": UNIT,
    "tests/tools/cli/test_port.py": UNIT,
    "tests/tools/cli/test_table.py": UNIT,
    "tests/client/test_bad_options.py": UNIT,
    "tests/client/test_bulk.py": UNIT,
    "tests/client/test_client_operations.py": UNIT,
    "tests/client/test_envconfig.py": UNIT,
    "tests/client/test_failure_words.py": UNIT,
    "tests/client/test_service_status.py": UNIT,
    "tests/client/test_targets.py": UNIT,
    "tests/client/test_update_repeats.py": UNIT,
    "tests/docs/test_compatibility.py": UNIT,
    "tests/docs/test_commands.py": UNIT,
    "tests/docs/test_metrics.py": UNIT,
    "tests/docs/test_performance.py": UNIT,
    "tests/faults/test_bad_histories.py": UNIT,
    "tests/faults/test_open_histories.py": UNIT,
    "tests/interceptors/test_chains.py": UNIT,
    "tests/metrics/test_registry.py": UNIT,
    "tests/progress/test_following.py": UNIT,
    "tests/progress/test_progress.py": UNIT,
    "tests/temporal/test_contract.py": UNIT,
    "tests/temporal/test_handle.py": UNIT,
    "tests/temporal/test_histories.py": UNIT,
    "tests/temporal/test_translation.py": UNIT,
    "tests/temporal/test_version.py": UNIT,
    "tests/temporal/test_versions.py": UNIT,
    "tests/tools/web/test_finding.py": UNIT,
    # Killed processes, outages, failing disks, and other slow tests.
    "tests/chaos": CAMPAIGN,
    "tests/durability": CAMPAIGN,
    "tests/worker/activities/test_ending.py::test_sigterm_ends_a_worker_whose_server_does_not_respond": CAMPAIGN,
    "tests/tools/cli/test_dev.py::test_dev_reports_a_deleted_file_and_continues_when_it_returns": CAMPAIGN,
    "tests/tools/cli/test_dev.py::test_dev_shows_a_parked_run_with_its_line": CAMPAIGN,
    "tests/tools/cli/test_dev.py::test_dev_temporal_option_runs_a_server_with_web_ui_and_private_files": CAMPAIGN,
    "tests/tools/cli/test_dev.py::test_dev_strict_receives_no_tasks_until_a_compatible_edit": CAMPAIGN,
    "tests/tools/cli/test_dev.py::test_dev_worker_process_ends_with_its_parent": CAMPAIGN,
    "tests/tools/cli/test_worker_command.py": CAMPAIGN,
    "tests/tools/cli/test_worker_command.py::test_worker_command_stops_on_sigterm_with_exit_code_0": CONTRACT,
    "tests/tools/cli/test_worker_command.py::test_worker_command_without_parent_serves_status_and_stops_on_sigterm": CONTRACT,
    "tests/contrib/test_agents.py": CAMPAIGN,
    "tests/contrib/test_extras.py": CAMPAIGN,
    "tests/contrib/test_outbox.py::test_outbox_starts_only_committed_workflows_after_kill_on_a_server": CAMPAIGN,
    "tests/contrib/test_transactional.py::test_transactional_activity_pays_once_after_kill_at_any_point": CAMPAIGN,
    "tests/embedded/multiprocess/test_results_after_owner_death.py": CAMPAIGN,
    "tests/embedded/multiprocess/test_processes.py": CAMPAIGN,
    "tests/embedded/multiprocess/test_stopped_owner.py": CAMPAIGN,
    "tests/embedded/multiprocess/test_peer_workers.py": CAMPAIGN,
    "tests/embedded/store/test_disk_faults.py": CAMPAIGN,
    "tests/embedded/store/test_kill.py": CAMPAIGN,
    "tests/embedded/store/test_wal_mismatch.py": CAMPAIGN,
    "tests/examples/test_examples_run.py::test_checkout_example_continues_after_kill_and_charges_once": CAMPAIGN,
    "tests/examples/test_explored_example.py": CAMPAIGN,
    "tests/examples/test_scripts.py::test_example_runs_on_a_server_and_creates_no_file": CAMPAIGN,
    "tests/examples/test_scripts.py::test_approval_example_test_suite_passes": CAMPAIGN,
    "tests/examples/test_scripts.py::test_example_runs_twice_on_one_file": CAMPAIGN,
    "tests/faults/test_regex.py": CAMPAIGN,
    "tests/limits/test_embedded_limits.py::test_slots_survive_repeated_kills_of_the_process": CAMPAIGN,
    "tests/temporal/test_process.py": CAMPAIGN,
    "tests/worker/tree/test_reachability.py::test_worker_reports_a_connection_that_transfers_no_data": CAMPAIGN,
    "tests/worker/tree/test_reachability.py::test_worker_reports_and_recovers_from_a_server_restart": CAMPAIGN,
    "tests/worker/tree/test_poller_checks.py::test_frozen_connection_to_a_server_is_replaced": CAMPAIGN,
    "tests/typing": CAMPAIGN,  # `make check` also runs them
    "tests/tools/web/test_browser.py::test_open_page_does_not_leak_nodes_or_listeners_after_updates": CAMPAIGN,
    "tests/tools/web/test_scale.py": CAMPAIGN,
    "tests/tools/web/test_degraded_service.py": CAMPAIGN,
}

SHORT = (
    "tests/chaos/test_lost_workers.py",
    "tests/durability/test_campaign.py",
    "tests/durability/test_kills.py",
    "tests/durability/test_repeats.py",
    "tests/embedded/multiprocess/test_peer_workers.py",
    "tests/embedded/store/test_kill.py",
)
"""Campaign tests that `make test` also runs. They are short, and fixed seeds make every run the same."""


def of(test: str) -> str:
    """Return the tier of a test, by its id: `tests/evaluator/test_turns.py::test_order[1]`."""
    name = test.partition("[")[0]
    while name not in TIERS:
        name = name.rpartition("::" if "::" in name else "/")[0]
    return TIERS[name]


def of_file(path: str) -> set[str]:
    """Return the tiers of the tests in a file."""
    return {of(path), *(tier for name, tier in TIERS.items() if name.startswith(f"{path}::"))}


def is_short(test: str) -> bool:
    """Whether this is a campaign test that `make test` also runs."""
    return test.partition("[")[0] in SHORT or test.partition("::")[0] in SHORT


def add_option(parser: pytest.Parser) -> None:
    """Add the option `--tier` to pytest."""
    parser.addoption(
        "--tier",
        default="",
        help="run only tests of these tiers: unit, contract, campaign, short (the campaign tests of `make test`)",
    )


def selected(config: pytest.Config) -> set[str]:
    """Return the tiers that `--tier` names."""
    tiers = {name for name in config.getoption("--tier").split(",") if name}
    if unknown := tiers - {*ALL, "short"}:
        raise pytest.UsageError(
            f"--tier: unknown tier {', '.join(sorted(unknown))}; choose from {', '.join(ALL)}, short"
        )
    return tiers


def is_ignored(path: Path, config: pytest.Config) -> bool:
    """Whether a file has no test of the selected tiers, so that pytest need not import it."""
    tiers = selected(config)
    if not tiers or path.suffix != ".py" or not path.is_relative_to(config.rootpath / "tests"):
        return False
    name = path.relative_to(config.rootpath).as_posix()
    has_short = "short" in tiers and any(test.partition("::")[0] == name for test in SHORT)
    return not (of_file(name) & tiers or has_short)


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and deselect the tests of other tiers."""
    tiers = selected(config)
    matching, deselected = [], []
    for item in items:
        tier = of(item.nodeid)
        item.add_marker(tier)
        matches = not tiers or tier in tiers or ("short" in tiers and is_short(item.nodeid))
        (matching if matches else deselected).append(item)
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = matching


FORBIDDEN = {
    "os.exec": "replaces this process",
    "os.fork": "forks",
    "os.forkpty": "forks",
    "os.posix_spawn": "starts a program",
    "subprocess.Popen": "starts a program",
    "socket.bind": "binds a socket",
    "socket.connect": "connects a socket",
    "time.sleep": "sleeps",
}
"""Audit events that a unit test must not cause, each with the verb for its error message. Python has an audit
event for `time.sleep` only since 3.13, so the guard replaces that function. To wait for a condition use
`waiting.until`.
"""


class NotAUnitTest(Exception):
    """A unit test did something that only contract and campaign tests may do."""


class Guard:
    """Raises on forbidden operations while a unit test runs.

    Threads that existed before the test are exempt, except the main thread: tests of other tiers in this
    process may have started them.
    """

    def __init__(self) -> None:
        self._is_installed = False
        self._exempt: set[threading.Thread] | None = None
        self._violations: list[str] = []

    def begin(self) -> None:
        """Start to guard a unit test."""
        if not self._is_installed:
            sys.addaudithook(self._audit)  # Python cannot remove an audit hook
            self._is_installed = True
        time.sleep = self._sleep
        self._violations = []
        self._exempt = set(threading.enumerate()) - {threading.current_thread()}

    def end(self) -> list[str]:
        """Stop guarding. Return the forbidden operations that the test attempted."""
        self._exempt = None
        time.sleep = _sleep
        violations, self._violations = self._violations, []
        return violations

    def is_on(self) -> bool:
        """Whether operations in `FORBIDDEN` raise now, on this thread."""
        return self._exempt is not None and threading.current_thread() not in self._exempt

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._exempt is None:  # also while the interpreter exits, when the names of this module are gone
            return
        if event in FORBIDDEN and event != "time.sleep" and self.is_on():
            self._reject(event)

    def _sleep(self, seconds: float) -> None:
        # Threads of the package sleep for reasons of their own.
        if seconds > 0 and self.is_on() and threading.current_thread() is threading.main_thread():
            self._reject("time.sleep")
        _sleep(seconds)

    def _reject(self, event: str) -> None:
        violation = f"{FORBIDDEN[event]} ({event})"
        self._violations.append(violation)
        raise NotAUnitTest(f"a unit test {violation}: see tests/tiers.py")


_sleep = time.sleep
GUARD = Guard()


def begin(item: pytest.Item) -> None:
    """Guard a unit test and its fixtures; do nothing for other tests."""
    if of(item.nodeid) == UNIT:
        GUARD.begin()


def check(violations: list[str]) -> None:
    """Fail the test if it attempted a forbidden operation, even if it caught the exception."""
    if violations:
        raise NotAUnitTest(f"this unit test {', '.join(sorted(set(violations)))}: see tests/tiers.py")
