"""A program with a worker on a server: `python -m tests.temporal.telemetry_program TARGET QUEUE [COLLECTOR]`.

Executes a workflow and prints its metrics for each line on stdin. A separate process, because Core's telemetry
settings are process-wide.
"""

from __future__ import annotations

import logging
import sys
import urllib.request

from hourglass import Client, Worker, workflow
from hourglass.errors import UsageError
from hourglass.metrics import OpenTelemetryConfig, TelemetryConfig, set_telemetry


@workflow.defn
def returns_one() -> int:
    return 1


def main(target: str, queue: str, collector: str = "") -> None:
    logging.basicConfig(level=logging.INFO)
    if collector:
        export = OpenTelemetryConfig(collector, http=True, metric_periodicity=0.1, headers={"who": "us"})
        set_telemetry(TelemetryConfig(metrics=export, global_tags={"shop": "7"}, metric_prefix="shop_"))
    with (
        Client.connect(target) as client,
        Worker(
            client, queue, workflows=[returns_one], identity=f"who-{queue}", status_address="127.0.0.1:0"
        ) as worker,
    ):
        client.execute_workflow(returns_one, id=queue, task_queue=queue)
        try:
            set_telemetry(TelemetryConfig())
        except UsageError as error:  # the connection was made before
            print("done" if "before the first connection" in str(error) else error, flush=True)
        for _ in sys.stdin:
            with urllib.request.urlopen(f"http://{worker.status_address}/metrics") as answer:
                print(answer.read().decode(), end="END\n", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
