"""Hung code beside healthy runs: `python -m benchmarks.hung [--runs 100] [--seconds 5] [--json]`.

Workflows whose code spins or sleeps for ever are started on a worker with the default options. Once their code runs, healthy
workflows of one activity are started, evenly over a few seconds, so that they also meet the retries of the hung ones (`--seconds
0`: all at once). For each case the table says how long the healthy ones took from start to result: the median, the 95th
percentile, and how many took more than five seconds or had not ended after a minute. Each case is a process of its own, on the
embedded engine in memory, and is ended with its hung code.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import threading
import time

from hourglass import AsyncClient, Worker, activity, workflow

LATE = 5.0
LIMIT = 60.0
CASES = [("nothing", 0), ("spinning", 1), ("spinning", 4), ("sleeping", 1), ("sleeping", 4)]

running = threading.Semaphore(0)
"""Released by hung code when it begins."""


@activity.defn
def greet(name: str) -> str:
    """The activity of a healthy run."""
    return f"Hello, {name}!"


@workflow.defn
def healthy(name: str) -> str:
    """A healthy run."""
    return greet(name)


@workflow.defn
def spinning() -> None:
    """Compute for ever."""
    running.release()
    while True:
        pass


@workflow.defn
def sleeping() -> None:
    """Block the lane for ever, without the processor."""
    running.release()
    time.sleep(86400)  # for ever


async def latencies(kind: str, hung: int, runs: int, seconds: float) -> None:
    """Report how long each healthy run took beside this many hung ones; `LIMIT` for one that did not end. Then exit."""
    async with (
        await AsyncClient.connect("local:") as client,
        Worker(
            client,
            workflows=[healthy, spinning, sleeping],
            activities=[greet],
            verify="off",
            watch="off",
        ),
    ):
        await client.execute_workflow(healthy, "before", id="before")
        for number in range(hung):
            await client.start_workflow(
                {"spinning": spinning, "sleeping": sleeping}[kind], id=f"hung-{number}"
            )
        if hung:
            await asyncio.to_thread(running.acquire)

        async def measure(number: int) -> float:
            await asyncio.sleep(seconds * number / runs)
            begun = time.perf_counter()
            try:
                run = client.execute_workflow(healthy, "healthy", id=f"healthy-{number}")
                await asyncio.wait_for(run, LIMIT)
            except TimeoutError:
                return LIMIT
            return time.perf_counter() - begun

        found = await asyncio.gather(*(measure(number) for number in range(runs)))
        report(kind, hung, found)
        os._exit(0)  # code that hangs does not end


def report(kind: str, hung: int, seconds: list[float]) -> None:
    """Print what was measured as a line of JSON."""
    print(
        json.dumps(
            {
                "case": kind,
                "hung": hung,
                "runs": len(seconds),
                "p50": round(statistics.median(seconds), 3),
                "p95": round(sorted(seconds)[max(0, -(-len(seconds) * 95 // 100) - 1)], 3),
                "late": sum(each > LATE for each in seconds),
                "unfinished": sum(each >= LIMIT for each in seconds),
            }
        ),
        flush=True,
    )


def measure(kind: str, hung: int, runs: int, seconds: float) -> dict[str, float]:
    """Measure one case in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.hung",
        "--case",
        kind,
        "--hung",
        str(hung),
        "--runs",
        str(runs),
    ]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=4 * LIMIT
    )
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print a table or JSON; with `--case` one measurement, in this process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hung", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--runs", type=int, default=100, help="how many healthy workflows (default: 100)")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="over how long they are started (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each case")
    parser.add_argument(
        "--case", choices=["nothing", "spinning", "sleeping"], help="measure one case in this process"
    )
    parser.add_argument("--hung", type=int, default=0, help="how many hung workflows, with --case")
    options = parser.parse_args()
    if options.case:
        asyncio.run(latencies(options.case, options.hung, options.runs, options.seconds))
    if not options.json:
        print(
            f"{'hung workflows':18}{'healthy':>8}{'p50 s':>9}{'p95 s':>9}{'later than 5 s':>16}{'unfinished':>12}"
        )
    for kind, hung in CASES:
        found = measure(kind, hung, options.runs, options.seconds)
        if options.json:
            print(json.dumps(found), flush=True)
            continue
        print(
            f"{hung or 'no'} {kind if hung else '':15}{found['runs']:8}{found['p50']:9.2f}{found['p95']:9.2f}"
            f"{found['late']:16}{found['unfinished']:12}",
            flush=True,
        )


if __name__ == "__main__":
    main()
