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


def test_a_burst_is_one_run_with_the_last_arguments(kept_by: str) -> None:
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


def test_calls_after_the_burst_are_the_next_run() -> None:
    """Once it has run, a further call is a burst of its own."""
    with Environment() as env:
        first = debounce(env.client, index, Page("a", 1), key="a", wait=5)
        env.skip(10)
        second = debounce(env.client, index, Page("a", 2), key="a", wait=5)
        assert first.result().startswith("a v1")
        assert second.result().startswith("a v2")
        assert first.started().id != second.started().id


def test_keys_are_apart() -> None:
    """Calls of different keys are different runs."""
    with Environment() as env:
        calls = [debounce(env.client, index, Page(key, 1), key=key, wait=5) for key in "ab"]
        assert [call.result()[0] for call in calls] == ["a", "b"]


def test_a_steady_stream_runs_after_the_longest_wait(kept_by: str) -> None:
    """Calls that never calm down are run when `max_wait` has passed since the first."""
    with Environment() as env:
        begin = env.now().timestamp()
        first = debounce(env.client, index, Page("a", 0), key="a", wait=5, max_wait=12)
        for version in range(1, 20):
            env.skip(1)
            debounce(env.client, index, Page("a", version), key="a", wait=5, max_wait=12)
        assert first.result() == f"a v11 b'' at {begin + 12:.0f}"


def test_a_later_call_can_make_it_sooner() -> None:
    """The last call says how long to wait."""
    with Environment() as env:
        begin = env.now().timestamp()
        debounce(env.client, index, Page("a", 0), key="a", wait=timedelta(hours=1))
        last = debounce(env.client, index, Page("a", 1), key="a", wait=0)
        assert last.result() == f"a v1 b'' at {begin:.0f}"


def test_crashes_lose_no_call(kept_by: str) -> None:
    """Calls and the wait for them survive a worker's death."""
    with Environment() as env:
        call = debounce(env.client, index, Page("a", 0), key="a", wait=5)
        env.skip(3)
        env.crash()
        last = debounce(env.client, index, Page("a", 1), key="a", wait=5)
        env.crash()
        assert call.result() == last.result()


def test_a_burst_of_thousands_is_one_run(kept_by: str) -> None:
    """What collects the calls continues as new when its history has grown, and loses neither the last arguments nor anybody."""
    with Environment() as env:
        calls = [debounce(env.client, index, Page("a", version), key="a", wait=60) for version in range(1200)]
        assert calls[-1].result().startswith("a v1199")
        assert calls[0].started().id == calls[-1].started().id
        collecting = [each for each in env.client.list_workflows() if each.id == "hourglass.debounce:a"]
        assert len(collecting) == (0 if kept_by == "engine" else 3)


def test_a_cancelled_burst_is_not_run(kept_by: str) -> None:
    """Cancelling what collects the calls drops them, and whoever waits hears of it."""
    with Environment() as env:
        call = debounce(env.client, index, Page("a", 0), key="a", wait=5)
        env.client.get_workflow_handle("hourglass.debounce:a").cancel()
        with pytest.raises(WorkflowFailedError, match="never run"):
            call.result()
        assert not [each for each in env.client.list_workflows() if each.workflow_type == "index"]


def test_the_wait_for_the_start_can_be_limited(kept_by: str) -> None:
    """`started` gives up in time, and can be asked again."""
    with Environment() as env:
        call = debounce(env.client, index, Page("a", 0), key="a", wait=60)
        with pytest.raises(TimeoutError):
            call.started(timeout=10)
        assert call.started().result().startswith("a v0")


def test_nonsense_is_refused_before_anything_is_sent() -> None:
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
