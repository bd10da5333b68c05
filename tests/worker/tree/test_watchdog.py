"""The watchdog repairs work that no other part of the tree is responsible for."""

from __future__ import annotations

import logging

from hourglass._contract.handle import AttemptFailed
from hourglass._evaluator.commands import TaskFailed
from hourglass._supervision import NotRunning
from hourglass._worker.tree.watchdog import (
    NobodyPolls,
    NoWorker,
    Orphan,
    Suspicions,
    WatchLimits,
    check,
    suspicions,
)
from worker.handles.scripted import eviction

from .world import (
    WORKER,
    attempt_of,
    begun,
    failure_type,
    memory,
    scripted,
    stage,
    start_of,
    steps,
    until,
    waiting,
)

ONE, TWO = NoWorker("one"), NoWorker("two")


def test_watchdog_acts_on_a_suspicion_only_if_every_check_confirmed_it():
    patience = Suspicions(30.0)
    assert patience.overdue([ONE], 0.0) == []
    assert patience.overdue([ONE, TWO], 25.0) == []
    assert patience.overdue([TWO], 29.0) == []  # ONE was repaired meanwhile
    assert patience.overdue([ONE, TWO], 30.0) == []
    assert patience.overdue([ONE, TWO], 55.0) == [TWO]
    assert patience.overdue([ONE, TWO], 59.0) == []
    assert patience.overdue([ONE, TWO], 60.0) == [ONE]
    assert patience.overdue([ONE, TWO], 89.0) == [TWO]


async def test_idle_or_busy_worker_raises_no_suspicion():
    async with memory() as world:
        await world.start(waiting, 1)
        await begun()
        await until(world.is_polling)
        former = world.find(WORKER)
        patience = Suspicions(30.0)
        for now in range(0, 7200, 5):
            assert list(suspicions(world.app)) == []
            check(world.app, patience, float(now))
        assert world.find(WORKER) is former
        stage.go.set()
        assert await world.result() == 3


async def test_worker_raises_no_suspicion_during_and_after_fifty_workflows():
    async with memory() as world:
        for number in range(50):
            await world.start(steps, number, id=f"w{number}")
        seen = set()
        for number in range(50):
            seen.update(suspicions(world.app))
            assert await world.result(f"w{number}") == number * 4
        await until(lambda: not (world.app.evaluators.jobs() or list(suspicions(world.app))))
        assert not any(isinstance(item, (Orphan, NoWorker)) for item in seen)


async def test_watchdog_replaces_a_worker_whose_poll_loop_stalls(caplog):
    caplog.set_level(logging.ERROR)
    async with scripted() as world:
        evaluators, spawn = world.app.evaluators, world.app.evaluators.spawn_job

        def never(*args, **named):
            raise NotRunning("never")

        evaluators.spawn_job = never
        former, worker = world.handle, world.find(WORKER)
        former.deliver(start_of("r", "steps", 1))
        line = world.record().activations
        await until(lambda: line.undelivered)
        assert list(suspicions(world.app)) == [NobodyPolls("default", 1, "workflow", 1)]
        patience = Suspicions(30.0)
        check(world.app, patience, 0.0)
        check(world.app, patience, 29.9)
        assert worker.alive
        check(world.app, patience, 30.0)
        assert not worker.alive
        evaluators.spawn_job = spawn
        await until(lambda: len(world.engine.handles) == 2 and world.is_polling())
        await until(lambda: former.finalized)
        assert [type(completion) for completion in former.completions] == [TaskFailed]
        assert list(suspicions(world.app)) == []
    assert "the watchdog repairs: NobodyPolls(queue='default', generation=1, kind='workflow'" in caplog.text


async def test_watchdog_fails_an_activation_without_a_job_once():
    async with scripted() as world:
        handle = world.handle
        handle.deliver(start_of("r", "slow", 1))
        await begun()
        await until(world.is_polling)
        lost = world.record().runs.open["r"]
        lost.finish()  # without a completion
        (suspicion,) = suspicions(world.app)
        assert suspicion == Orphan("default", 1, "r", lost.token)
        patience = Suspicions(30.0)
        check(world.app, patience, 0.0)
        assert handle.completions == []
        check(world.app, patience, 30.0)
        await until(lambda: handle.completions)
        stage.go.set()
        (services,) = world.app.configured()
        await until(lambda: services.lanes.counts()[0].activations == 1)
        handle.deliver(eviction("r"))
        await until(lambda: len(handle.completions) == 2)
        assert failure_type(handle.completions[0]) == "WorkerShutdown"


async def test_watchdog_fails_an_attempt_without_a_job(caplog):
    caplog.set_level(logging.ERROR)
    async with scripted() as world:
        world.handle.deliver(attempt_of("waits", 1, token=b"sesame"))
        await begun()
        await until(world.is_polling)
        world.record().attempts.open[b"sesame"].finish()
        patience = Suspicions(30.0)
        check(world.app, patience, 0.0)
        check(world.app, patience, 30.0)
        await until(lambda: world.handle.results)
        assert [type(result) for result in world.handle.results] == [AttemptFailed]
    assert "the watchdog repairs: Orphan" in caplog.text
    assert "sesame" not in caplog.text


async def test_watchdog_launches_a_missing_worker():
    async with memory() as world:
        await world.app.workers.terminate_child("default")
        assert list(suspicions(world.app)) == [NoWorker("default")]
        patience = Suspicions(30.0)
        check(world.app, patience, 0.0)
        assert not world.is_polling()
        check(world.app, patience, 30.0)
        await until(world.is_polling)
        assert await world.run(steps, 1, id="w") == 4


async def test_watchdog_of_the_tree_checks_periodically():
    async with memory(watch=WatchLimits(interval=0.001, patience=0.01)) as world:
        await world.app.workers.terminate_child("default")
        await until(world.is_polling)
        assert await world.run(steps, 1, id="w") == 4
