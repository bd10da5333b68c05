"""Part `floor`: what a step of a long workflow costs, layer by layer, from a bare pipeline up to Hourglass: 50 at a time and
one at a time.

The pipeline has Hourglass's threads and its guarantees, and nothing else: a control loop; a lane, on which workflow code
goes on; threads for activities; a thread that commits in groups, each with an `fsync`. An activity is handed out when the
change that asked for it is on the disk, and not before. Each subject does what the one before it does, and more:

    hand-overs    from the loop to the lane, back, to an activity's thread, and back; nothing is kept
    + commits     one small row for each step, committed in groups before the activity is handed out
    + rows        the rows that Hourglass writes for a step, of the same sizes: state, events, what is pending
    + rules       the six events of a step, made and encoded, and the run that they lead to, instead of bytes made up
    + evaluator   the workflow's code, in its fiber, instead of a number that is counted up
    Hourglass     what is left: handles and their books, cache, dispatch, attempts, metrics, guards

`Hourglass, a workflow` is one without a step: its start, its only task, its end, and its caller's wait.

Each subject has a process of its own: `python -m benchmarks.floor SUBJECT AT_ONCE SECONDS`.
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
"""Steps of a workflow: its beginning and its end do not count."""


def measure(*, quick: bool) -> list[Row]:
    """All layers, interleaved."""
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
    took, cpu = answer.stdout.split()[-2:]
    return {"µs/step": float(took), "µs CPU/step": float(cpu)}


# --- in a process of its own: the pipeline ----------------------------------------------------------------


class Sink:
    """What the store's thread does with a file: one statement for each group of rows."""

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


class Work:
    """One run of the pipeline: what its lane does for a step, and what is written of that."""

    def __init__(self, key: int, layer: int) -> None:
        self.key, self.layer, self.step = key, layer, 0
        self.result: Any = None
        self.evaluate: Callable[[], Any] = self._count
        if layer >= 3:
            from . import floor_rules as rules

            self._rules = rules.Rules(key, evaluates=layer >= 4)
            self.evaluate = self._rules.evaluate

    def _count(self) -> Any:
        """Stands for workflow code."""
        self.step += 1
        return self.step

    def rows(self, asked: Any) -> list[Any]:
        """What a step writes."""
        if self.layer < 2:
            return [(self.key, self.step)]
        if self.layer >= 3:
            return self._rules.rows(asked, self.result)
        from hourglass._embedded.store.sqlite import run_rows

        first = 3 + 6 * self.step
        name = f"{self.key:036d}"
        state = (name, name, 1, 0, _STATE) if self.step == 1 else ("", "", 1, 0, _STATE)
        gone = [(first - 1, first - 1)] if self.step > 1 else []
        return run_rows.rows(self.key, state, (first, _EVENTS), [(first + 5, _PENDING)], gone, ())


_STATE, _EVENTS, _PENDING = bytearray(b"s" * 170), bytearray(b"e" * 560), bytearray(b"p" * 130)


class Pipeline:
    """The threads, and the way of a step through them. Belongs to the loop that runs."""

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
        self._kept: deque[tuple[int, Work]] = deque()
        self._number = self._committed = 0
        self._thread = threading.Thread(target=self._run_lane, daemon=True)
        self._thread.start()
        self._store: StoreThread[list[Any]] | None = None
        if layer:
            self._store = StoreThread(
                Sink(path, layer), path, on_commit=self._on_commit, on_end=lambda error: None
            )
            self._store.start()
        for work in self._works:
            self._submit(work)

    def close(self) -> None:
        """Let what is under way end."""
        self.stopped = True
        self._lane.put(None)
        self._thread.join()
        if self._store is not None:
            self._store.close()
        self._pool.stop()

    # --- on the control loop --------------------------------------------------------------------------------

    def _submit(self, work: Work) -> None:
        """To the lane, at the end of this turn."""
        if not self._to_lane:
            self._loop.call_soon(self._ring)
        self._to_lane.append(work)

    def _ring(self) -> None:
        works, self._to_lane = self._to_lane, []
        for work in works:
            self._lane.put(work)

    def _answered(self, answer: tuple[Work, Any]) -> None:
        """The lane has gone on: write it, and hand out its activity when it is written."""
        work, asked = answer
        if self.stopped:
            return
        if self._store is None:
            self._hand_out(work)
            return
        if not self._changes:
            self._loop.call_soon(self._hand_over)
        self._changes += work.rows(asked)
        self._number += 1
        self._kept.append((self._number, work))

    def _hand_over(self) -> None:
        changes, self._changes = self._changes, []
        assert self._store is not None
        self._store.put(self._turn(changes, self._number))

    def _settle(self) -> None:
        while self._kept and self._kept[0][0] <= self._committed:
            self._hand_out(self._kept.popleft()[1])

    def _hand_out(self, work: Work) -> None:
        self._pool.submit(self._perform, work, b"1")

    def _ended(self, ended: tuple[Work, Any]) -> None:
        work, work.result = ended
        self.done += 1
        self._submit(work)

    # --- on the others --------------------------------------------------------------------------------------

    def _run_lane(self) -> None:
        while (work := self._lane.get()) is not None:
            self._mailbox.post(self._answered, (work, work.evaluate()))

    def _perform(self, work: Work, argument: bytes) -> None:
        self._mailbox.post(self._ended, (work, json.dumps(echo.fn(json.loads(argument))).encode()))

    def _on_commit(self, number: int) -> None:
        self._committed = number
        self._loop.call_soon_threadsafe(self._settle)


async def _pipeline(layer: int, at_once: int, seconds: float) -> tuple[float, float]:
    with TemporaryDirectory(dir=".") as folder:
        pipeline = Pipeline(f"{folder}/floor.db", layer, at_once)
        await asyncio.sleep(0.5)
        begun, spent, done = time.perf_counter(), time.process_time(), pipeline.done
        await asyncio.sleep(seconds)
        steps = pipeline.done - done
        took = (time.perf_counter() - begun) / steps * 1e6, (time.process_time() - spent) / steps * 1e6
        await asyncio.to_thread(pipeline.close)
    return took


# --- in a process of its own: Hourglass -------------------------------------------------------------------


async def _hourglass(steps: int, at_once: int, seconds: float) -> tuple[float, float]:
    from hourglass import AsyncClient, Worker

    with TemporaryDirectory(dir=".") as folder:
        client = await AsyncClient.connect(f"local:{folder}/floor.db")
        async with client, Worker(client, workflows=[sequence], activities=[echo], verify="off", watch="off"):

            async def drive(limit: float) -> tuple[float, float]:
                begun, spent, done = time.perf_counter(), time.process_time(), 0

                async def again() -> None:
                    nonlocal done
                    while time.perf_counter() < begun + limit:
                        await client.execute_workflow(sequence, steps)
                        done += 1

                await asyncio.gather(*[again() for _ in range(at_once)])
                count = done * max(steps, 1) / 1e6
                return (time.perf_counter() - begun) / count, (time.process_time() - spent) / count

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
    with asyncio.Runner(loop_factory=_new_loop) as runner:  # as the control loop is
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
