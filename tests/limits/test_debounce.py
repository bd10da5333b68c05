"""`limits.debounce` on virtual time: what becomes one run, with which arguments, and when."""

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
    """What is indexed."""

    name: str
    version: int


@workflow.defn
def index(page: Page, raw: bytes = b"") -> str:
    """Say what was indexed, and when."""
    assert isinstance(page, Page)
    return f"{page.name} v{page.version} {raw!r} at {workflow.time():.0f}"


def test_burst_becomes_one_run_with_the_last_arguments(kept_by: str) -> None:
    """Three calls within the wait are one run, five seconds after the last, and each caller gets its result."""
    with Environment() as env:
        calls = []
        for version in range(3):
            calls.append(debounce(env.client, index, Page("a", version), b"\x00", key="a", wait=5))
            env.skip(2)
        begin = env.now().timestamp() - 2
        results = {call.result() for call in calls}
        assert results == {f"a v2 b'\\x00' at {begin + 5:.0f}"}
        assert len({call.started().id for call in calls}) == 1
        runs = [each for each in env.client.list_workflows() if each.workflow_type == "index"]
        assert len(runs) == 1


def test_call_after_a_burst_starts_another_run() -> None:
    """After the run of a burst has started, a further call begins a new burst."""
    with Environment() as env:
        first = debounce(env.client, index, Page("a", 1), key="a", wait=5)
        env.skip(10)
        second = debounce(env.client, index, Page("a", 2), key="a", wait=5)
        assert first.result().startswith("a v1")
        assert second.result().startswith("a v2")
        assert first.started().id != second.started().id


def test_keys_are_independent() -> None:
    """Calls of different keys are different runs."""
    with Environment() as env:
        calls = [debounce(env.client, index, Page(key, 1), key=key, wait=5) for key in "ab"]
        assert [call.result()[0] for call in calls] == ["a", "b"]


def test_max_wait_ends_a_steady_stream_of_calls(kept_by: str) -> None:
    """The workflow runs when `max_wait` has passed since the first call."""
    with Environment() as env:
        begin = env.now().timestamp()
        first = debounce(env.client, index, Page("a", 0), key="a", wait=5, max_wait=12)
        for version in range(1, 20):
            env.skip(1)
            debounce(env.client, index, Page("a", version), key="a", wait=5, max_wait=12)
        assert first.result() == f"a v11 b'' at {begin + 12:.0f}"


def test_last_call_sets_the_wait() -> None:
    """The last call decides how long to wait."""
    with Environment() as env:
        begin = env.now().timestamp()
        debounce(env.client, index, Page("a", 0), key="a", wait=timedelta(hours=1))
        last = debounce(env.client, index, Page("a", 1), key="a", wait=0)
        assert last.result() == f"a v1 b'' at {begin:.0f}"


def test_burst_survives_worker_crash(kept_by: str) -> None:
    """Calls and the wait for them survive a worker's death."""
    with Environment() as env:
        call = debounce(env.client, index, Page("a", 0), key="a", wait=5)
        env.skip(3)
        env.crash()
        last = debounce(env.client, index, Page("a", 1), key="a", wait=5)
        env.crash()
        assert call.result() == last.result()


def test_burst_of_thousands_of_calls(kept_by: str) -> None:
    """The collecting workflow continues as new, and loses neither the last arguments nor a caller."""
    with Environment() as env:
        calls = [debounce(env.client, index, Page("a", version), key="a", wait=60) for version in range(1200)]
        assert calls[-1].result().startswith("a v1199")
        assert calls[0].started().id == calls[-1].started().id
        collecting = [each for each in env.client.list_workflows() if each.id == "hourglass.debounce:a"]
        assert len(collecting) == (0 if kept_by == "engine" else 3)


def test_cancelled_burst_drops_its_calls(kept_by: str) -> None:
    """Waiting callers get an error."""
    with Environment() as env:
        call = debounce(env.client, index, Page("a", 0), key="a", wait=5)
        env.client.get_workflow_handle("hourglass.debounce:a").cancel()
        with pytest.raises(WorkflowFailedError, match="not run"):
            call.result()
        assert not [each for each in env.client.list_workflows() if each.workflow_type == "index"]


def test_started_times_out(kept_by: str) -> None:
    """`started` raises `TimeoutError`, and can be called again."""
    with Environment() as env:
        call = debounce(env.client, index, Page("a", 0), key="a", wait=60)
        with pytest.raises(TimeoutError):
            call.started(timeout=10)
        assert call.started().result().startswith("a v0")


def test_invalid_arguments_are_rejected_before_sending() -> None:
    """Arguments that do not fit the workflow, unknown options and impossible waits are errors at the call."""
    with Environment() as env:
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
