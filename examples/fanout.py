"""A thousand items, fifty at a time, with progress: `workflow.map` and a query.

    python examples/fanout.py
    hourglass run examples/fanout.py 200

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

Each item is a separate activity: it is retried on its own, and after a crash only unfinished items run. For more than a few
thousand items, use a child workflow per batch (`children.py`), so that no single history grows too long.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

from hourglass import Client, Worker, activity, workflow


@dataclass
class Progress:
    done: int
    total: int


@activity.defn
def thumbnail(image: int) -> str:
    """Simulate the real work, which takes time and may fail."""
    time.sleep(0.02)
    return hashlib.sha256(b"image %d" % image).hexdigest()[:8]


@workflow.defn
def thumbnails(count: int) -> int:
    done = 0

    @workflow.query
    def progress() -> Progress:
        return Progress(done, count)

    def make(image: int) -> str:
        nonlocal done
        name = thumbnail(image)
        done += 1
        return name

    return len(set(workflow.map(make, range(count), limit=50)))


def main(count: int = 1000) -> None:
    with Client.connect() as client, Worker(client, "fanout", modules=[__name__]):
        handle = client.start_workflow(thumbnails, count, task_queue="fanout")
        while True:
            progress = handle.query("progress", result_type=Progress)
            print(f"  {progress.done:5d} of {progress.total}")
            if progress.done == progress.total:
                break
            time.sleep(0.1)
        print(f"{handle.result()} thumbnails")


if __name__ == "__main__":
    main()
