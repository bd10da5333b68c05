"""A process of its own with a worker on a server: `python -m tests.temporal.telemetry_program TARGET QUEUE`.

Executes one workflow, prints its metrics and waits for its end of input. Core's settings are of a process, so a test needs one.
"""

from __future__ import annotations

import logging
import sys
import urllib.request

from hourglass import Client, Worker, workflow


@workflow.defn
def nothing() -> int:
    return 1


def main(target: str, queue: str) -> None:
    logging.basicConfig(level=logging.INFO)
    with (
        Client.connect(target) as client,
        Worker(
            client, queue, workflows=[nothing], identity=f"who-{queue}", status_address="127.0.0.1:0"
        ) as worker,
    ):
        client.execute_workflow(nothing, id=queue, task_queue=queue)
        print("done", flush=True)
        for _ in sys.stdin:
            with urllib.request.urlopen(f"http://{worker.status_address}/metrics") as answer:
                print(answer.read().decode(), end="END\n", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
