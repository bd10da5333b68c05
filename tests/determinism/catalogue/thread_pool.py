"""A pool of threads that close over a local: they finish in the order that the operating system likes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, as_completed

from hourglass import workflow

from .acts import note


@workflow.defn(name="thread_pool")
def bug(names: list[str]) -> list[str]:
    prefix = "order"

    def named(name: str) -> str:
        return f"{prefix}-{name}"

    with ThreadPoolExecutor(2) as pool:  # caught: check HG108, watch
        futures = [pool.submit(named, name) for name in names]  # caught: check HG108, watch
        done = [future.result() for future in as_completed(futures)]  # caught: check HG108, watch
    return [note(each) for each in sorted(done)]


arguments = (["a", "b"],)
