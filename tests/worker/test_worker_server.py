"""The worker on a Temporal server."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading

import pytest

from hourglass import activity, workflow
from hourglass.client import Client
from hourglass.testing import dev_server
from hourglass.worker import Worker

pytestmark = pytest.mark.server


class Place:
    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()


place = Place()


@pytest.fixture(autouse=True)
def _fresh_place():
    place.__init__()
    yield
    place.go.set()


@pytest.fixture(scope="module")
def server():
    with dev_server() as server:
        yield server


@pytest.fixture
def client(server, each_event_loop):
    with Client.connect(server.target) as client:
        yield client


@activity.defn
def double(number: int) -> int:
    return number * 2


@activity.defn
async def increase(number: int) -> int:
    return number + 1


@activity.defn
def slow_local() -> str:
    place.go.wait()
    return "late"


@workflow.defn
def sums(number: int) -> int:
    tasks = [increase.start(n) for n in range(3)]
    return double(number) + sum(task.result() for task in tasks) + double.local(1)


@workflow.defn
def remote_sums(number: int) -> int:
    tasks = [increase.start(n) for n in range(3)]
    return double(number) + sum(task.result() for task in tasks)


@workflow.defn
def closes_before_its_local_activity() -> str:
    slow_local.start_local()
    workflow.sleep(0.05)
    return "closed"


@workflow.defn
def waits() -> None:
    workflow.wait_condition(lambda: False)


WORKFLOWS = [sums, remote_sums, closes_before_its_local_activity, waits]
ACTIVITIES = [double, increase, slow_local]


def worker(client: Client, **options) -> Worker:
    return Worker(client, workflows=WORKFLOWS, activities=ACTIVITIES, **options)


def test_worker_on_a_server_runs_remote_and_local_activities(client):
    with worker(client, verify="always"):
        handles = [client.start_workflow(sums, n) for n in range(10)]
        assert [handle.result(timeout=60) for handle in handles] == [n * 2 + 8 for n in range(10)]


def test_workflows_on_a_server_complete_without_a_cache(client):
    """Without local activities, because Core evicts runs while these execute."""
    with worker(client, verify="always", max_cached_workflows=0) as working:
        handles = [client.start_workflow(remote_sums, n) for n in range(10)]
        assert [handle.result(timeout=60) for handle in handles] == [n * 2 + 6 for n in range(10)]
        assert working.statistics().failed_tasks == 0


def test_workflow_on_a_server_closes_while_its_local_activity_runs(client):
    with worker(client) as working:
        handles = [client.start_workflow(closes_before_its_local_activity) for _ in range(4)]
        threading.Timer(0.5, place.go.set).start()
        assert [handle.result(timeout=60) for handle in handles] == ["closed"] * 4
        assert working.statistics().failed_tasks == 0
        assert client.execute_workflow(sums, 1) == 10


def test_worker_shutdown_with_open_runs_leaves_the_client_usable(client):
    for round_ in range(3):
        with worker(client):
            for _ in range(5):
                client.start_workflow(waits)
            assert client.execute_workflow(sums, round_) == round_ * 2 + 8


def test_interpreter_exits_with_a_running_worker(server):
    program = f"""
        from hourglass import activity, workflow
        from hourglass.client import Client
        from hourglass.worker import Worker

        @activity.defn
        def double(number: int) -> int: return number * 2

        @workflow.defn
        def w() -> int: return double(4)

        client = Client.connect({server.target!r})
        worker = Worker(client, "forgotten", workflows=[w], activities=[double]).start()
        print(client.execute_workflow(w, task_queue="forgotten"))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "8\n"), done.stderr


@workflow.defn
def waits_in_its_code() -> str:
    with workflow.unsafe():
        place.begun.set()
        place.go.wait(60)
    return "slow"


@activity.defn
def twice(number: int) -> int:
    return 2 * number


@workflow.defn
def healthy(number: int) -> int:
    return twice(twice(number))


def test_workflows_on_a_server_complete_on_a_spare_lane_while_one_blocks(client):
    with Worker(
        client,
        "spare",
        workflows=[waits_in_its_code, healthy],
        activities=[twice],
        deadlock_timeout=None,
        verify="off",
    ):
        slow = client.start_workflow(waits_in_its_code, id="spare-slow", task_queue="spare", task_timeout=60)
        assert place.begun.wait(60)
        handles = [client.start_workflow(healthy, n, id=f"spare-{n}", task_queue="spare") for n in range(5)]
        assert [handle.result() for handle in handles] == [4 * n for n in range(5)]
        assert not place.go.is_set()
        place.go.set()
        assert slow.result() == "slow"
