"""Latency of healthy workflows while others hang: `python -m benchmarks.hung [--runs 100] [--seconds 5] [--json]`.

Workflows whose code spins or sleeps forever are started on a worker with default options. Once they run, healthy workflows of one
activity are started evenly over a few seconds, so that they overlap with the retries of the hung ones (`--seconds 0`: all at
once). For each case the table shows the median and the 95th percentile of the healthy workflows' latency, and how many took more
than five seconds or did not finish within a minute. Each case runs in a separate process on the in-memory engine; the process
exits without waiting for the hung code.
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
"""Released by each hung workflow when its code starts."""


@activity.defn
def greet(name: str) -> str:
    return f"Hello, {name}!"


@workflow.defn
def healthy(name: str) -> str:
    return greet(name)


@workflow.defn
def spinning() -> None:
    """Spin forever."""
    running.release()
    while True:
        pass


@workflow.defn
def sleeping() -> None:
    """Block the lane forever without using the CPU."""
    running.release()
    time.sleep(86400)


async def measure_here(kind: str, hung: int, runs: int, seconds: float) -> None:
    """Report the latencies of healthy workflows next to `hung` hung ones, `LIMIT` for unfinished ones. Then exit."""
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
            started = time.perf_counter()
            try:
                run = client.execute_workflow(healthy, "healthy", id=f"healthy-{number}")
                await asyncio.wait_for(run, LIMIT)
            except TimeoutError:
                return LIMIT
            return time.perf_counter() - started

        latencies = await asyncio.gather(*(measure(number) for number in range(runs)))
        report(kind, hung, latencies)
        os._exit(0)  # hung code cannot be stopped


def report(kind: str, hung: int, latencies: list[float]) -> None:
    """Print statistics of the latencies as a line of JSON."""
    print(
        json.dumps(
            {
                "case": kind,
                "hung": hung,
                "runs": len(latencies),
                "p50": round(statistics.median(latencies), 3),
                "p95": round(sorted(latencies)[max(0, -(-len(latencies) * 95 // 100) - 1)], 3),
                "late": sum(latency > LATE for latency in latencies),
                "unfinished": sum(latency >= LIMIT for latency in latencies),
            }
        ),
        flush=True,
    )


def measure(kind: str, hung: int, runs: int, seconds: float) -> dict[str, float]:
    """Measure one case in a separate process."""
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
    process = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=4 * LIMIT
    )
    result: dict[str, float] = json.loads(process.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Print a table or JSON. With `--case`, measure one case in this process."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.hung", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--runs", type=int, default=100, help="number of healthy workflows (default: 100)")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="start them evenly over this time (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each case")
    parser.add_argument(
        "--case", choices=["nothing", "spinning", "sleeping"], help="measure one case in this process"
    )
    parser.add_argument("--hung", type=int, default=0, help="number of hung workflows, with --case")
    options = parser.parse_args()
    if options.case:
        asyncio.run(measure_here(options.case, options.hung, options.runs, options.seconds))
    if not options.json:
        print(
            f"{'hung workflows':18}{'healthy':>8}{'p50 s':>9}{'p95 s':>9}{'later than 5 s':>16}{'unfinished':>12}"
        )
    for kind, hung in CASES:
        result = measure(kind, hung, options.runs, options.seconds)
        if options.json:
            print(json.dumps(result), flush=True)
            continue
        print(
            f"{hung or 'no'} {kind if hung else '':15}{result['runs']:8}{result['p50']:9.2f}{result['p95']:9.2f}"
            f"{result['late']:16}{result['unfinished']:12}",
            flush=True,
        )


if __name__ == "__main__":
    main()
