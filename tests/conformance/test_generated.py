"""Generated programs: on the embedded engine and on a server they come to the same, and every history replays in Core.

Two languages. In `determined` programs nothing races, so that results and events must be the same everywhere; they run on
a real server too. In the language of `tests/evaluator` everything may meet everything, at any instant of virtual time, with
signals, cancellation and workers that lose what they hold: there the judge is Core, which must find each history in order.

A few dozen programs for every run of the suite, always the same; HOURGLASS_GENERATED=3000 asks for so many new ones.
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

from .world import counts, described, kinds

AT_ONCE = 12
_asked = int(os.environ.get("HOURGLASS_GENERATED", "0"))


def some(usual: int, each: int = 1) -> settings:
    """How many examples: the usual ones, or new ones in the number that was asked for."""
    return settings(
        max_examples=max(1, _asked // each) if _asked else usual,
        derandomize=not _asked,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],  # an example here is costly, and tells its program
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
            HealthCheck.large_base_example,
        ],
    )


@activity.defn(retry_policy=RetryPolicy(initial_interval=0.01, maximum_attempts=3))
def work(note: str, number: int) -> int:
    """Fails at first, every third time for good."""
    if number % 3 == 2:
        raise ApplicationError(f"{note} fails", number, type="Work", non_retryable=True)
    if activity.info().attempt == 1 and number % 3 == 1:
        raise ApplicationError("at first")
    return number


@pytest.fixture(scope="module")
def replayer() -> Iterator[Replayer]:
    """Core, and the interpreter."""
    with Replayer(workflows=[InterpretedPlain]) as replayer:
        yield replayer


# --- programs in which nothing races --------------------------------------------------------------------------------


def simple(*, alone: bool) -> st.SearchStrategy[list[Any]]:
    """Operations without blocks. What is not alone must not tell the others' numbers from its own: it calls nothing that
    fails by its number.
    """
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


def blocks(inner: st.SearchStrategy[list[Any]], *, alone: bool) -> st.SearchStrategy[list[Any]]:
    """Operations with blocks, all of which end before the next operation."""
    block = st.lists(inner, min_size=1, max_size=3)
    several = st.lists(st.lists(simple(alone=False), min_size=1, max_size=3), min_size=1, max_size=3)
    side_by_side = [
        st.tuples(st.just("gather"), several, st.just(True)),
        st.tuples(st.just("first"), several, st.just("ALL_COMPLETED"), st.just(0)),
    ]
    return st.one_of(
        *(side_by_side if alone else []),
        st.tuples(st.just("lock"), block),
        st.tuples(st.just("semaphore"), block),
        st.tuples(st.just("limit"), st.just(300), block),
        st.tuples(st.just("patch"), st.integers(0, 2), block),
    ).map(list)


def determined() -> st.SearchStrategy[dict[str, Any]]:
    """Whole programs whose end and events do not depend on time."""
    operation = st.recursive(simple(alone=True), lambda inner: blocks(inner, alone=True), max_leaves=6)
    main = st.lists(operation, min_size=2, max_size=6).filter(lambda block: not waits_for_itself(block))
    return st.fixed_dictionaries({"main": main, "handlers": st.just([[], []]), "limit": st.just(10**6)})


def waits_for_itself(block: list[Any], held: tuple[str, ...] = ()) -> bool:
    """Whether a lock is taken by who has it, or the places of a semaphore are."""
    for name, *arguments in block:
        if held.count(name) == {"lock": 1, "semaphore": 2}.get(name):
            return True
        inner = arguments[-1] if name in ("lock", "semaphore", "limit", "patch") else []
        if waits_for_itself(inner, (*held, name)):
            return True
    return False


def is_sequential(program: Any) -> bool:
    """Whether nothing runs side by side, so that even the order of events is determined."""
    text = json.dumps(program)
    return '"gather"' not in text and '"first"' not in text


@pytest.fixture(scope="module")
def engines(
    quick_server: DevServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Client, str]]]:
    """Clients with a worker each, and the queues."""
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


def ended(handle: WorkflowHandle[Any]) -> Any:
    """What a run came to, less what is drawn at random."""
    try:
        number, steps, _ = handle.result(timeout=60)
        return number, steps
    except WorkflowFailedError as error:
        return described(error.cause)


@pytest.mark.server
@some(3, AT_ONCE)
@given(several=st.lists(determined(), min_size=AT_ONCE, max_size=AT_ONCE))
def test_generated_programs_agree_on_every_engine(
    several: list[dict[str, Any]], engines: dict[str, tuple[Client, str]], replayer: Replayer
) -> None:
    """Programs in which nothing races end in the same way, through the same events."""
    runs = {
        name: [client.start_workflow(InterpretedPlain.run, each, task_queue=queue) for each in several]
        for name, (client, queue) in engines.items()
    }
    outcomes = {name: [ended(handle) for handle in handles] for name, handles in runs.items()}
    histories = {name: [handle.history() for handle in handles] for name, handles in runs.items()}
    for number, program in enumerate(several):
        theirs = histories["server"][number]
        assert replayer.replay(theirs).ok, program
        for name in ("memory", "file"):
            mine = histories[name][number]
            assert outcomes[name][number] == outcomes["server"][number], (name, program)
            assert counts(mine) == counts(theirs), (name, program)
            if is_sequential(program):
                assert kinds(mine) == kinds(theirs), (name, program)
            assert replayer.replay(mine).ok, program


# --- programs in which everything meets everything ------------------------------------------------------------------

happenings = st.lists(
    st.tuples(
        st.sampled_from(["signal", "signal", "cancel", "crash", "wait"]), st.sampled_from([0, 1, 2, 7])
    ),
    max_size=6,
)


def play(program: dict[str, Any], script: list[tuple[str, int]], took: float, *, fails: bool) -> History:
    """A program on virtual time, with what happens to it meanwhile."""
    if fails:
        # Core replays no history in which an activity that was abandoned fails afterwards: in its machine of an
        # activity the state "canceled" takes a completion, and no other end. It is so on a server, too.
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


@some(60)
@given(program=programs(ours=True), script=happenings, took=st.sampled_from([0, 1, 3]), fails=st.booleans())
def test_histories_of_generated_programs_replay_in_core(
    program: dict[str, Any], script: list[tuple[str, int]], took: float, fails: bool, replayer: Replayer
) -> None:
    """Whatever a program does, and whatever happens to it meanwhile: the run ends, and its history replays in Core."""
    history = play(program, script, took, fails=fails)
    assert kinds(history)[-1].startswith("WORKFLOW_EXECUTION_"), history.to_json()
    assert replayer.replay(history).ok
