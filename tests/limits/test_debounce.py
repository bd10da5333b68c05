"""`limits.debounce` on virtual time: which calls share a run, its arguments and its start time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest

from hourglass import workflow
from hourglass.errors import ArgumentError, UsageError, WorkflowFailedError
from hourglass.limits import debounce
from hourglass.testing import Environment


@dataclass
class Page:
    name: str
    version: int


@workflow.defn
def index(page: Page, raw: bytes = b"") -> str:
    """Return what was indexed, and when."""
    assert isinstance(page, Page)
    return f"{page.name} v{page.version} {raw!r} at {workflow.time():.0f}"


def test_debounced_burst_starts_one_run_with_the_last_arguments(kept_by: str, env: Environment) -> None:
    """The run starts `wait` seconds after the last call, and every caller gets its result."""
    calls = []
    for version in range(3):
        calls.append(debounce(env.client, index, Page("a", version), b"\x00", key="a", wait=5))
        env.skip(2)
    begin = env.now().timestamp() - 2
    results = {call.result() for call in calls}
    assert results == {f"a v2 b'\\x00' at {begin + 5:.0f}"}
    assert len({call.started().id for call in calls}) == 1
    runs = [run for run in env.client.list_workflows() if run.workflow_type == "index"]
    assert len(runs) == 1


def test_call_after_a_debounced_run_starts_another_run(env: Environment) -> None:
    first = debounce(env.client, index, Page("a", 1), key="a", wait=5)
    env.skip(10)
    second = debounce(env.client, index, Page("a", 2), key="a", wait=5)
    assert first.result().startswith("a v1")
    assert second.result().startswith("a v2")
    assert first.started().id != second.started().id


def test_debounced_calls_with_different_keys_start_different_runs(env: Environment) -> None:
    calls = [debounce(env.client, index, Page(key, 1), key=key, wait=5) for key in "ab"]
    assert [call.result()[0] for call in calls] == ["a", "b"]


def test_max_wait_starts_the_run_during_a_steady_stream_of_calls(kept_by: str, env: Environment) -> None:
    begin = env.now().timestamp()
    first = debounce(env.client, index, Page("a", 0), key="a", wait=5, max_wait=12)
    for version in range(1, 20):
        env.skip(1)
        debounce(env.client, index, Page("a", version), key="a", wait=5, max_wait=12)
    assert first.result() == f"a v11 b'' at {begin + 12:.0f}"


def test_last_debounced_call_sets_the_wait(env: Environment) -> None:
    begin = env.now().timestamp()
    debounce(env.client, index, Page("a", 0), key="a", wait=timedelta(hours=1))
    last = debounce(env.client, index, Page("a", 1), key="a", wait=0)
    assert last.result() == f"a v1 b'' at {begin:.0f}"


def test_debounced_calls_survive_worker_crashes(kept_by: str, env: Environment) -> None:
    call = debounce(env.client, index, Page("a", 0), key="a", wait=5)
    env.skip(3)
    env.crash()
    last = debounce(env.client, index, Page("a", 1), key="a", wait=5)
    env.crash()
    assert call.result() == last.result()


def test_debounce_keeps_the_last_of_1200_calls(kept_by: str, env: Environment) -> None:
    """A keeper workflow continues as new meanwhile."""
    calls = [debounce(env.client, index, Page("a", version), key="a", wait=60) for version in range(1200)]
    assert calls[-1].result().startswith("a v1199")
    assert calls[0].started().id == calls[-1].started().id
    keepers = [run for run in env.client.list_workflows() if run.id == "hourglass.debounce:a"]
    assert len(keepers) == (0 if kept_by == "engine" else 3)


def test_cancelled_debounce_starts_no_run_and_fails_its_callers(kept_by: str, env: Environment) -> None:
    call = debounce(env.client, index, Page("a", 0), key="a", wait=5)
    env.client.get_workflow_handle("hourglass.debounce:a").cancel()
    with pytest.raises(WorkflowFailedError, match="not run"):
        call.result()
    assert not [run for run in env.client.list_workflows() if run.workflow_type == "index"]


def test_debounced_call_started_can_time_out_and_be_called_again(kept_by: str, env: Environment) -> None:
    call = debounce(env.client, index, Page("a", 0), key="a", wait=60)
    with pytest.raises(TimeoutError):
        call.started(timeout=10)
    assert call.started().result().startswith("a v0")


def test_invalid_debounce_arguments_are_rejected_at_the_call(env: Environment) -> None:
    with pytest.raises(ArgumentError):
        debounce(env.client, index, key="a", wait=5)  # type: ignore[call-arg, arg-type]
    with pytest.raises(UsageError, match="no option 'memo'"):
        debounce(env.client, index, Page("a", 0), key="a", wait=5, memo={})  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="max_wait"):
        debounce(env.client, index, Page("a", 0), key="a", wait=5, max_wait=1)
    with pytest.raises(UsageError, match="non-empty str"):
        debounce(env.client, index, Page("a", 0), key=" ", wait=5)
    with pytest.raises(UsageError, match="needs a Client"):
        debounce(env, index, Page("a", 0), key="a", wait=5)  # type: ignore[call-overload]
    assert not list(env.client.list_workflows())
