"""A long activity that resumes where its last attempt stopped.

    python examples/resume.py
    hourglass run examples/resume.py "$PWD/rows.csv"

`HOURGLASS_TARGET=localhost:7233` runs the same on a Temporal server.

The activity reports its progress with each heartbeat. When an attempt fails, or its worker dies and the heartbeat times out, the
next attempt receives the last reported progress and skips completed rows. Rows after the last recorded heartbeat are written
again, so writing a row must be idempotent.
"""

from __future__ import annotations

import csv
import tempfile
from datetime import timedelta
from itertools import islice
from pathlib import Path

from hourglass import Client, RetryPolicy, Worker, activity, workflow

ROWS = 5000
warehouse: dict[str, str] = {}  # simulates the database


@activity.defn(
    start_to_close_timeout=timedelta(hours=12),
    heartbeat_timeout=timedelta(seconds=30),
    retry_policy=RetryPolicy(initial_interval=0.1),
)
def import_rows(file: str) -> int:
    done = activity.heartbeat_details(int) or 0
    print(f"  attempt {activity.info().attempt} begins after {done} rows")
    with open(file, newline="") as rows:
        for key, value in islice(csv.reader(rows), done, None):
            if done == ROWS // 2 and activity.info().attempt == 1:
                raise ConnectionError("the database has gone away")
            warehouse[key] = value
            done += 1
            activity.heartbeat(done)
    return done


@workflow.defn
def nightly_import(file: str) -> str:
    return f"{import_rows(file)} rows imported"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.csv")
        file.write_text("".join(f"key-{number},{number}\n" for number in range(ROWS)))
        with Client.connect() as client, Worker(client, "resume", modules=[__name__]):
            print(client.execute_workflow(nightly_import, str(file), task_queue="resume"))


if __name__ == "__main__":
    main()
