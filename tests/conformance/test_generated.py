"""Generated programs have the same outcome on the embedded engine and on a server, and every history replays in Core.

There are two languages. Deterministic programs have no races, so results and events must be equal; they also run on a
server. Programs in the language of `tests/evaluator` combine every operation with signals, cancellation and workers that
lose their state, at any instant of virtual time. These are checked by Core, which replays every history.

By default a few dozen programs run, always the same; HOURGLASS_GENERATED=3000 requests that many new ones.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from evaluator.generated import programs
from evaluator.interpreted_plain import InterpretedPlain
from hourglass import RetryPolicy, activity
from hourglass.client import Client, WorkflowHandle
from hourglass.errors import ApplicationError, WorkflowFailedError
from hourglass.replay import History, Replayer
from hourglass.testing import DevServer, Environment
from hourglass.worker import Worker

from .world import error_chain, event_counts, event_types

AT_ONCE = 12
_asked = int(os.environ.get("HOURGLASS_GENERATED", "0"))


def example_settings(usual: int, programs_per_example: int = 1) -> settings:
    """Return settings with the usual number of examples, or with the requested number of new ones."""
    return settings(
        max_examples=max(1, _asked // programs_per_example) if _asked else usual,
        derandomize=not _asked,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],  # an example takes long, and its failure prints the program
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
            HealthCheck.large_base_example,
        ],
    )


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01, maximum_attempts=3))
def work(note: str, number: int) -> int:
    """Succeed, fail once or fail for good, depending on the number."""
    if number % 3 == 2:
        raise ApplicationError(f"{note} fails", number, type="Work", non_retryable=True)
    if activity.info().attempt == 1 and number % 3 == 1:
        raise ApplicationError("at first")
    return number


@pytest.fixture(scope="module")
def replayer() -> Iterator[Replayer]:
    """Return a replayer based on Core, with the workflow that interprets generated programs."""
    with Replayer(workflows=[InterpretedPlain]) as replayer:
        yield replayer


# --- programs in which nothing races --------------------------------------------------------------------------------


def simple_operations(*, alone: bool) -> st.SearchStrategy[list[Any]]:
    """Operations without blocks. Concurrent operations must not distinguish the numbers of others, so they call
    nothing that fails by its number."""
    calls = [
        st.tuples(st.just("act"), st.sampled_from(["try", "wait", "abandon"])),
        st.tuples(st.just("local"), st.just("try")),
        st.tuples(st.just("add"), st.integers(1, 3)),
    ]
    return st.one_of(
        *(calls if alone else []),
        st.tuples(st.just("sleep"), st.sampled_from([0.01, 0.02])),
        st.tuples(st.just("turn")),
        st.tuples(st.just("until"), st.just(0), st.just(0)),
        st.tuples(st.just("flag"), st.just(True)),
        st.tuples(st.just("cancel_other")),
        st.tuples(st.just("raise")),
    ).map(list)


def block_operations(inner: st.SearchStrategy[list[Any]], *, alone: bool) -> st.SearchStrategy[list[Any]]:
    """Operations with blocks, all of which end before the next operation."""
    block = st.lists(inner, min_size=1, max_size=3)
    branches = st.lists(
        st.lists(simple_operations(alone=False), min_size=1, max_size=3), min_size=1, max_size=3
    )
    side_by_side = [
        st.tuples(st.just("gather"), branches, st.just(True)),
        st.tuples(st.just("first"), branches, st.just("ALL_COMPLETED"), st.just(0)),
    ]
    return st.one_of(
        *(side_by_side if alone else []),
        st.tuples(st.just("lock"), block),
        st.tuples(st.just("semaphore"), block),
        st.tuples(st.just("limit"), st.just(300), block),
        st.tuples(st.just("patch"), st.integers(0, 2), block),
    ).map(list)


def deterministic_programs() -> st.SearchStrategy[dict[str, Any]]:
    """Programs whose outcome and events do not depend on time."""
    operation = st.recursive(
        simple_operations(alone=True), lambda inner: block_operations(inner, alone=True), max_leaves=6
    )
    main = st.lists(operation, min_size=2, max_size=6).filter(lambda block: not deadlocks(block))
    return st.fixed_dictionaries({"main": main, "handlers": st.just([[], []]), "limit": st.just(10**6)})


def deadlocks(block: list[Any], held: tuple[str, ...] = ()) -> bool:
    """Return whether a lock is taken by its holder, or a semaphore by the holders of all its places."""
    for name, *arguments in block:
        if held.count(name) == {"lock": 1, "semaphore": 2}.get(name):
            return True
        inner = arguments[-1] if name in ("lock", "semaphore", "limit", "patch") else []
        if deadlocks(inner, (*held, name)):
            return True
    return False


def is_sequential(program: Any) -> bool:
    """Return whether nothing runs concurrently, so that the order of events is fixed."""
    text = json.dumps(program)
    return '"gather"' not in text and '"first"' not in text


@pytest.fixture(scope="module")
def engines(
    quick_server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Client, str]]]:
    """Clients with a worker each, and their task queues."""
    targets = {
        "memory": "local:",
        "file": f"local:{tmp_path_factory.mktemp('generated') / 'runs.db'}",
        "server": quick_server.target,
    }
    clients = {name: Client.connect(target) for name, target in targets.items()}
    queue = f"generated-{uuid.uuid4().hex[:8]}"
    workers = [
        Worker(client, queue, workflows=[InterpretedPlain], activities=[work], verify="always")
        for client in clients.values()
    ]
    try:
        for worker in workers:
            worker.start()
        yield {name: (client, queue) for name, client in clients.items()}
    finally:
        for worker in workers:
            worker.shutdown()
        for client in clients.values():
            client.close()


def outcome(handle: WorkflowHandle[Any]) -> Any:
    """Return what a run came to, without its random part."""
    try:
        number, steps, _ = handle.result(timeout=60)
        return number, steps
    except WorkflowFailedError as error:
        return error_chain(error.cause)


@pytest.mark.server
@example_settings(3, AT_ONCE)
@given(batch=st.lists(deterministic_programs(), min_size=AT_ONCE, max_size=AT_ONCE))
def test_deterministic_programs_have_the_same_outcome_and_events_on_every_engine(
    batch: list[dict[str, Any]], engines: dict[str, tuple[Client, str]], replayer: Replayer
) -> None:
    runs = {
        name: [client.start_workflow(InterpretedPlain.run, program, task_queue=queue) for program in batch]
        for name, (client, queue) in engines.items()
    }
    outcomes = {name: [outcome(handle) for handle in handles] for name, handles in runs.items()}
    histories = {name: [handle.history() for handle in handles] for name, handles in runs.items()}
    for number, program in enumerate(batch):
        theirs = histories["server"][number]
        assert replayer.replay(theirs).ok, program
        for name in ("memory", "file"):
            mine = histories[name][number]
            assert outcomes[name][number] == outcomes["server"][number], (name, program)
            assert event_counts(mine) == event_counts(theirs), (name, program)
            if is_sequential(program):
                assert event_types(mine) == event_types(theirs), (name, program)
            assert replayer.replay(mine).ok, program


# --- programs in which everything meets everything ------------------------------------------------------------------

happenings = st.lists(
    st.tuples(
        st.sampled_from(["signal", "signal", "cancel", "crash", "wait"]), st.sampled_from([0, 1, 2, 7])
    ),
    max_size=6,
)


def run_with_faults(
    program: dict[str, Any], script: list[tuple[str, int]], took: float, *, fails: bool
) -> History:
    """Run a program on virtual time while signals, cancellation and crashes happen."""
    if fails:
        # Core cannot replay a history in which an abandoned activity fails later: the state "canceled" of its activity
        # machine accepts only a completion. The same is true on a server.
        program = json.loads(json.dumps(program).replace('"abandon"', '"wait"'))
    with Environment(workflows=[InterpretedPlain], activities=[work]) as env:
        env.fake("work", work.fn if fails else lambda note, number: number, takes=took)
        handle = env.start_workflow(InterpretedPlain.run, program, run_timeout=3600)
        for what, seconds in script:
            is_open = handle.describe().close_time is None
            if what == "crash":
                env.crash()
            elif what == "signal" and is_open:
                handle.signal("poke", seconds % 2)
            elif what == "cancel" and is_open:
                handle.cancel("enough")
            if seconds:
                env.skip(seconds=seconds)
        env.skip(hours=2)
        return handle.history()


@example_settings(60)
@given(program=programs(ours=True), script=happenings, took=st.sampled_from([0, 1, 3]), fails=st.booleans())
def test_histories_of_generated_programs_with_faults_replay_in_core(
    program: dict[str, Any], script: list[tuple[str, int]], took: float, fails: bool, replayer: Replayer
) -> None:
    history = run_with_faults(program, script, took, fails=fails)
    assert event_types(history)[-1].startswith("WORKFLOW_EXECUTION_"), history.to_json()
    assert replayer.replay(history).ok
