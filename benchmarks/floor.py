"""Part `floor`: cost of a step of a long workflow by layer, from a bare pipeline up to Hourglass, with 50 and with one at a time.

The pipeline has the threads and guarantees of Hourglass, and nothing else: a control loop, a lane that runs workflow code,
activity threads, and a thread that commits in groups with one `fsync` each. An activity is dispatched only after the change that
scheduled it was committed. Each subject extends the previous one:

    hand-overs    loop to lane, lane to loop, loop to activity thread, and back; without storage
    + commits     one small row per step, committed in groups before the activity is dispatched
    + rows        rows like those Hourglass writes for a step, of the same sizes: state, events, pending activity
    + rules       the six events of a step created, encoded and applied to the run, instead of dummy bytes
    + evaluator   the workflow code in its fiber, instead of a counter
    Hourglass     everything else: handles, cache, dispatch, attempts, metrics, guards

`Hourglass, a workflow` measures a workflow without steps: start, one workflow task, completion, and the wait of its caller.

Each subject runs in a separate process: `python -m benchmarks.floor SUBJECT AT_ONCE SECONDS`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

from .report import Row, interleave
from .subjects_hourglass import echo, sequence

_AT_ONCE = (50, 1)
_LONG = 200
"""Steps per workflow: enough to make the cost of its start and completion negligible."""


def measure(*, quick: bool) -> list[Row]:
    """Measure all layers in interleaved rounds."""
    seconds = 1.5 if quick else 4.0
    rows: list[Row] = []
    for at_once in _AT_ONCE:
        subjects = {name: partial(_child, name, at_once, seconds) for name in SUBJECTS}
        rounds, case = 2 if quick else 5, f"{at_once} at a time"
        rows += interleave(subjects, rounds=rounds, part="floor", case=case)
    return rows


def _child(subject: str, at_once: int, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.floor", subject, str(at_once), str(seconds)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, timeout=20 * seconds + 60, check=True)
    elapsed, cpu = answer.stdout.split()[-2:]
    return {"µs/step": float(elapsed), "µs CPU/step": float(cpu)}


class Sink:
    """Destination of the store's thread: writes each group of rows to a file with one statement."""

    has_more = False

    def __init__(self, path: str, layer: int) -> None:
        from hourglass._embedded.store.sqlite import database, run_rows, visibility

        opened = database.open_database(path, "default", visibility.SCHEMA)
        self._connection, self._write, self._is_bare = opened.writer, run_rows.write, layer < 2
        if self._is_bare:
            self._connection.execute("CREATE TABLE bare (run INTEGER, step INTEGER)")
        else:
            run_rows.prepare(self._connection, opened.epoch)

    def build(self, turns: Sequence[Any]) -> list[Any]:
        return [row for turn in turns for row in turn.changes]

    build_separately = build

    def commit(self, batch: list[Any]) -> None:
        if self._is_bare:
            values = ",".join(f"({run},{step})" for run, step in batch)
            self._connection.execute(f"INSERT INTO bare VALUES {values}")
        else:
            self._write(self._connection, batch)

    def after_commit(self, batch: list[Any]) -> None:
        pass

    def check(self) -> None:
        pass


class Work:
    """One run of the pipeline: the workflow code of a step, and the rows that the step writes."""

    def __init__(self, key: int, layer: int) -> None:
        self.key, self.layer, self.step = key, layer, 0
        self.result: Any = None
        self.evaluate: Callable[[], Any] = self._count
        if layer >= 3:
            from . import floor_rules as rules

            self._rules = rules.Rules(key, evaluates=layer >= 4)
            self.evaluate = self._rules.evaluate

    def _count(self) -> Any:
        """Replace the workflow code in layers without an evaluator."""
        self.step += 1
        return self.step

    def rows(self, commands: Any) -> list[Any]:
        """Return the rows that a step writes."""
        if self.layer < 2:
            return [(self.key, self.step)]
        if self.layer >= 3:
            return self._rules.rows(commands, self.result)
        from hourglass._embedded.store.sqlite import run_rows

        first = 3 + 6 * self.step
        name = f"{self.key:036d}"
        state = (name, name, 1, 0, _STATE) if self.step == 1 else ("", "", 1, 0, _STATE)
        completed = [(first - 1, first - 1)] if self.step > 1 else []
        return run_rows.rows(self.key, state, (first, _EVENTS), [(first + 5, _PENDING)], completed, ())


_STATE, _EVENTS, _PENDING = bytearray(b"s" * 170), bytearray(b"e" * 560), bytearray(b"p" * 130)


class Pipeline:
    """The threads and the hand-overs of a step between them. Used on the running event loop."""

    def __init__(self, path: str, layer: int, at_once: int) -> None:
        from hourglass._embedded.store.sqlite.commit_thread import StoreThread, Turn
        from hourglass._worker.activities.activity_threads import ThreadPool
        from hourglass._worker.portal import Mailbox

        self.done = 0
        self.stopped = False
        self._loop = asyncio.get_running_loop()
        self._mailbox, self._pool, self._turn = Mailbox(), ThreadPool("floor-activity", 100), Turn
        self._works = [Work(key, layer) for key in range(1, at_once + 1)]
        self._lane: SimpleQueue[Work | None] = SimpleQueue()
        self._to_lane: list[Work] = []
        self._changes: list[Any] = []
        self._awaiting_commit: deque[tuple[int, Work]] = deque()
        self._change_number = self._committed = 0
        self._thread = threading.Thread(target=self._run_lane, daemon=True)
        self._thread.start()
        self._store: StoreThread | None = None
        if layer:
            sink: Any = Sink(path, layer)
            self._store = StoreThread(sink, path, on_commit=self._on_commit, on_end=lambda error: None)
            self._store.start()
        for work in self._works:
            self._submit(work)

    def close(self) -> None:
        """Stop the threads after the work in progress."""
        self.stopped = True
        self._lane.put(None)
        self._thread.join()
        if self._store is not None:
            self._store.close()
        self._pool.stop()

    def _submit(self, work: Work) -> None:
        """Queue the work for the lane until the end of this event loop iteration."""
        if not self._to_lane:
            self._loop.call_soon(self._flush_to_lane)
        self._to_lane.append(work)

    def _flush_to_lane(self) -> None:
        works, self._to_lane = self._to_lane, []
        for work in works:
            self._lane.put(work)

    def _apply_completion(self, completion: tuple[Work, Any]) -> None:
        """Store the lane's completion, and dispatch its activity after the commit."""
        work, commands = completion
        if self.stopped:
            return
        if self._store is None:
            self._dispatch(work)
            return
        if not self._changes:
            self._loop.call_soon(self._flush_to_store)
        self._changes += work.rows(commands)
        self._change_number += 1
        self._awaiting_commit.append((self._change_number, work))

    def _flush_to_store(self) -> None:
        changes, self._changes = self._changes, []
        assert self._store is not None
        self._store.put(self._turn(changes, self._change_number))

    def _dispatch_committed(self) -> None:
        while self._awaiting_commit and self._awaiting_commit[0][0] <= self._committed:
            self._dispatch(self._awaiting_commit.popleft()[1])

    def _dispatch(self, work: Work) -> None:
        self._pool.submit(self._run_activity, work, b"1")

    def _on_activity_completed(self, completion: tuple[Work, Any]) -> None:
        work, work.result = completion
        self.done += 1
        self._submit(work)

    def _run_lane(self) -> None:
        while (work := self._lane.get()) is not None:
            self._mailbox.post(self._apply_completion, (work, work.evaluate()))

    def _run_activity(self, work: Work, argument: bytes) -> None:
        result = json.dumps(echo.fn(json.loads(argument))).encode()
        self._mailbox.post(self._on_activity_completed, (work, result))

    def _on_commit(self, number: int) -> None:
        self._committed = number
        self._loop.call_soon_threadsafe(self._dispatch_committed)


async def _pipeline(layer: int, at_once: int, seconds: float) -> tuple[float, float]:
    with TemporaryDirectory(dir=".") as folder:
        pipeline = Pipeline(f"{folder}/floor.db", layer, at_once)
        await asyncio.sleep(0.5)
        started, cpu_started, done_before = time.perf_counter(), time.process_time(), pipeline.done
        await asyncio.sleep(seconds)
        steps = pipeline.done - done_before
        elapsed = (time.perf_counter() - started) / steps * 1e6
        cpu = (time.process_time() - cpu_started) / steps * 1e6
        await asyncio.to_thread(pipeline.close)
    return elapsed, cpu


async def _hourglass(steps: int, at_once: int, seconds: float) -> tuple[float, float]:
    from hourglass import AsyncClient, Worker

    with TemporaryDirectory(dir=".") as folder:
        client = await AsyncClient.connect(f"local:{folder}/floor.db")
        async with client, Worker(client, workflows=[sequence], activities=[echo], verify="off", watch="off"):

            async def drive(seconds: float) -> tuple[float, float]:
                started, cpu_started, done = time.perf_counter(), time.process_time(), 0

                async def run_repeatedly() -> None:
                    nonlocal done
                    while time.perf_counter() < started + seconds:
                        await client.execute_workflow(sequence, steps)
                        done += 1

                await asyncio.gather(*[run_repeatedly() for _ in range(at_once)])
                count = done * max(steps, 1) / 1e6
                return (time.perf_counter() - started) / count, (time.process_time() - cpu_started) / count

            await drive(0.5)
            return await drive(seconds)


SUBJECTS: dict[str, Callable[[int, float], Any]] = {
    "hand-overs": partial(_pipeline, 0),
    "+ commits": partial(_pipeline, 1),
    "+ rows": partial(_pipeline, 2),
    "+ rules": partial(_pipeline, 3),
    "+ evaluator": partial(_pipeline, 4),
    "Hourglass": partial(_hourglass, _LONG),
    "Hourglass, a workflow": partial(_hourglass, 0),
}


def _main(subject: str, at_once: int, seconds: float) -> None:
    with asyncio.Runner(loop_factory=_new_loop) as runner:  # like the control loop
        print(*runner.run(SUBJECTS[subject](at_once, seconds)))


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
